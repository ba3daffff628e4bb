//! The C and C++ programs of `tests/c` and `examples`, built by the compilers that are here and run.
//!
//! ```text
//!   plain     as people build: all warnings are errors
//!   static    the same, with the library in the program
//!   address   under AddressSanitizer, which also looks for what was left
//!   thread    under ThreadSanitizer
//!   object    compiled only
//! ```
//!
//! Each runs on the host, on the simulated device, and on CUDA over the fake driver; some also on HIP over that driver,
//! and on OpenCL where a platform is installed. Where there is no compiler, or no
//! header of another library that a program is about, the cases are skipped and say so. `FOREBAY_TEST_INCLUDE` names
//! folders of such headers: of the packages `nvidia-cuda-cccl`, `nvidia-cuda-runtime`, `nvidia-cuda-crt` and `librmm`.
//! The programs in the documents are built and run as well.

mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use toolchain::{Build, InstallDir};

/// The devices a program runs on, each by the name that is its first argument.
const DEVICES: [&str; 3] = ["host", "sim", "cuda:0"];

/// A program, and how it is built.
struct Case {
    source: &'static str,
    /// Headers of other libraries that it needs.
    headers: &'static [&'static str],
    build: Build,
    /// Runs on each of them; an example on none by name.
    devices: &'static [&'static str],
}

const fn test(source: &'static str, build: Build) -> Case {
    Case { source, headers: &[], build, devices: &DEVICES }
}

/// A test with another library.
const fn adaptor(source: &'static str, headers: &'static [&'static str], build: Build) -> Case {
    Case { source, headers, build, devices: &DEVICES }
}

const THRUST: &[&str] = &["thrust/device_vector.h"];
/// Before CCCL 3, whose concepts have other names, there was no any_resource.
const CUDA_MR: &[&str] =
    &["cuda/__memory_resource/any_resource.h", "cuda_runtime_api.h", "crt/host_defines.h"];
const RMM: &[&str] = &["rmm/resource_ref.hpp", "cuda_runtime_api.h", "crt/host_defines.h"];

const fn example(source: &'static str, build: Build) -> Case {
    Case { source, headers: &[], build, devices: &[] }
}

/// What else runs on the devices of other drivers, as people build.
const ON_OTHERS: [&str; 3] = ["tests/c/tour.c", "tests/c/buffers.c", "tests/c/transfers.c"];
const OTHERS: [&[&str]; 2] = [&["hip:0"], &["opencl:0"]];

/// Why a device cannot be had, if it cannot.
fn missing(device: &str) -> Option<String> {
    // The others are made of the fake driver or need none.
    let is_there = !device.starts_with("opencl") || forebay::devices::open(device).is_ok();
    (!is_there)
        .then(|| format!("there is no {device} here; \"apt install pocl-opencl-icd\" gets one"))
}

/// Every case. What shares nothing between threads is not worth a look for races, and what forks is
/// beyond ThreadSanitizer.
const CASES: [Case; 45] = [
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
    test("tests/c/buffers.c", Build::Plain),
    test("tests/c/buffers.c", Build::Address),
    test("tests/c/buffers.c", Build::Thread),
    test("tests/c/transfers.c", Build::Plain),
    test("tests/c/transfers.c", Build::Address),
    test("tests/c/transfers.c", Build::Thread),
    test("tests/c/shared.c", Build::Plain),
    test("tests/c/shared.c", Build::Address),
    test("tests/c/shared.c", Build::Thread),
    test("tests/c/transfers.cpp", Build::Address),
    test("tests/c/transfers.cpp", Build::Thread),
    test("tests/c/owners.cpp", Build::Address),
    test("tests/c/owners.cpp", Build::Thread),
    test("tests/c/signals.c", Build::Plain),
    test("tests/c/abi.cpp", Build::Plain),
    adaptor("tests/c/thrust.cpp", THRUST, Build::Plain),
    adaptor("tests/c/thrust.cpp", THRUST, Build::Address),
    adaptor("tests/c/cuda_mr.cpp", CUDA_MR, Build::Address),
    adaptor("tests/c/rmm.cpp", RMM, Build::Object),
    adaptor("tests/c/thrust_cuda.cu", CUDA_MR, Build::Object),
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
    example("examples/05_unified_buffers.cpp", Build::Plain),
    example("examples/05_unified_buffers.cpp", Build::Address),
    example("examples/05_unified_buffers.cpp", Build::Thread),
];

/// Builds a program and runs it on its devices.
fn run(case: &Case, place: &InstallDir) -> Result<Completion, Failed> {
    let found = toolchain::look_for(case.build, case.source);
    if let Err(reason) = found.and_then(|()| toolchain::look_for_headers(case.headers)) {
        return Ok(Completion::ignored_with(reason));
    }
    if let Some(reason) = case.devices.iter().find_map(|device| missing(device)) {
        return Ok(Completion::ignored_with(reason));
    }
    let folder = tempfile::tempdir()?;
    let program = toolchain::build(place, case.source, case.headers, case.build, folder.path())?;
    if case.build == Build::Object {
        return Ok(Completion::Completed);
    }
    let alone: &[&str] = &[""];
    for device in if case.devices.is_empty() { alone } else { case.devices } {
        toolchain::run(place, &program, device, case.build, folder.path())?;
    }
    Ok(Completion::Completed)
}

/// A program whose `main` has this body must not be taken, and the compiler says one of these words.
fn is_not_taken(place: &InstallDir, body: &str, words: &[&str]) -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let body = format!("#include <forebay.h>\nint main(void) {{\n    {body}\n}}\n");
    for (name, compiler) in [("wrong.c", Build::Plain), ("wrong.cpp", Build::Plain)] {
        let source = folder.path().join(name);
        std::fs::write(&source, &body)?;
        let source = source.to_str().ok_or("a folder whose name is not text")?;
        if let Err(reason) = toolchain::look_for(compiler, source) {
            return Ok(Completion::ignored_with(reason));
        }
        match toolchain::build(place, source, &[], compiler, folder.path()) {
            Ok(_) => return Err(format!("{name} was taken").into()),
            Err(said) if words.iter().any(|word| said.contains(word)) => {}
            Err(said) => return Err(said.into()),
        }
    }
    Ok(Completion::Completed)
}

