//! `forebay replay`: what recorded runs cost under each allocator.
//!
//! ```text
//!   files ──► Trace ──► for each policy: a fresh device, a player, so many passes
//!                                                     │
//!                            row: plain data ◄────────┘
//!                             ├────► table, a run at a time, for people
//!                             └────► JSON, one line a pass, "forebay.replay.v1"
//! ```
//!
//! `--record` saves the pool's requests as a new recording; `--analyse` reports each run's patterns before it is
//! replayed.
//!
//! A file that cannot be read, or an allocator that fails, does not stop the rest; it is reported on standard error and
//! in the exit status.

mod device_name;
mod patterns;
mod policy;
mod row;
mod text;

pub use device_name::open_device;
pub(crate) use device_name::{DEVICES, device_or, simulated};
pub use forebay::devices::DeviceName;
pub use patterns::Patterns;
pub use policy::Policy;
pub use row::Row;
pub(crate) use text::{heading, no_room_for, time};

use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, value_parser};
use forebay::Settings;
use forebay::devices::VARIABLE;
use forebay_core::{Bytes, counted};
use forebay_hal::Error;
use forebay_trace::format::{check_ending, write_path};
use forebay_trace::{Analysis, PassReport, Player, Recorder, Trace, Verifier, WorkBudget, replay};

use crate::Ending;
use crate::capacity::capacity;
use crate::limit::{ReadingOptions, WorkOptions};
use crate::output::{Width, complain, json_lines};
use crate::progress::Progress;
use crate::source::{Source, read_trace};

/// Shorter replays get no progress bar, unless they are verified: they end before one could be read.
const WORTH_SHOWING: u64 = 1 << 20;

/// The options of `forebay replay`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ReplayOptions {
    /// The recordings to replay; "-" reads standard input.
    #[arg(required = true, value_name = "TRACE")]
    pub traces: Vec<PathBuf>,

    /// The device to replay on: simulated, this machine's own memory, or device number N of a driver.
    #[arg(long, value_name = DEVICES, env = VARIABLE, default_value_t = DeviceName::SIM, value_parser = device_or(DeviceName::SIM))]
    pub device: DeviceName,

    /// The allocators to compare, separated by commas [default: all].
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        hide_default_value = true,
        default_values_t = Policy::ALL.to_vec()
    )]
    pub policy: Vec<Policy>,

    /// How much memory the device has, such as 24GiB [default: 1 TiB on sim, all memory on host].
    #[arg(long, value_name = "SIZE", value_parser = capacity)]
    pub capacity: Option<Bytes>,

    /// How many times to replay each run on the same allocator. The first pass starts with an empty
    /// allocator, later passes with what the previous one left cached.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u32).range(1..=1000))]
    pub passes: u32,

    /// Check that blocks keep what is written to them.
    ///
    /// Writes to each block after its allocation, in stream order, and checks the contents before its
    /// free. Blocks of up to 64 KiB are written in full; in larger blocks, 64 bytes of every 4 KiB
    /// and the last 64 bytes. The device needs real memory for the whole run: use the host, or the
    /// simulated device with --backed. Times exclude writing and checking, but are less accurate
    /// because the machine is busy with both.
    #[arg(long)]
    pub verify: bool,

    /// Back the simulated device with this machine's memory. Otherwise it has only addresses.
    #[arg(long)]
    pub backed: bool,

    /// How much to read.
    #[command(flatten)]
    pub reading: ReadingOptions,

    /// How long it may take.
    #[command(flatten)]
    pub work: WorkOptions,

    /// Record the requests to forebay's pool during the first pass into this file.
    ///
    /// The ending selects the format, as for "forebay convert". Needs exactly one run, and forebay among
    /// the allocators. Recording slows the pool down.
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,

    /// Describe the patterns of each run (sizes, lifetimes, peak, streams), with advice.
    #[arg(long, visible_alias = "analyze")]
    pub analyse: bool,

    /// Print a line of JSON for each pass, with "schema": "forebay.replay.v1"; with --analyse, also
    /// one for each run, with "schema": "forebay.analysis.v1".
    #[arg(long)]
    pub json: bool,
}

