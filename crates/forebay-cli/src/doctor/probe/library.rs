//! Finds a shared library where the loader would, without loading it: loading a library runs its code, and a probe must
//! change nothing.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use forebay_host::system::System;

use super::Environment;

/// The loader's configuration.
const CONFIGURATION: &str = "/etc/ld.so.conf";

/// How deep one configuration file may include another; deeper is a circle.
const MAX_INCLUDES: u8 = 4;

/// Where the loaders of the common distributions look without being told.
const STANDARD: &[&str] = &["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"];

/// Where the loader's multiarch distributions look, and where drivers put themselves without
/// telling the loader.
#[cfg(target_arch = "x86_64")]
const MULTIARCH: &[&str] = &["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu"];
#[cfg(target_arch = "aarch64")]
const MULTIARCH: &[&str] = &["/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const MULTIARCH: &[&str] = &[];

/// Finds libraries on one machine.
#[derive(Clone, Debug)]
pub(super) struct Libraries<'a> {
    system: &'a System,
    directories: Vec<PathBuf>,
}

impl<'a> Libraries<'a> {
    /// Looks in the loader's directories, in its order.
    pub(super) fn of(system: &'a System, environment: &Environment) -> Self {
        let mut directories = environment.library_path();
        configured(system, Path::new(CONFIGURATION), MAX_INCLUDES, &mut directories);
        directories.extend(STANDARD.iter().chain(MULTIARCH).map(PathBuf::from));
        Self { system, directories }
    }

    /// The same, and then in `directory`.
    pub(super) fn and_in(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directories.push(directory.into());
        self
    }

    /// The first library with one of `names` that this process could load.
    pub(super) fn find(&self, names: &[&str]) -> Option<PathBuf> {
        let directories = self.directories.iter();
        directories
            .flat_map(|directory| names.iter().map(move |name| directory.join(name)))
            .find(|path| is_library(&self.system.place(path)))
    }
}

/// Adds the directories of the configuration file `path` and of those it includes.
fn configured(system: &System, path: &Path, includes_left: u8, directories: &mut Vec<PathBuf>) {
    let Ok(text) = system.text(path) else { return };
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        match line.strip_prefix("include").filter(|rest| rest.starts_with(char::is_whitespace)) {
            Some(patterns) if includes_left > 0 => {
                for pattern in patterns.split_whitespace() {
                    for file in matching(system, pattern) {
                        configured(system, &file, includes_left - 1, directories);
                    }
                }
            }
            Some(_) => {}
            None if line.starts_with('/') => directories.push(PathBuf::from(line)),
            None => {}
        }
    }
}

/// The files that `pattern` names: a path with at most one `*`, in its last part, as the
/// distributions write it.
fn matching(system: &System, pattern: &str) -> Vec<PathBuf> {
    let pattern = Path::new(pattern);
    let (Some(directory), Some(name)) = (pattern.parent(), pattern.file_name()) else {
        return Vec::new();
    };
    let name = name.to_string_lossy();
    let Some((before, after)) = name.split_once('*') else { return vec![pattern.to_owned()] };
    let names = system.names(directory).unwrap_or_default();
    let fits = |name: &&String| name.strip_prefix(before).is_some_and(|rest| rest.ends_with(after));
    names.iter().filter(fits).map(|name| directory.join(name)).collect()
}

/// Whether `path` is a library for programs of this word size: the 32-bit twin of a driver, or a
/// link to one that was removed, is none.
fn is_library(path: &Path) -> bool {
    const ELF_OF_THIS_SIZE: [u8; 5] =
        [0x7f, b'E', b'L', b'F', if cfg!(target_pointer_width = "64") { 2 } else { 1 }];
    let mut head = [0; ELF_OF_THIS_SIZE.len()];
    // A device or a pipe of that name is not opened: reading one may wait for ever.
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut head)).is_ok()
        && head == ELF_OF_THIS_SIZE
}
