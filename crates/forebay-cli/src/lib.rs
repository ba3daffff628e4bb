//! The `forebay` command as a library, so that tests reach its parts.
//!
//! ```text
//!   forebay doctor [TRACE]             check devices, limits and settings; say how to fix problems
//!   forebay demo                       show what forebay does, on a recorded run
//!   forebay replay TRACE...            compare allocators on recorded runs; "-" is standard input
//!   forebay fit TRACE...               find the smallest device on which recorded runs go through
//!   forebay report TRACE               show what happened to memory, as a page for a browser
//!   forebay bench alloc [WORKLOAD...]  time named workloads
//!   forebay bandwidth                  measure how fast memory gets to a device and back
//!   forebay monitor [PID]              watch processes that use forebay, in a terminal or a browser
//!   forebay convert IN OUT             convert a recording to another format
//!
//!   --json, with each                  one object a line, each with a "schema"
//! ```
//!
//! Exit status: 0 for success, 1 if the command found or met a fault, 2 for bad usage. The reader of the output may
//! stop at any time: that is not a fault.

mod bandwidth;
pub mod bench;
mod capacity;
pub mod command;
mod convert;
pub mod demo;
pub mod doctor;
mod ending;
pub mod fit;
mod layout;
pub mod limit;
pub mod monitor;
pub mod output;
mod progress;
pub mod replay;
pub mod report;
pub mod settings;
mod source;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::command::{Command, Forebay};
pub use crate::ending::Ending;
use crate::output::{CleanOutput, Width};

/// Runs the command with `arguments`; the first is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    ExitCode::from(status(arguments))
}

/// Like `run`, for callers that end the process themselves, such as Python: returns the exit status.
pub fn status(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let forebay = match Forebay::try_parse_from(arguments) {
        Ok(forebay) => forebay,
        Err(refusal) => {
            return match print_refusal(&refusal) {
                Err(error) if !output::reader_left(&error) => unwritten(&error),
                // Help and version are no mistake (0); everything else is bad usage (2).
                _ => u8::try_from(refusal.exit_code()).unwrap_or(Ending::Fault.status()),
            };
        }
    };
    let width = Width::of_output();
    // What programs read goes out as it is; what people read loses its colours where nobody would
    // see them. Neither steers the terminal.
    let mut json = CleanOutput::new(io::stdout(), output::escape_controls);
    let mut words = CleanOutput::new(anstream::stdout(), output::clean);
    let out: &mut dyn Write = if forebay.command.is_json() { &mut json } else { &mut words };
    let done = match &forebay.command {
        Command::Doctor(options) => doctor::run(options, width, out),
        Command::Demo(options) => demo::run(options, width, out),
        Command::Bench(options) => bench::run(options, width, out),
        Command::Replay(options) => replay::run(options, width, out),
        Command::Fit(options) => fit::run(options, width, out),
        Command::Report(options) => report::run(options, out),
        Command::Bandwidth(options) => bandwidth::run(options, width, out),
        Command::Monitor(options) => monitor::run(options, width, out),
        Command::Convert(options) => convert::run(options, out),
    };
    let done = done.and_then(|ending| out.flush().map(|()| ending));
    match done {
        Ok(ending) => ending.status(),
        Err(error) if output::reader_left(&error) => Ending::Well.status(),
        Err(error) => unwritten(&error),
    }
}

/// Prints help, the version, or what is wrong with the arguments, which may be names of files of others.
fn print_refusal(refusal: &clap::Error) -> io::Result<()> {
    let text = output::clean(&refusal.render().ansi().to_string());
    if refusal.use_stderr() {
        anstream::stderr().write_all(text.as_bytes())
    } else {
        let mut out = anstream::stdout();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

/// What is left to say where the output could not be written.
fn unwritten(error: &io::Error) -> u8 {
    output::complain(format_args!("cannot write the output: {error}"));
    Ending::Fault.status()
}
