//! `forebay doctor`: reports what this machine offers, which settings are in force, and what to fix.
//!
//! ```text
//!   probe ──► report ──► advice          text     for people
//!   looks     plain data  what to mend ─┬────►
//!   TRACE ──► what would help the run   └────► JSON, one line, "forebay.doctor.v1"
//! ```
//!
//! Every statement comes from an inspection: of files, the environment, or a device that was opened and tried. Anything
//! that could not be determined is reported as unknown, with the reason.

mod advice;
pub mod probe;
pub mod report;
mod text;

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use crate::Ending;
use crate::doctor::probe::Probe;
use crate::doctor::report::RunSection;
use crate::limit::{ReadingOptions, WorkOptions};
use crate::monitor;
use crate::output::{Width, complain, json_lines};
use crate::replay::Policy;
use crate::report::{ADVICE_PASSES, advice_on};
use crate::source::read_trace;

/// The options of `forebay doctor`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
// Without a run there is nothing to read or to work on.
#[command(
    mut_arg("of_device", |arg| arg.requires("trace")),
    mut_arg("max_events", |arg| arg.requires("trace")),
    mut_arg("limit", |arg| arg.requires("trace"))
)]
pub struct DoctorOptions {
    /// A recorded run to advise on as well; "-" reads standard input.
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Print one line of JSON, with "schema": "forebay.doctor.v1".
    #[arg(long)]
    pub json: bool,

    /// Read the machine's files (/proc, /sys, /etc, /dev, libraries) below this directory. For
    /// tests: devices are not opened then, as they belong to another machine.
    #[arg(long, hide = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
}

/// Inspects the machine and writes a report to `out`, text in lines of `width`. `out` strips escape sequences if needed.
///
/// It is a fault if the host device or the simulated device does not work, a setting is invalid, or the recording cannot
/// be read.
pub fn run(options: &DoctorOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    let probe = match &options.root {
        Some(root) => Probe::at(root),
        None => Probe::here(),
    };
    let mut report = probe.report();
    let mut ending = if report.well { Ending::Well } else { Ending::Fault };
    // With --root the files are of another machine, whose processes cannot be asked.
    if options.root.is_none() {
        report.running = monitor::warnings();
    }
    if let Some(path) = &options.trace {
        report.run = run_section(path, options);
        if report.run.is_none() {
            ending = Ending::Fault;
        }
    }
    // One write, so that other programs' lines do not interrupt the report.
    let mut text = Vec::new();
    if options.json {
        json_lines([&report], &mut text)?;
    } else {
        text::render(&report, width, &mut text)?;
    }
    out.write_all(&text)?;
    out.flush()?;
    Ok(ending)
}

/// What would help a recorded run, as `forebay report` advises. Reports failures on standard error.
fn run_section(path: &Path, options: &DoctorOptions) -> Option<RunSection> {
    let reading = options.reading.options();
    let trace = read_trace(path, &reading)?;
    let settings =
        Policy::settings(&[Policy::Forebay]).inspect_err(|error| complain(error)).ok()?;
    let budget = options.work.budget(&trace, ADVICE_PASSES);
    let advice = advice_on(&trace, &settings, &budget)?;
    Some(RunSection { trace: trace.name().to_owned(), advice })
}
