//! The kernels, compiled as C++ and run under sanitizers on random shapes. Metal's own compiler has never seen them.
//!
//! Where there is no C++ compiler, or no sanitizer, the case is skipped and says so.

use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

const WORDS: [&str; 7] = [
    "-std=c++17",
    "-O1",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
];

/// Compiles a source; else what the compiler said.
fn compile(source: &Path, program: &Path, words: &[String]) -> Result<(), String> {
    let compiler = std::env::var("CXX").ok().filter(|name| !name.is_empty());
    let mut command = Command::new(compiler.unwrap_or_else(|| "g++".to_owned()));
    // Attributes such as [[buffer(0)]] are Metal's.
    command.args(WORDS).arg("-Wno-attributes").args(words).arg(source).arg("-o").arg(program);
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = || format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then_some(()).ok_or_else(said)
}

fn copies_and_fills() -> Result<Completion, Failed> {
    let folder = tempfile::tempdir()?;
    let (probe, program) = (folder.path().join("probe.cpp"), folder.path().join("program"));
    std::fs::write(&probe, "int main() { return 0; }\n")?;
    let runs = |program: &Path| Command::new(program).output();
    let can = compile(&probe, &program, &[]).is_ok()
        && runs(&program).is_ok_and(|output| output.status.success());
    if !can {
        let reason = format!("skipped: no C++ compiler makes programs with {}", WORDS.join(" "));
        return Ok(Completion::ignored_with(reason));
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kernels = root.join("src/kernels.metal");
    let here = root.join("tests/kernel_source");
    let words =
        [format!("-DKERNEL_SOURCE=\"{}\"", kernels.display()), format!("-I{}", here.display())];
    compile(&here.join("main.cpp"), &program, &words)?;
    let output = runs(&program)?;
    let said = || format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr)).into();
    output.status.success().then_some(Completion::Completed).ok_or_else(said)
}

fn main() -> ExitCode {
    let name = "copies_and_fills_write_every_byte_of_the_shape_and_no_other";
    let trial = Trial::ignorable_test(name, copies_and_fills);
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}
