//! What is installed: the command, libforebay, its headers, and what build systems read.
//!
//! ```text
//!   bin/forebay
//!   include/forebay.h, forebay.hpp
//!   lib/libforebay.so -> libforebay.so.ABI -> libforebay.so.VERSION     lib/libforebay.a
//!   lib/pkgconfig/forebay.pc
//!   lib/cmake/forebay/forebay-config.cmake, forebay-config-version.cmake
//!   share/doc/forebay/
//! ```
//!
//! The name libforebay is given here and not by cargo: the file libforebay.rlib is that of the crate
//! forebay. The SONAME is given to the linker here too, so that no build script is needed.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::dashboard::Dashboard;
use crate::files::{self, copy, write};
use crate::run::Task;
use crate::screen::{QUIET, styled};
use crate::workplace::Workplace;

/// What static linking needs besides: the system's own, on Linux.
const SYSTEM: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl";

/// Files that are copied as they are: from the root of the repository, to under the prefix.
const FILES: [(&str, &str); 13] = [
    ("crates/forebay-capi/include/forebay.h", "include/forebay.h"),
    ("crates/forebay-capi/include/forebay.hpp", "include/forebay.hpp"),
    ("README.md", "share/doc/forebay/README.md"),
    ("CHANGELOG.md", "share/doc/forebay/CHANGELOG.md"),
    ("LICENSE-MIT", "share/doc/forebay/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/forebay/LICENSE-APACHE"),
    ("docs/c.md", "share/doc/forebay/c.md"),
    ("docs/cpp.md", "share/doc/forebay/cpp.md"),
    ("docs/configuration.md", "share/doc/forebay/configuration.md"),
    ("crates/forebay-capi/examples/01_first_block.c", "share/doc/forebay/01_first_block.c"),
    ("crates/forebay-capi/examples/02_streams.c", "share/doc/forebay/02_streams.c"),
    ("crates/forebay-capi/examples/03_limits_and_tags.c", "share/doc/forebay/03_limits_and_tags.c"),
    (
        "crates/forebay-capi/examples/04_buffers_and_arenas.cpp",
        "share/doc/forebay/04_buffers_and_arenas.cpp",
    ),
];

/// Where it goes.
#[derive(Clone, Debug, Args)]
pub(crate) struct Dist {
    /// The folder that is to have bin, lib, include and share.
    #[arg(long, value_name = "DIR", default_value = "dist")]
    prefix: PathBuf,
}

impl Dist {
    /// Builds and lays it out.
    pub(crate) fn make(&self, dashboard: &mut Dashboard<'_>) -> Result<String, String> {
        let place = dashboard.place;
        let prefix = place.root().join(&self.prefix);
        let prefix = std::path::absolute(&prefix).map_err(files::told(&prefix))?;
        let header = files::read(&place.root().join("crates/forebay-capi/include/forebay.h"))?;
        let abi = abi(&header).ok_or("forebay.h does not say its FOREBAY_ABI_VERSION")?;
        let version = env!("CARGO_PKG_VERSION");
        let (built, lib) = (place.target().join("dist"), prefix.join("lib"));
        let stat = "rustc --package=forebay-capi --lib --profile=dist --crate-type=staticlib";
        let soname = format!("-Clink-arg=-Wl,-soname,libforebay.so.{abi}");
        let whole = format!("libforebay.so.{version}");
        // The shared library last: then what is in the folder is the one with a name.
        for (task, file, to) in [
            (
                place.cargo("build --package=forebay-cli --profile=dist"),
                "forebay",
                prefix.join("bin/forebay"),
            ),
            (place.cargo(stat), "libforebay_capi.a", lib.join("libforebay.a")),
            (shared_library(place, "").with([soname]), "libforebay_capi.so", lib.join(&whole)),
        ] {
            dashboard.succeed(&task)?;
            copy(&built.join(file), &to)?;
        }
        link(&whole, &lib.join(format!("libforebay.so.{abi}")))?;
        link(&format!("libforebay.so.{abi}"), &lib.join("libforebay.so"))?;
        for (from, to) in FILES {
            copy(&place.root().join(from), &prefix.join(to))?;
        }
        let cmake = lib.join("cmake/forebay");
        write(&lib.join("pkgconfig/forebay.pc"), pkg_config(version))?;
        write(&cmake.join("forebay-config.cmake"), cmake_config(version, &abi))?;
        write(&cmake.join("forebay-config-version.cmake"), cmake_version(version))?;
        let shown = prefix.display();
        let path = styled(QUIET, format_args!("PKG_CONFIG_PATH={shown}/lib/pkgconfig"));
        Ok(format!("{shown}: forebay {version}, libforebay.so.{abi}\n{path}"))
    }
}

/// Builds the shared library as it is installed, with `features` beside those that it
/// always has; rustc's words come last, so more may follow. On x86-64 Linux it finds thread-local data through TLS
/// descriptors, which cost less than calls of `__tls_get_addr`; the loader has had them since glibc 2.10. Functions and
/// the blocks behind jumps are aligned: without this, the same instructions of a hot pair took up to a tenth more time
/// where the linker happened to put them elsewhere.
pub(crate) fn shared_library(place: &Workplace, features: &str) -> Task {
    let descriptors = cfg!(all(target_arch = "x86_64", target_os = "linux"));
    let descriptors = descriptors.then_some("-Cllvm-args=-enable-tlsdesc");
    let aligned =
        ["-Cllvm-args=-align-all-functions=6", "-Cllvm-args=-align-all-nofallthru-blocks=4"];
    let words = "rustc --package=forebay-capi --lib --profile=dist --crate-type=cdylib";
    place.cargo(&format!("{words} {features} --")).with(descriptors).with(aligned)
}

