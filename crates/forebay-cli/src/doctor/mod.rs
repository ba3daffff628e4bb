//! `forebay doctor`: what this machine offers, what is in force, what to mend.
//!
//! ```text
//!   probe ──► report ──► advice          text     for people
//!   looks     plain data  what to mend ─┬────►
//!                                       └────► JSON, one line, "forebay.doctor.v1"
//! ```
//!
//! Everything said comes from something looked at: files, the environment, a device that was
//! opened and tried. What could not be found out is said to be unknown, with the reason.

mod advice;
pub mod probe;
pub mod report;
mod text;

use std::io::{self, Write};

use crate::Ending;
use crate::command::DoctorOptions;
use crate::doctor::probe::Probe;
use crate::doctor::report::Report;
use crate::output::Width;

/// Looks at the machine and writes what it found to `out`, for people in lines of `width`. Escape
/// sequences are `out`'s to strip.
///
/// A machine where not even the host device works is a fault, and so is a setting that is refused.
pub fn run(options: &DoctorOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    let probe = match &options.root {
        Some(root) => Probe::at(root),
        None => Probe::here(),
    };
    let report = probe.report();
    // One write for all: a report cut in two by another program's line helps nobody.
    let mut text = Vec::new();
    if options.json {
        json(&report, &mut text)?;
    } else {
        text::render(&report, width, &mut text)?;
    }
    out.write_all(&text)?;
    out.flush()?;
    Ok(if report.well { Ending::Well } else { Ending::Fault })
}

/// The report as one line.
fn json(report: &Report, out: &mut Vec<u8>) -> io::Result<()> {
    serde_json::to_writer(&mut *out, report)?;
    out.push(b'\n');
    Ok(())
}
