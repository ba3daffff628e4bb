//! The `forebay` command as a library, so that tests reach its parts.
//!
//! ```text
//!   forebay doctor [--json]    devices, settings in force and whence, problems and their cure
//! ```
//!
//! Exit status: 0 where all went well, 1 where the command found or met a fault, 2 for bad usage.
//! Whoever reads the output may stop reading at any time: that is not a fault.

pub mod command;
pub mod doctor;
pub mod output;

use std::ffi::OsString;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use crate::command::{Command, Forebay};
use crate::output::Width;

/// What went wrong is on standard error; the report, if any, is complete.
const FAULT: u8 = 1;

/// Runs the command with `arguments`, of which the first is the program's name.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let forebay = match Forebay::try_parse_from(arguments) {
        Ok(forebay) => forebay,
        Err(refusal) => {
            return match refusal.print().and_then(|()| io::stdout().flush()) {
                Err(error) if !output::reader_left(&error) => {
                    output::complain(&error);
                    ExitCode::from(FAULT)
                }
                // Help and version are no mistake (0); everything else is bad usage (2).
                _ => u8::try_from(refusal.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from),
            };
        }
    };
    let width = Width::of_output();
    let done = match &forebay.command {
        // What programs read goes out as it is; what people read loses its colours where nobody
        // would see them.
        Command::Doctor(options) if options.json => doctor::run(options, width, &mut io::stdout()),
        Command::Doctor(options) => doctor::run(options, width, &mut anstream::stdout()),
    };
    match done {
        Ok(doctor::Verdict::Well) => ExitCode::SUCCESS,
        Ok(doctor::Verdict::Unwell) => ExitCode::from(FAULT),
        Err(error) if output::reader_left(&error) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&error);
            ExitCode::from(FAULT)
        }
    }
}
