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
mod progress;
mod row;
mod text;

pub use place::Place;
pub use policy::Policy;
pub use row::Row;

use std::io::{self, Write};
use std::path::Path;

use forebay_trace::format::read_path;
use forebay_trace::{ReadOptions, Trace, replay};

use self::progress::Progress;
use crate::Ending;
use crate::command::ReplayOptions;
use crate::output::complain;

/// Plays every run on every policy and writes what came of it to `out`. Escape sequences are
/// `out`'s to strip.
pub fn run(options: &ReplayOptions, out: &mut dyn Write) -> io::Result<Ending> {
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
    let operations = trace.len() as u64 * u64::from(options.passes);
    let progress = Progress::of(trace.name(), operations * options.policy.len() as u64);
    for &policy in &options.policy {
        progress.policy(policy.name());
        let mut tell = |more| progress.advance(more);
        let playing =
            forebay_trace::ReplayOptions::new().passes(options.passes).progress(&mut tell);
        // A device of its own for each: none finds what another left.
        let reports = options
            .device
            .open(options.capacity)
            .and_then(|device| policy.player(device).map_err(|error| error.to_string()))
            .and_then(|mut player| {
                replay(trace, &mut *player, playing).map_err(|error| error.to_string())
            });
        match reports {
            Ok(reports) => {
                let (device, name) = (options.device, trace.name());
                for report in &reports {
                    if let Some(first) = &report.first_out_of_memory {
                        ending = Ending::Fault;
                        let (count, pass) = (report.out_of_memory, report.pass);
                        progress.aside(|| {
                            complain(format_args!(
                                "{name}: {policy}, pass {pass}: {count} allocations found no \
                                 memory; the first: {first}"
                            ));
                        });
                    }
                    rows.push(Row::new(name, device, policy, report));
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
