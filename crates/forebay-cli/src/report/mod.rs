//! `forebay report`: shows what happened to memory in a recorded run, as one HTML file.
//!
//! ```text
//!   file ──► Trace ──┬──► replays on forebay's pool and on models, watched ──┐
//!                    ├──► blocks: owners, sizes, lifetimes                   ├──► Report: plain data,
//!                    └──► trials: smaller devices, settings, larger batches ─┘    "forebay.report.v1"
//!                                                                                   │
//!                                       page.rs, page/: HTML, CSS, canvas  ◄────────┘
//! ```
//!
//! A pool snapshot is not a run: `postmortem.rs` makes "forebay.postmortem.v1" of it, which has a page of its own.
//!
//! Everything is aggregated here, so that the page size is bounded for any recording. Figures are those of
//! [`replay`](forebay_trace::replay), [`Analysis`](forebay_trace::Analysis) and [`Fit`].

mod advice;
mod collect;
pub mod data;
mod gains;
mod lives;
mod map;
mod owners;
mod page;
pub mod postmortem;
mod series;
mod terms;
#[cfg(test)]
mod tests;
mod transfers;
mod trials;
mod watch;

pub use data::Report;

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use forebay::Settings;
use forebay_core::{Bytes, counted};
use forebay_trace::format::{PoolSnapshot, Recorded, write_whole};
use forebay_trace::{Fit, Trace, WorkBudget};
use serde::Serialize;

use crate::Ending;
use crate::capacity::capacity;
use crate::limit::{ReadingOptions, WorkOptions};
use crate::output::{complain, json_lines};
use crate::progress::Progress;
use crate::replay::Policy;
use crate::source::Source;
use collect::collect;
use postmortem::PostMortem;
use terms::{Depth, Terms};

/// How much larger than the smallest device those are on which `forebay fit` also shows the driver's work, in percent.
pub(crate) const LARGER: [u64; 3] = [1, 2, 5];

/// Steps of the bar: five allocators, three devices, five trials, the batch, and a few changes that are advised.
const STEPS: u64 = 20;

/// Passes of a quick report: every allocator, cold and warm.
const QUICK_PASSES: u64 = 2 * Policy::ALL.len() as u64;

/// Passes of a report that only advises, roughly: five trials and half a dozen changes more.
pub(crate) const ADVICE_PASSES: u64 = QUICK_PASSES + 2 * (5 + 6);

/// Passes of the search for one smallest device, roughly: with one pass, then with all of them, then on larger devices.
pub(crate) const fn passes_of_search(passes: u32) -> u64 {
    12 + passes as u64 * (4 + LARGER.len() as u64)
}

/// Passes of a report, roughly.
fn passes_at(depth: Depth) -> u64 {
    match depth {
        Depth::Quick => QUICK_PASSES,
        Depth::Advice => ADVICE_PASSES,
        // The batch is bisected in a dozen steps.
        Depth::Thorough => {
            ADVICE_PASSES + trials::FITTED.len() as u64 * passes_of_search(Fit::PASSES) + 2 * 12
        }
    }
}

/// The options of `forebay report`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ReportOptions {
    /// The recording; "-" reads standard input.
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// The HTML file to write [default: that of the recording with .report.html, in the current directory].
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// How much memory the simulated device has, such as 24GiB [default: 1 TiB].
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<Bytes>,

    /// Leave out what needs many replays: the smallest device, other settings and larger batches.
    #[arg(long)]
    pub quick: bool,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Print the data of the page as one line of JSON, with "schema": "forebay.report.v1". The page is written only if
    /// --output names it.
    #[arg(long)]
    pub json: bool,
}

/// Creates the report of a run and writes the page, or with `--json` the data, to `out`.
pub fn run(options: &ReportOptions, out: &mut dyn Write) -> io::Result<Ending> {
    let Ok(settings) = Policy::settings(Policy::ALL).inspect_err(|error| complain(error)) else {
        return Ok(Ending::BadUsage);
    };
    let reading = options.reading.options();
    let source = Source::of(&options.trace);
    let trace = match source.read_recorded(&reading) {
        Ok(Recorded::Run(trace)) => *trace,
        Ok(Recorded::Moment(snapshot)) => {
            let found = PostMortem::of(&snapshot);
            return deliver(options, out, &snapshot.name, &found, || {
                let what = match &found.refusal {
                    Some(refused) => {
                        format!("{} were refused", Bytes::new(refused.requested_bytes))
                    }
                    None => format!("pool {} at one moment", found.pool),
                };
                Ok((page::post_mortem_page(&found)?, what))
            });
        }
        Err(error) => {
            complain(format_args!("{source}: {error}"));
            return Ok(Ending::Fault);
        }
    };
    let depth = if options.quick { Depth::Quick } else { Depth::Thorough };
    let budget = &options.work.budget(&trace, passes_at(depth));
    let capacity = options.capacity;
    let file = source.name();
    let file = file.as_deref();
    let terms = Terms { file, settings: &settings, capacity, depth, tell: &|_| {}, budget };
    let Some((report, faults)) = collect_on_bar("report", &trace, terms) else {
        return Ok(Ending::Fault);
    };
    let ending = deliver(options, out, report.run.title(), &report, || {
        Ok((page::page(&report)?, counted(report.run.events, "event")))
    })?;
    Ok(if faults.is_empty() { ending } else { Ending::Fault })
}

