//! The kernels, compiled as plain C and run under sanitizers and as OpenCL C: the one that decodes LZ4 blocks against
//! `lz4_flex`, and the one that copies against a loop.
//!
//! ```text
//!   address      one lane, under AddressSanitizer: no access is out of bounds, whatever the input
//!   lanes        four lanes, each a thread, likewise
//!   thread       four lanes under ThreadSanitizer: no lane reads a byte that another is writing
//!   opencl       a work group of 32 lanes, by whatever OpenCL there is
//!   copy, warp   one lane and 32 of the kernel that copies, under AddressSanitizer
//! ```
//!
//! Where there is no C compiler, no sanitizer or no OpenCL, the cases are skipped and say so.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cases;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, OnceLock};

use cases::Launch;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// How the kernel is compiled, and with how many lanes.
#[derive(Clone, Copy)]
struct Build {
    name: &'static str,
    source: &'static str,
    /// Runs where the build does.
    probe: &'static str,
    words: &'static [&'static str],
    lanes: u32,
}

const EMPTY: &str = "int main(void) { return 0; }\n";
const ADDRESS: &[&str] = &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
const PLATFORM: &str = "#define CL_TARGET_OPENCL_VERSION 120\n#include <CL/cl.h>\nint main(void) {\
     cl_uint count = 0; return clGetPlatformIDs(0, NULL, &count) != CL_SUCCESS || count == 0; }\n";

const BUILDS: [Build; 4] = [
    Build { name: "address", source: "lz4.c", probe: EMPTY, words: ADDRESS, lanes: 1 },
    Build { name: "lanes", source: "lz4.c", probe: EMPTY, words: ADDRESS, lanes: 4 },
    Build {
        name: "thread",
        source: "lz4.c",
        probe: EMPTY,
        words: &["-fsanitize=thread"],
        lanes: 4,
    },
    Build {
        name: "opencl",
        source: "lz4_opencl.c",
        probe: PLATFORM,
        words: &["-lOpenCL"],
        lanes: 32,
    },
];

const COPY_BUILDS: [Build; 2] = [
    Build { name: "copy", source: "copy.c", probe: EMPTY, words: ADDRESS, lanes: 1 },
    Build { name: "warp", source: "copy.c", probe: EMPTY, words: ADDRESS, lanes: 32 },
];

/// What is tried, and whether the threads are few enough for it to be quick with several lanes.
type Subject = (&'static str, fn() -> Vec<Launch>, bool);

const SUBJECTS: [Subject; 7] = [
    ("short data of every kind comes back", cases::short_data, true),
    ("blocks of data of every kind come back", cases::whole_blocks, false),
    ("input truncated at any byte is refused", cases::truncations, true),
    ("every changed bit is noticed or decoded as lz4_flex does", cases::bit_flips, false),
    ("garbage is refused or decoded as lz4_flex does", cases::garbage, false),
    ("matches of every offset and length repeat bytes", cases::matches, true),
    ("tables that point elsewhere are refused", cases::tables, true),
];

/// Compiles C of the tests; else what the compiler said.
fn compile(build: Build, source: &Path, program: &Path) -> Result<(), String> {
    let compiler = std::env::var("CC").ok().filter(|name| !name.is_empty());
    let mut command = Command::new(compiler.unwrap_or_else(|| "gcc".to_owned()));
    command.args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]);
    let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/lz4.c");
    command.arg(format!("-DKERNEL_SOURCE=\"{}\"", kernel.display()));
    command.arg(format!("-DLANES={}u", build.lanes)).arg(source).arg("-o").arg(program);
    command.args(build.words);
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = || format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(()).ok_or_else(said)
}

/// Whether there is what the build needs; else the reason.
fn look_for(build: Build, folder: &Path) -> Result<(), String> {
    let program = folder.join(format!("{}-probe", build.name));
    let source = program.with_extension("c");
    std::fs::write(&source, build.probe).map_err(|error| error.to_string())?;
    let runs = compile(build, &source, &program).is_ok()
        && Command::new(&program).output().is_ok_and(|output| output.status.success());
    let words = build.words.join(" ");
    runs.then_some(()).ok_or_else(|| format!("the C compiler makes no programs with {words} here"))
}

/// Runs launches in one process and compares each with what `lz4_flex` makes of it.
fn run(program: &Path, launches: Vec<Launch>) -> Result<Completion, Failed> {
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let input: Vec<u8> = launches.iter().flat_map(Launch::to_bytes).collect();
    // It writes while it reads. If it ends early, what it wrote is short.
    let writer = std::thread::spawn(move || drop(to.write_all(&input)));
    let mut results = Vec::new();
    from.read_to_end(&mut results)?;
    let status = child.wait()?;
    writer.join().map_err(|_| "the writer panicked")?;
    if !status.success() {
        return Err(format!("the harness ended with {status}; it says why above").into());
    }
    let mut rest = &results[..];
    for (number, launch) in launches.iter().enumerate() {
        let wrong = |reason| format!("launch {number}: {reason}\n{launch:?}");
        rest = launch.compare(rest).map_err(wrong)?;
    }
    if rest.is_empty() {
        Ok(Completion::Completed)
    } else {
        Err("more results than asked for".into())
    }
}

/// Runs a harness that makes its own cases.
fn run_alone(program: &Path) -> Result<Completion, Failed> {
    let output = Command::new(program).output()?;
    let said = || format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into();
    output.status.success().then_some(Completion::Completed).ok_or_else(said)
}

/// What became of a harness.
enum Harness {
    Built(PathBuf),
    /// Why it cannot be built here.
    Missing(String),
    /// What the compiler said.
    Broken(String),
}

/// Compiles the harness of a build.
fn harness(build: Build, folder: &Path) -> Harness {
    if let Err(reason) = look_for(build, folder) {
        return Harness::Missing(reason);
    }
    let program = folder.join(build.name);
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel_sources");
    match compile(build, &sources.join(build.source), &program) {
        Ok(()) => Harness::Built(program),
        Err(said) => Harness::Broken(said),
    }
}

/// Adds trials with a harness. The first that runs compiles it: some runners start this program for each trial.
fn add_trials<Case: FnOnce(&Path) -> Result<Completion, Failed> + Send + 'static>(
    trials: &mut Vec<Trial>,
    build: Build,
    folder: &Path,
    cases: impl Iterator<Item = (&'static str, Case)>,
) {
    let made = Arc::new(OnceLock::new());
    trials.extend(cases.map(|(subject, case)| {
        let (made, folder) = (Arc::clone(&made), folder.to_owned());
        Trial::ignorable_test(format!("{}: {subject}", build.name), move || {
            match made.get_or_init(|| harness(build, &folder)) {
                Harness::Built(program) => case(program),
                Harness::Missing(reason) => {
                    Ok(Completion::ignored_with(format!("skipped: {reason}")))
                }
                Harness::Broken(said) => Err(said.into()),
            }
        })
    }));
}

fn main() -> ExitCode {
    let folder = tempfile::tempdir().unwrap();
    let mut trials = Vec::new();
    for build in BUILDS {
        let subjects =
            SUBJECTS.into_iter().filter(|(_, _, is_short)| build.lanes == 1 || *is_short);
        let cases = subjects.map(|(subject, launches, _)| {
            (subject, move |program: &Path| run(program, launches()))
        });
        add_trials(&mut trials, build, folder.path(), cases);
    }
    for build in COPY_BUILDS {
        let case = ("pieces of every size and alignment are copied", run_alone);
        add_trials(&mut trials, build, folder.path(), [case].into_iter());
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
