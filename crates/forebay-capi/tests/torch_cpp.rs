//! The entry points for PyTorch, called by C++ with the types that PyTorch calls them with: what a pair, a
//! `std::function` and an exception are to a compiler is not ours to say. Needs `g++`, or `c++`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// Each in a process of its own: pools are the whole process's. With the settings it runs under.
const CASES: [(&str, &str); 7] = [
    ("thrown", ""),
    ("no_way_to_throw", ""),
    ("captured", ""),
    ("filter_throws", ""),
    ("capture_refused", "poison:on"),
    ("hooks", ""),
    ("threads", ""),
];

/// Where cargo has put a library: beside the test, or a folder up.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folders = test.ancestors().skip(1).take(2);
    let mut paths = folders.map(|folder| folder.join(name));
    paths.find(|path| path.exists()).unwrap()
}

fn compiler() -> Option<&'static str> {
    let works = |name: &&str| Command::new(name).arg("--version").output().is_ok();
    ["g++", "c++"].into_iter().find(works)
}

fn compile(with: &str, arguments: &[&Path], options: &[&str]) -> Result<(), String> {
    let mut made = Command::new(with);
    made.args(["-std=c++17", "-O1", "-Wall"]).args(arguments).args(options);
    let made = made.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&made.stderr).into_owned();
    made.status.success().then_some(()).ok_or(said)
}

/// The program and the library with the errors' classes. A test runner may start a process for each case: the
/// first one compiles, the others wait for it and use the same files, which are named after what they are made
/// of.
fn program(with: &str) -> Result<(PathBuf, PathBuf), String> {
    let told = |error: std::io::Error| error.to_string();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cpp");
    let mut hasher = DefaultHasher::new();
    Command::new(with).arg("--version").output().map_err(told)?.stdout.hash(&mut hasher);
    for name in ["c10.cpp", "c10.h", "torch_abi.cpp"] {
        std::fs::read(sources.join(name)).map_err(told)?.hash(&mut hasher);
    }
    let folder = format!("torch_cpp-{:016x}", hasher.finish());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).map_err(told)?;
    let (classes, program) = (folder.join("libc10_fake.so"), folder.join("torch_abi"));
    let lock = File::create(folder.join("lock")).map_err(told)?;
    lock.lock().map_err(told)?;
    let finished = folder.join("finished");
    if !finished.exists() {
        let output = Path::new("-o");
        let parts = [&*sources.join("c10.cpp"), output, &*classes];
        compile(with, &parts, &["-shared", "-fPIC"])?;
        let parts = [&*sources.join("torch_abi.cpp"), &*classes, output, &*program];
        compile(with, &parts, &["-ldl", "-pthread", "-Wl,-rpath,$ORIGIN"])?;
        File::create(finished).map_err(told)?;
    }
    Ok((program, classes))
}

fn run(program: &Path, classes: &Path, case: &str, settings: &str) -> Result<Completion, Failed> {
    let driver = built("libforebay_cuda_fake_driver.so");
    let mut command = Command::new(program);
    command.arg(built("libforebay_capi.so")).arg(&driver).arg(classes).arg(case);
    command.env("FOREBAY_CUDA_DRIVER", &driver).env("FOREBAY_CONF", settings);
    let ran = command.output()?;
    if ran.status.success() {
        return Ok(Completion::Completed);
    }
    let (said, complained) = (ran.stdout, ran.stderr);
    let said = [said, complained].map(|text| String::from_utf8_lossy(&text).into_owned());
    Err(Failed::from(format!("{}: {}", ran.status, said.concat())))
}

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let made = match compiler() {
        None => {
            let skip = || Ok(Completion::ignored_with("skipped: there is no compiler of C++"));
            return libtest_mimic::run(&arguments, vec![Trial::ignorable_test("torch_cpp", skip)])
                .exit_code();
        }
        Some(_) if arguments.list => None,
        Some(with) => Some(program(with)),
    };
    let trials = CASES.iter().map(|&(case, settings)| {
        let made = made.clone();
        Trial::ignorable_test(case, move || match made {
            Some(Ok((program, classes))) => run(&program, &classes, case, settings),
            Some(Err(reason)) => Err(Failed::from(reason)),
            None => Ok(Completion::Completed),
        })
    });
    let trials = trials.collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}