/// Prints the data or writes the page, and reports what was written.
fn deliver(
    options: &ReportOptions,
    out: &mut dyn Write,
    name: &str,
    data: &impl Serialize,
    page: impl FnOnce() -> io::Result<(String, String)>,
) -> io::Result<Ending> {
    let mut ending = Ending::Well;
    if options.json {
        let mut text = Vec::new();
        json_lines([data], &mut text)?;
        out.write_all(&text)?;
    }
    // With --json the page is written only if --output names it.
    if !options.json || options.output.is_some() {
        let path = options.output.clone().unwrap_or_else(|| default_path(name));
        let written = page().and_then(|(page, what)| {
            write_whole(&path, |out| out.write_all(page.as_bytes()))?;
            Ok((Bytes::new(page.len() as u64), what))
        });
        match written {
            Ok((size, what)) if !options.json => {
                writeln!(out, "{name}: {what}; {size} written to {}", path.display())?;
            }
            Ok(_) => {}
            Err(error) => {
                complain(format_args!("{}: {error}", path.display()));
                ending = Ending::Fault;
            }
        }
    }
    out.flush()?;
    Ok(ending)
}

/// Creates the page of a pool snapshot.
pub fn page_of_moment(snapshot: &PoolSnapshot) -> Result<String, String> {
    page::post_mortem_page(&PostMortem::of(snapshot)).map_err(|error| error.to_string())
}

/// Creates the page of a run from a file of that name, if any, for the given `settings` of forebay's pool and capacity of a device, if any;
/// `is_thorough` as without `--quick`. A model that fails is left out. Fails if `budget` ends the work.
pub fn page_of(
    trace: &Trace,
    file: Option<&str>,
    settings: &Settings,
    capacity: Option<Bytes>,
    is_thorough: bool,
    budget: &WorkBudget<'_>,
) -> Result<String, String> {
    let depth = if is_thorough { Depth::Thorough } else { Depth::Quick };
    let terms = Terms { file, settings, capacity, depth, tell: &|_| {}, budget };
    let (report, _) = collect(trace, &terms)?;
    page::page(&report).map_err(|error| error.to_string())
}

/// The advice of a report of the run, without devices of other sizes and larger batches. Reports failures on standard
/// error; `None` if there is no report.
pub(crate) fn advice_on(
    trace: &Trace,
    settings: &Settings,
    budget: &WorkBudget<'_>,
) -> Option<Vec<data::Advice>> {
    let (file, capacity, depth) = (None, None, Depth::Advice);
    let terms = Terms { file, settings, capacity, depth, tell: &|_| {}, budget };
    collect_on_bar("advice", trace, terms).map(|(report, _)| report.advice)
}

/// A report and its faults, with a progress bar meanwhile. Reports faults and failures on standard error.
fn collect_on_bar(what: &str, trace: &Trace, terms: Terms<'_>) -> Option<(Report, Vec<String>)> {
    let progress = Progress::of(what, STEPS);
    let tell = |what| {
        progress.doing(what);
        progress.advance(1);
    };
    let found = collect(trace, &Terms { tell: &tell, ..terms });
    drop(progress);
    let (report, faults) = found.inspect_err(|error| complain(error)).ok()?;
    faults.iter().for_each(complain);
    Some((report, faults))
}

/// A quick report of a run at the pool's default settings on a device of that capacity, in a new file of the folder for
/// temporary files.
pub(crate) fn write_for_demo(trace: &Trace, capacity: Bytes) -> Result<PathBuf, String> {
    let page = page_of(
        trace,
        None,
        &Settings::default(),
        Some(capacity),
        false,
        &WorkBudget::unlimited(),
    )?;
    let path = std::env::temp_dir().join(format!("forebay-demo-{}.html", std::process::id()));
    // Other users may write to that folder too, so replace an existing file or link rather than follow it.
    let written = write_whole(&path, |out| out.write_all(page.as_bytes()));
    written.map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(path)
}

/// The page of a recording with that name in the current directory, without characters that could lead elsewhere.
pub fn default_path(name: &str) -> PathBuf {
    let safe = |letter: char| {
        if letter.is_alphanumeric() || "-_.".contains(letter) { letter } else { '_' }
    };
    let name: String = name.chars().take(100).map(safe).collect();
    let name = Some(name.trim_start_matches('.')).filter(|name| !name.is_empty());
    PathBuf::from(format!("{}.report.html", name.unwrap_or("run")))
}