/// Replays every run under every policy and writes the results to `out`, text in lines of `width`. `out` strips escape
/// sequences if needed.
pub fn run(options: &ReplayOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    if options.verify && options.device == DeviceName::SIM && !options.backed {
        complain(
            "--verify writes to every block, but the simulated device has addresses and no memory; \
             add --backed to give it memory, or replay on --device host",
        );
        return Ok(Ending::BadUsage);
    }
    if let Some(refusal) = Source::conflict(&options.traces) {
        complain(refusal);
        return Ok(Ending::BadUsage);
    }
    if let Some(refusal) = cannot_record(options) {
        complain(refusal);
        return Ok(Ending::BadUsage);
    }
    // Report a missing device once, not for every run and policy.
    if options.device.is_hardware()
        && let Err(error) = open_device(options.device, options.capacity, true)
    {
        complain(error);
        return Ok(Ending::Fault);
    }
    let Ok(settings) = Policy::settings(&options.policy).inspect_err(|error| complain(error))
    else {
        return Ok(Ending::BadUsage);
    };
    let reading = options.reading.options();
    let mut ending = Ending::Well;
    let mut tables = 0_usize;
    // Columns that did not fit, in any of the tables.
    let mut left_out = Vec::new();
    for path in &options.traces {
        let Some(trace) = read_trace(path, &reading) else {
            ending = Ending::Fault;
            continue;
        };
        let mut text = Vec::new();
        if !options.json {
            if tables > 0 {
                writeln!(text)?;
            }
            text::heading(&trace, &settings, width, &mut text)?;
        }
        if options.analyse {
            let found = Analysis::of(&trace);
            if options.json {
                json_lines([Patterns::new(trace.name(), &found)], &mut text)?;
            } else {
                patterns::tell(&found, width, &mut text)?;
            }
        }
        let (rows, played) = play(&trace, options, &settings);
        ending = ending.max(played);
        if options.json {
            json_lines(&rows, &mut text)?;
        } else {
            for heading in text::table(&rows, width, &mut text)? {
                if !left_out.contains(&heading) {
                    left_out.push(heading);
                }
            }
            tables += 1;
        }
        // One write for each run, so that other programs' lines do not interrupt it.
        out.write_all(&text)?;
        out.flush()?;
    }
    if tables > 0 {
        text::reading_aid(options.device, &left_out, width, out)?;
        out.flush()?;
    }
    Ok(ending)
}

/// Why `--record` cannot work with these options. Checked before anything is replayed.
fn cannot_record(options: &ReplayOptions) -> Option<String> {
    let path = options.record.as_ref()?;
    if let Err(error) = check_ending(path) {
        return Some(error.to_string());
    }
    if options.traces.len() != 1 {
        let count = options.traces.len();
        return Some(format!("--record writes a single run, but {count} runs are given"));
    }
    if !options.policy.contains(&Policy::Forebay) {
        return Some("--record needs forebay's own pool; add forebay to --policy".to_owned());
    }
    None
}

/// Replays one run under every policy.
fn play(trace: &Trace, options: &ReplayOptions, settings: &Settings) -> (Vec<Row>, Ending) {
    let mut ending = Ending::Well;
    let mut rows = Vec::new();
    let operations = trace.len() as u64 * u64::from(options.passes) * options.policy.len() as u64;
    let progress = if operations < WORTH_SHOWING && !options.verify {
        Progress::hidden()
    } else {
        Progress::of(trace.name(), operations)
    };
    let budget =
        options.work.budget(trace, u64::from(options.passes) * options.policy.len() as u64);
    for &policy in &options.policy {
        progress.doing(policy.name());
        let mut tell = |more| progress.advance(more);
        match play_on((policy, settings), trace, options, (&mut tell, &budget)) {
            Ok(Played { reports, unwritten, missing }) => {
                if let Some(missing) = missing {
                    let (name, device) = (trace.name(), options.device);
                    progress.aside(|| {
                        complain(format_args!(
                            "{name}: {policy} is left out: {device} has no {missing}"
                        ));
                    });
                }
                if let Some(error) = unwritten {
                    ending = Ending::Fault;
                    progress.aside(|| complain(format_args!("{}: {error}", trace.name())));
                }
                for report in &reports {
                    for fault in faults(report) {
                        ending = Ending::Fault;
                        let (name, pass) = (trace.name(), report.pass);
                        progress.aside(|| {
                            complain(format_args!("{name}: {policy}, pass {pass}: {fault}"));
                        });
                    }
                    let policy = (policy, settings);
                    rows.push(Row::new(trace.name(), options.device, policy, report));
                }
            }
            Err(error) => {
                ending = Ending::Fault;
                progress.aside(|| complain(format_args!("{}: {policy}: {error}", trace.name())));
                // The time is up for all of them.
                if budget.check().is_err() {
                    break;
                }
            }
        }
    }
    if rows.is_empty() {
        ending = Ending::Fault;
    }
    (rows, ending)
}

