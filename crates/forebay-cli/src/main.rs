//! The `forebay` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    forebay_cli::run(std::env::args_os())
}
