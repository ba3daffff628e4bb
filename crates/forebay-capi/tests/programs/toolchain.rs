//! The compilers that are here, and what they make.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long a program may run: the longest takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);

/// How a program is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// As people build.
    Plain,
    /// With the library in the program.
    Static,
    /// Under AddressSanitizer.
    Address,
    /// Under ThreadSanitizer.
    Thread,
    /// Compiled, and neither linked nor run.
    Object,
}

impl Build {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Static => "static",
            Self::Address => "address_sanitizer",
            Self::Thread => "thread_sanitizer",
            Self::Object => "object",
        }
    }

    const fn words(self) -> &'static [&'static str] {
        match self {
            Self::Plain | Self::Static => &[],
            Self::Address => &["-fsanitize=address"],
            Self::Thread => &["-fsanitize=thread"],
            Self::Object => &["-c"],
        }
    }
}

/// Where the libraries are.
pub(crate) struct InstallDir {
    libraries: PathBuf,
    /// The CUDA driver without a GPU, and HIP over it.
    fake: PathBuf,
    bridge: PathBuf,
}

impl InstallDir {
    /// Beside this test, or a folder up: where cargo has put them.
    pub(crate) fn here() -> Result<Self, String> {
        let test = std::env::current_exe().map_err(|error| error.to_string())?;
        let find = |name: &str| {
            let mut folders = test.ancestors().skip(1).take(2).map(|folder| folder.join(name));
            let found = folders.find(|path| path.exists());
            found.ok_or_else(|| format!("there is no {name} beside {}", test.display()))
        };
        let library = find("libforebay_capi.so")?;
        find("libforebay_capi.a")?;
        let libraries = library.parent().map(Path::to_owned).unwrap_or_default();
        let fake = find("libforebay_cuda_fake_driver.so")?;
        Ok(Self { libraries, fake, bridge: find("libforebay_hip_bridge.so")? })
    }
}

/// What every compiler but that of CUDA is told.
const WARNINGS: &[&str] = &["-Wall", "-Wextra", "-Werror", "-pedantic"];

/// The compiler of a source, and its words: the standard, and that every warning is an error.
fn compiler_of(source: &str) -> (String, &'static str, &'static [&'static str]) {
    let chosen = |variable: &str, usual: &str| {
        std::env::var(variable).ok().filter(|name| !name.is_empty()).unwrap_or(usual.to_owned())
    };
    if source.ends_with(".cu") {
        let warnings = &["-Werror=all-warnings", "-Xcompiler=-Wall,-Wextra,-Werror"];
        (chosen("NVCC", "nvcc"), "-std=c++17", warnings)
    } else if source.ends_with(".cpp") {
        (chosen("CXX", "g++"), "-std=c++17", WARNINGS)
    } else {
        (chosen("CC", "gcc"), "-std=c11", WARNINGS)
    }
}

/// Names folders of headers, as `PATH` names folders of programs. They are searched before the usual places.
const INCLUDE_VARIABLE: &str = "FOREBAY_TEST_INCLUDE";

/// Where headers of other libraries may be.
pub(crate) fn include_folders() -> Vec<PathBuf> {
    let named = std::env::var_os(INCLUDE_VARIABLE).unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&named).collect();
    let toolkits = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os);
    for toolkit in toolkits.map(PathBuf::from).chain([PathBuf::from("/usr/local/cuda")]) {
        folders.extend([toolkit.join("include/cccl"), toolkit.join("include")]);
    }
    folders.retain(|folder| folder.is_absolute() && folder.is_dir());
    folders
}

/// Whether these headers are all here; else the reason.
pub(crate) fn look_for_headers(headers: &[&str]) -> Result<(), String> {
    let folders = include_folders();
    match headers.iter().find(|header| !folders.iter().any(|folder| folder.join(header).is_file()))
    {
        Some(header) => {
            Err(format!("there is no <{header}> here; {INCLUDE_VARIABLE} names folders of headers"))
        }
        None => Ok(()),
    }
}

/// Whether there is a compiler for it, and what it would need is there too; else the reason.
pub(crate) fn look_for(build: Build, source: &str) -> Result<(), String> {
    let (compiler, ..) = compiler_of(source);
    let answer = Command::new(&compiler).arg("--version").stdin(Stdio::null()).output();
    if !answer.is_ok_and(|output| output.status.success()) {
        return Err(format!("there is no {compiler} here; CC, CXX and NVCC name others"));
    }
    if matches!(build, Build::Plain | Build::Static | Build::Object) {
        return Ok(());
    }
    // A compiler may know a sanitizer whose library is not installed.
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let probe = folder.path().join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").map_err(|error| error.to_string())?;
    let program = folder.path().join("probe");
    let linked =
        Command::new(&compiler).args(build.words()).arg(&probe).arg("-o").arg(&program).output();
    let runs = linked.is_ok_and(|output| output.status.success())
        && Command::new(&program).output().is_ok_and(|output| output.status.success());
    let name = build.name();
    runs.then_some(()).ok_or_else(|| format!("{compiler} here makes no programs with {name}"))
}

