//! The C and C++ programs of `tests/c` and `examples`, built by the compilers that are here and run.
//!
//! ```text
//!   plain     as people build: all warnings are errors
//!   static    the same, with the library in the program
//!   address   under AddressSanitizer, which also looks for what was left
//!   thread    under ThreadSanitizer
//! ```
//!
//! Each runs on the host, on the simulated device, and on CUDA over the fake driver. Where
//! there is no compiler the cases are skipped and say so.

mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use toolchain::{Build, Place};

/// The devices a program runs on, each by the name that is its first argument.
const DEVICES: [&str; 3] = ["host", "sim", "cuda:0"];

/// A program, and how it is built.
struct Case {
    source: &'static str,
    build: Build,
    /// Runs on each of them; an example on none by name.
    devices: &'static [&'static str],
}

const fn test(source: &'static str, build: Build) -> Case {
    Case { source, build, devices: &DEVICES }
}

const fn example(source: &'static str, build: Build) -> Case {
    Case { source, build, devices: &[] }
}

/// Every case. What shares nothing between threads is not worth a look for races, and what forks is
/// beyond ThreadSanitizer.
const CASES: [Case; 24] = [
    test("tests/c/tour.c", Build::Plain),
    test("tests/c/tour.c", Build::Static),
    test("tests/c/tour.c", Build::Address),
    test("tests/c/wrong_use.c", Build::Plain),
    test("tests/c/wrong_use.c", Build::Address),
    test("tests/c/forked.c", Build::Plain),
    test("tests/c/forked.c", Build::Address),
    test("tests/c/threads.c", Build::Plain),
    test("tests/c/threads.c", Build::Address),
    test("tests/c/threads.c", Build::Thread),
    test("tests/c/owners.cpp", Build::Address),
    test("tests/c/owners.cpp", Build::Thread),
    example("examples/01_first_block.c", Build::Plain),
    example("examples/01_first_block.c", Build::Address),
    example("examples/01_first_block.c", Build::Thread),
    example("examples/02_streams.c", Build::Plain),
    example("examples/02_streams.c", Build::Address),
    example("examples/02_streams.c", Build::Thread),
    example("examples/03_limits_and_tags.c", Build::Plain),
    example("examples/03_limits_and_tags.c", Build::Address),
    example("examples/03_limits_and_tags.c", Build::Thread),
    example("examples/04_buffers_and_arenas.cpp", Build::Plain),
    example("examples/04_buffers_and_arenas.cpp", Build::Address),
    example("examples/04_buffers_and_arenas.cpp", Build::Thread),
];

/// Builds a program and runs it on its devices.
fn run(case: &Case, place: &Place) -> Result<Completion, Failed> {
    if let Err(reason) = toolchain::look_for(case.build, case.source) {
        return Ok(Completion::ignored_with(reason));
    }
    let folder = tempfile::tempdir()?;
    let program = toolchain::build(place, case.source, case.build, folder.path())?;
    let alone: &[&str] = &[""];
    for device in if case.devices.is_empty() { alone } else { case.devices } {
        toolchain::run(place, &program, device, case.build, folder.path())?;
    }
    Ok(Completion::Completed)
}

/// A program that must not be taken: handles of one kind are none of another.
fn kinds_are_told_apart(place: &Place) -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let body = "#include <forebay.h>\nint main(void) {\n    forebay_device device = {0};\n    \
                return forebay_pool_close(device, NULL);\n}\n";
    for (name, compiler) in [("kinds.c", Build::Plain), ("kinds.cpp", Build::Plain)] {
        let source = folder.path().join(name);
        std::fs::write(&source, body)?;
        let source = source.to_str().ok_or("a folder whose name is not text")?;
        if let Err(reason) = toolchain::look_for(compiler, source) {
            return Ok(Completion::ignored_with(reason));
        }
        match toolchain::build(place, source, compiler, folder.path()) {
            Ok(_) => return Err(format!("{name}: a device was taken for a pool").into()),
            Err(said) if said.contains("forebay_pool_close") || said.contains("forebay_device") => {
            }
            Err(said) => return Err(said.into()),
        }
    }
    Ok(Completion::Completed)
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for case in CASES {
        let stem = Path::new(case.source).file_name().and_then(|name| name.to_str());
        let title = format!("{}_{}", stem.unwrap_or(case.source), case.build.name());
        trials.push(Trial::ignorable_test(title, move || run(&case, &Place::here()?)));
    }
    let title = "a_device_is_not_taken_for_a_pool";
    trials.push(Trial::ignorable_test(title, || kinds_are_told_apart(&Place::here()?)));
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The folder of this crate.
fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