/// Builds and runs the programs of a document: its blocks of C or C++ that have a `main`.
fn documented_programs(document: &str, place: &InstallDir) -> Result<Completion, Failed> {
    let path = crate_folder().join("../../docs").join(document);
    let Ok(text) = std::fs::read_to_string(&path) else {
        return Ok(Completion::ignored_with(format!("there is no {} here", path.display())));
    };
    let blocks = text.split("\n```").filter_map(|block| block.split_once('\n'));
    let mut found = 0;
    for (language, body) in blocks.filter(|(_, body)| body.contains("int main(")) {
        let name = match language {
            "c" | "cpp" => format!("program.{language}"),
            other => return Err(format!("{document}: a program in {other:?}").into()),
        };
        found += 1;
        let folder = tempfile::tempdir()?;
        let source = folder.path().join(name);
        std::fs::write(&source, body)?;
        let source = source.to_str().ok_or("a folder whose name is not text")?;
        if let Err(reason) = toolchain::look_for(Build::Plain, source) {
            return Ok(Completion::ignored_with(reason));
        }
        let program = toolchain::build(place, source, &[], Build::Plain, folder.path())?;
        toolchain::run(place, &program, "", Build::Plain, folder.path())?;
    }
    if found == 0 {
        Err(format!("{document}: no program").into())
    } else {
        Ok(Completion::Completed)
    }
}

fn main() -> ExitCode {
    let mut trials = Vec::new();
    for case in CASES {
        let stem = Path::new(case.source).file_name().and_then(|name| name.to_str());
        let title = format!("{}_{}", stem.unwrap_or(case.source), case.build.name());
        trials.push(Trial::ignorable_test(title, move || run(&case, &InstallDir::here()?)));
    }
    for (source, devices) in ON_OTHERS.into_iter().flat_map(|source| OTHERS.map(|on| (source, on)))
    {
        let case = Case { source, headers: &[], build: Build::Plain, devices };
        let stem = source.rsplit('/').next().unwrap_or(source);
        let title = format!("{stem}_on_{}", devices.join("_"));
        trials.push(Trial::ignorable_test(title, move || run(&case, &InstallDir::here()?)));
    }
    trials.push(Trial::ignorable_test("a_device_is_not_taken_for_a_pool", || {
        let body = "forebay_device device = {0}; return forebay_pool_close(device, NULL);";
        is_not_taken(&InstallDir::here()?, body, &["forebay_pool_close", "forebay_device"])
    }));
    trials.push(Trial::ignorable_test("a_status_of_an_allocation_is_not_ignored", || {
        let body = "forebay_pool pool = {0}; forebay_stream stream = {0}; void *block = NULL; \
                    forebay_alloc(pool, 512, stream, &block); return block == NULL;";
        is_not_taken(
            &InstallDir::here()?,
            body,
            &["warn_unused_result", "nodiscard", "-Wunused-result"],
        )
    }));
    for document in ["c.md", "cpp.md"] {
        let title = format!("programs_of_{document}");
        trials.push(Trial::ignorable_test(title, move || {
            documented_programs(document, &InstallDir::here()?)
        }));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// The folder of this crate.
fn crate_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