/// Builds a program, with every warning an error; else what the compiler said.
pub(crate) fn build(
    place: &InstallDir,
    source: &str,
    headers: &[&str],
    build: Build,
    folder: &Path,
) -> Result<PathBuf, String> {
    let (compiler, standard, warnings) = compiler_of(source);
    let here = super::crate_folder();
    let program = folder.join("program");
    let mut command = Command::new(&compiler);
    command.args([standard, "-O1", "-g"]).args(warnings);
    command.args(build.words()).arg("-I").arg(here.join("include"));
    if !headers.is_empty() {
        // Their warnings are not ours.
        command.args(
            include_folders().iter().flat_map(|folder| ["-isystem".as_ref(), folder.as_os_str()]),
        );
    }
    command.arg(here.join(source)).arg("-o").arg(&program);
    if build == Build::Static {
        command.arg(place.libraries.join("libforebay_capi.a"));
        command.args(["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl"]);
    } else if build != Build::Object {
        command.arg("-L").arg(&place.libraries).args(["-lforebay_capi", "-lpthread", "-ldl"]);
        command.arg(format!("-Wl,-rpath,{}", place.libraries.display()));
    }
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(program) } else { Err(said(source, &output)) }
}

/// Runs a program on a device; else what it said.
pub(crate) fn run(
    place: &InstallDir,
    program: &Path,
    device: &str,
    build: Build,
    folder: &Path,
) -> Result<(), String> {
    let told = |error: std::io::Error| error.to_string();
    let mut command = Command::new(program);
    if !device.is_empty() {
        command.arg(device).arg(folder);
    }
    // Settings of whoever runs the tests are not theirs.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FOREBAY_") {
            command.env_remove(name);
        }
    }
    // Cargo's own, which has a library of another build in it.
    command.env_remove("LD_LIBRARY_PATH");
    // An example runs on the best device; that of a driver is there only where it is named.
    let none = folder.join("no-driver.so");
    let is = |kind: &str| device.starts_with(kind);
    command.env("FOREBAY_CUDA_DRIVER", if is("cuda") || is("hip") { &place.fake } else { &none });
    command.env("FOREBAY_HIP_DRIVER", if is("hip") { &place.bridge } else { &none });
    if !is("opencl") {
        command.env("OCL_ICD_VENDORS", folder.join("no-platforms"));
    }
    if build == Build::Address {
        // The driver's library is loaded once and never given back; and a thread that is just ending
        // cannot be looked at. Whole stacks, or the names are not seen. The driver's part by its module,
        // and by its file where the library has no names of what was inlined.
        let kept = folder.join("kept");
        let names = "leak:forebay_cuda::driver\nleak:forebay-cuda/src/driver\n\
                     leak:__cxa_thread_atexit_impl\n";
        std::fs::write(&kept, names).map_err(told)?;
        command.env("ASAN_OPTIONS", "detect_leaks=1:fast_unwind_on_malloc=0");
        let options = format!("suppressions={}:print_suppressions=0", kept.display());
        command.env("LSAN_OPTIONS", options);
    }
    if build == Build::Thread {
        // The library itself is built without instruments: what it does under its own locks looks like
        // a race to who does not see them. What the program does is looked at.
        command.env("TSAN_OPTIONS", "ignore_noninstrumented_modules=1");
    }
    let (out, log) = (folder.join("output"), |path: &Path| std::fs::File::create(path));
    let file = log(&out).map_err(told)?;
    command.current_dir(folder).stdin(Stdio::null());
    command.stdout(file.try_clone().map_err(told)?).stderr(file);
    let mut child = command.spawn().map_err(told)?;
    let started = Instant::now();
    let ending = loop {
        match child.try_wait().map_err(told)? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => break status.to_string(),
            None if started.elapsed() > LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                break format!("it ran longer than {} s", LIMIT.as_secs());
            }
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let output = std::fs::read_to_string(&out).unwrap_or_default();
    Err(format!("{} {device}: {ending}\n{output}", program.display()))
}

fn said(what: &str, output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    format!("{what}: the compiler ended with {}\n{text}", output.status)
}