/// The version of the interface that a header describes.
fn abi(header: &str) -> Option<String> {
    let line = header.lines().find_map(|line| line.strip_prefix("#define FOREBAY_ABI_VERSION "))?;
    line.trim().parse::<u32>().ok().map(|number| number.to_string())
}

/// Found by where it lies, so that the folder can be moved.
fn pkg_config(version: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\nlibdir=${{prefix}}/lib\nincludedir=${{prefix}}/include\n\n\
         Name: forebay\nDescription: Memory for accelerators\nVersion: {version}\n\
         Cflags: -I${{includedir}}\nLibs: -L${{libdir}} -lforebay\nLibs.private: {SYSTEM}\n"
    )
}

/// The targets `forebay::forebay` and `forebay::static`, found by where the file lies.
fn cmake_config(version: &str, abi: &str) -> String {
    let system = SYSTEM.split(" -l").map(|name| name.trim_start_matches("-l"));
    let system: Vec<&str> = system.collect();
    format!(
        "# forebay {version}: forebay::forebay, the shared library, and forebay::static.\n\
         get_filename_component(_forebay_prefix \"${{CMAKE_CURRENT_LIST_DIR}}/../../..\" ABSOLUTE)\n\
         if(NOT TARGET forebay::forebay)\n\
         \x20 add_library(forebay::forebay SHARED IMPORTED)\n\
         \x20 set_target_properties(forebay::forebay PROPERTIES\n\
         \x20   IMPORTED_LOCATION \"${{_forebay_prefix}}/lib/libforebay.so.{version}\"\n\
         \x20   IMPORTED_SONAME \"libforebay.so.{abi}\"\n\
         \x20   INTERFACE_INCLUDE_DIRECTORIES \"${{_forebay_prefix}}/include\")\n\
         \x20 add_library(forebay::static STATIC IMPORTED)\n\
         \x20 set_target_properties(forebay::static PROPERTIES\n\
         \x20   IMPORTED_LOCATION \"${{_forebay_prefix}}/lib/libforebay.a\"\n\
         \x20   INTERFACE_INCLUDE_DIRECTORIES \"${{_forebay_prefix}}/include\"\n\
         \x20   INTERFACE_LINK_LIBRARIES \"{}\")\n\
         endif()\n\
         unset(_forebay_prefix)\n",
        system.join(";")
    )
}

/// Fits what asks for this version or an older one: of the same major, and of the same minor while the
/// major is 0.
fn cmake_version(version: &str) -> String {
    let mut parts = version.split('.');
    let (major, minor) = (parts.next().unwrap_or("0"), parts.next().unwrap_or("0"));
    let line = if major == "0" { format!("0\\\\.{minor}") } else { major.to_owned() };
    format!(
        "set(PACKAGE_VERSION \"{version}\")\n\
         if(PACKAGE_FIND_VERSION MATCHES \"^{line}(\\\\.|$)\" AND\n\
         \x20  NOT PACKAGE_FIND_VERSION VERSION_GREATER PACKAGE_VERSION)\n\
         \x20 set(PACKAGE_VERSION_COMPATIBLE TRUE)\n\
         endif()\n\
         if(PACKAGE_FIND_VERSION VERSION_EQUAL PACKAGE_VERSION)\n\
         \x20 set(PACKAGE_VERSION_EXACT TRUE)\n\
         endif()\n"
    )
}

fn link(to: &str, at: &Path) -> Result<(), String> {
    let _ = fs::remove_file(at);
    symlink(to, at).map_err(files::told(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_the_interface_is_read_from_the_header() {
        let header = files::read(&Workplace::here().root().join(FILES[0].0)).unwrap();
        assert!(abi(&header).is_some());
        assert_eq!(abi("#define FOREBAY_ABI_VERSION 3\n").as_deref(), Some("3"));
        assert_eq!(abi("#define FOREBAY_ABI_VERSION x\n"), None);
    }

    #[test]
    fn what_is_copied_is_there() {
        for (from, _) in FILES {
            assert!(Workplace::here().root().join(from).is_file(), "{from}");
        }
    }

    #[test]
    fn what_build_systems_read_names_the_library_by_where_it_lies() {
        let package = pkg_config("1.2.3");
        assert!(package.contains("prefix=${pcfiledir}/../..\n") && package.contains("-lforebay\n"));
        let config = cmake_config("1.2.3", "4");
        assert!(
            config.contains("/lib/libforebay.so.1.2.3\"") && config.contains("libforebay.so.4")
        );
        assert!(config.contains("\"gcc_s;util;rt;pthread;m;dl\""), "{config}");
        assert!(cmake_version("0.3.1").contains("MATCHES \"^0\\\\.3(\\\\.|$)\""));
        assert!(cmake_version("2.3.1").contains("MATCHES \"^2(\\\\.|$)\""));
    }
}