/// The result of replaying a run under one policy.
#[derive(Default)]
struct Played {
    reports: Vec<PassReport>,
    /// The feature that the policy needs and the device lacks.
    missing: Option<String>,
    /// Why the recording could not be written.
    unwritten: Option<String>,
}

/// Replays one run under one policy, on a fresh device, so that no policy finds what another left.
fn play_on(
    (policy, settings): (Policy, &Settings),
    trace: &Trace,
    options: &ReplayOptions,
    (tell, budget): (&mut dyn FnMut(u64), &WorkBudget<'_>),
) -> Result<Played, String> {
    let device = open_device(options.device, options.capacity, options.backed)?;
    let mut verifier = match options.verify {
        true => Some(Verifier::new(device.clone()).map_err(|error| error.to_string())?),
        false => None,
    };
    let record = options.record.as_deref().filter(|_| policy == Policy::Forebay);
    let Some(path) = record else {
        let mut player = match policy.player(device, settings) {
            Ok(player) => player,
            Err(forebay::Error::Device(Error::Unsupported { missing, .. })) => {
                return Ok(Played { missing: Some(missing.into()), ..Played::default() });
            }
            Err(error) => return Err(error.to_string()),
        };
        let playing = forebay_trace::ReplayOptions::new().progress(tell).budget(budget);
        let reports = play_with(&mut *player, trace, options, verifier.as_mut(), playing)?;
        return Ok(Played { reports, ..Played::default() });
    };
    let recorder = Recorder::at_most(trace.name(), trace.len());
    let watched = policy::watched(device, settings, &recorder);
    let mut player = watched.map_err(|error| error.to_string())?;
    // Record until the whole run was replayed once. Later frees and passes belong to the replay, not to the run.
    let mut done = 0_u64;
    let mut tell = |more| {
        done = done.saturating_add(more);
        if done >= trace.len() as u64 {
            recorder.stop();
        }
        tell(more);
    };
    let playing = forebay_trace::ReplayOptions::new().progress(&mut tell).budget(budget);
    let reports = play_with(&mut player, trace, options, verifier.as_mut(), playing)?;
    let written = write_path(&recorder.finish(), path);
    let unwritten = written.err().map(|error| format!("{}: {error}", path.display()));
    Ok(Played { reports, unwritten, missing: None })
}

fn play_with<'a>(
    player: &mut dyn Player,
    trace: &Trace,
    options: &ReplayOptions,
    verifier: Option<&'a mut Verifier>,
    playing: forebay_trace::ReplayOptions<'a>,
) -> Result<Vec<PassReport>, String> {
    let playing = playing.passes(options.passes).verify(verifier);
    replay(trace, player, playing).map_err(|error| error.to_string())
}

/// The faults of a completed pass.
fn faults(report: &PassReport) -> impl Iterator<Item = String> {
    let count = report.out_of_memory;
    let memory = report.first_out_of_memory.as_ref().map(|first| {
        format!("{} ran out of memory; the first: {first}", counted(count, "allocation"))
    });
    let held = report.verified.as_ref().and_then(|verdict| {
        let (wrong, of) = (verdict.mismatches, verdict.blocks);
        let first = verdict.first.as_ref()?;
        let of = counted(of, "block");
        Some(format!("{wrong} of {of} did not hold what was written; the first: {first}"))
    });
    memory.into_iter().chain(held)
}
