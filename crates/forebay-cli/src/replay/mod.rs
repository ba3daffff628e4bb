//! `forebay replay`: what recorded runs take under each allocator.
//!
//! ```text
//!   files ──► Trace ──► for each policy: a fresh device, a player, so many passes
//!                                                     │
//!                            row: plain data ◄────────┘
//!                             ├────► table, a run at a time, for people
//!                             └────► JSON, one line a pass, "forebay.replay.v1"
//! ```
//!
//! A file that cannot be read, or an allocator that fails, does not stop the others; it is told on
//! standard error and in the exit status.

mod place;
mod policy;
mod row;
mod text;

pub use place::Place;
pub use policy::Policy;
pub use row::Row;
pub(crate) use text::time;

use std::io::{self, Write};
use std::path::Path;

use forebay_trace::format::read_path;
use forebay_trace::{PassReport, ReadOptions, Trace, Verifier, replay};

use crate::Ending;
use crate::command::ReplayOptions;
use crate::output::complain;
use crate::progress::Progress;

/// Runs with fewer operations are over before a bar could be read, unless they are verified.
const WORTH_SHOWING: u64 = 1 << 20;

/// Plays every run on every policy and writes what came of it to `out`. Escape sequences are
/// `out`'s to strip.
pub fn run(options: &ReplayOptions, out: &mut dyn Write) -> io::Result<Ending> {
    if options.verify && options.device == Place::Sim && !options.backed {
        complain(
            "--verify writes to every block, and the simulated device has addresses alone; put \
             memory behind it with --backed, or play on --device host",
        );
        return Ok(Ending::BadUsage);
    }
    let mut ending = Ending::Well;
    let mut tables = 0_usize;
    for path in &options.traces {
        let Some(trace) = read(path, options) else {
            ending = Ending::Fault;
            continue;
        };
        let mut text = Vec::new();
        if !options.json {
            if tables > 0 {
                writeln!(text)?;
            }
            text::heading(&trace, &mut text)?;
        }
        let (rows, played) = play(&trace, options);
        ending = ending.max(played);
        if options.json {
            for row in &rows {
                serde_json::to_writer(&mut text, row)?;
                text.push(b'\n');
            }
        } else {
            text::table(&rows, &mut text)?;
            tables += 1;
        }
        // One write for a run: lines of others do not cut it in two.
        out.write_all(&text)?;
        out.flush()?;
    }
    if tables > 0 {
        text::reading_aid(options.device, out)?;
        out.flush()?;
    }
    Ok(ending)
}

fn read(path: &Path, options: &ReplayOptions) -> Option<Trace> {
    let mut reading = ReadOptions::default();
    reading.device = options.of_device;
    match read_path(path, &reading) {
        Ok(trace) => Some(trace),
        Err(error) => {
            complain(format_args!("{}: {error}", path.display()));
            None
        }
    }
}

/// Plays one run on every policy.
fn play(trace: &Trace, options: &ReplayOptions) -> (Vec<Row>, Ending) {
    let mut ending = Ending::Well;
    let mut rows = Vec::new();
    let operations = trace.len() as u64 * u64::from(options.passes) * options.policy.len() as u64;
    let progress = if operations < WORTH_SHOWING && !options.verify {
        Progress::hidden()
    } else {
        Progress::of(trace.name(), operations)
    };
    for &policy in &options.policy {
        progress.doing(policy.name());
        let mut tell = |more| progress.advance(more);
        match play_on(policy, trace, options, &mut tell) {
            Ok(reports) => {
                for report in &reports {
                    for fault in faults(report) {
                        ending = Ending::Fault;
                        let (name, pass) = (trace.name(), report.pass);
                        progress.aside(|| {
                            complain(format_args!("{name}: {policy}, pass {pass}: {fault}"));
                        });
                    }
                    rows.push(Row::new(trace.name(), options.device, policy, report));
                }
            }
            Err(error) => {
                ending = Ending::Fault;
                progress.aside(|| complain(format_args!("{}: {policy}: {error}", trace.name())));
            }
        }
    }
    (rows, ending)
}

/// Plays one run on one policy, on a device of its own: none finds what another left.
fn play_on(
    policy: Policy,
    trace: &Trace,
    options: &ReplayOptions,
    tell: &mut dyn FnMut(u64),
) -> Result<Vec<PassReport>, String> {
    let device = options.device.open(options.capacity, options.backed)?;
    let mut verifier = match options.verify {
        true => Some(Verifier::new(device.clone()).map_err(|error| error.to_string())?),
        false => None,
    };
    let mut player = policy.player(device).map_err(|error| error.to_string())?;
    let mut playing = forebay_trace::ReplayOptions::new().passes(options.passes).progress(tell);
    playing.verify = verifier.as_mut();
    replay(trace, &mut *player, playing).map_err(|error| error.to_string())
}

/// What went wrong in a pass that was played to its end.
fn faults(report: &PassReport) -> impl Iterator<Item = String> {
    let count = report.out_of_memory;
    let memory = report
        .first_out_of_memory
        .as_ref()
        .map(|first| format!("{count} allocations found no memory; the first: {first}"));
    let held = report.verified.as_ref().and_then(|verdict| {
        let (wrong, of) = (verdict.mismatches, verdict.blocks);
        let first = verdict.first.as_ref()?;
        Some(format!("{wrong} of {of} blocks did not hold what was written; the first: {first}"))
    });
    memory.into_iter().chain(held)
}
