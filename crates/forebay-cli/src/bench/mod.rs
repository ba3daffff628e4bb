//! `forebay bench`: runs named workloads on the pool and on the allocators that it is compared with.
//!
//! ```text
//!   Workload ──► Sequence ──► for each round, for each allocator: a fresh device, a fresh allocator
//!   hot pairs ──────────────► for each round, in turn: a batch each, warm
//!   stress ─────────────────► devices and clocks of each workload's own, with targets
//!                                              │
//!                     row: plain data ◄────────┘
//!                      ├────► table, a workload at a time, for people
//!                      └────► JSON, one line a case, "forebay.bench.v1"
//! ```
//!
//! This machine's clock measures our own code. On the simulated device the cost table prices the driver's calls, which
//! are listed beside that. The driver as an allocator is timed by the table alone: the clock would show how fast it is
//! simulated.

mod case;
mod foreign;
pub(crate) mod hot;
mod objects;
mod play;
mod row;
pub(crate) mod setup;
mod stress;
mod subject;
#[cfg(test)]
mod tests;
mod text;
mod views;

pub use case::Case;
pub use foreign::Against;
pub use row::{Each, Figures, Row, Target};
pub use stress::Stress;

use std::io::{self, Write};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use forebay::Settings;
use forebay::devices::VARIABLE;
use forebay_core::Bytes;
use forebay_hal::DeviceKind;
use forebay_trace::workload::{Script, Sequence, Timing, Workload};

use self::foreign::Foreign;
use self::play::Measured;
use self::setup::{BenchSetup, Effort, FreshDevice, clock_overhead};
use self::subject::{Driver, Forebay, Mimalloc};
use crate::Ending;
use crate::bandwidth;
use crate::output::{Fault, Width, complain, json_lines};
use crate::progress::Progress;
use crate::replay::{DEVICES, DeviceName, device_or};

/// What to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Subjects {
    /// Allocating and freeing.
    Alloc,
    /// Copying to a device and back: many small ones, zeros, a file, beside work of the device.
    Transfer,
}

/// The options of `forebay bench`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct BenchOptions {
    /// What to time.
    #[arg(value_enum)]
    pub what: Subjects,

    /// The workloads of "alloc" to time, in upper or lower case [default: all except STRESS].
    #[arg(value_enum, ignore_case = true, value_name = "WORKLOAD")]
    pub workloads: Vec<Case>,

    /// The device to time on: simulated, this machine's own memory, or device number N of a driver.
    #[arg(long, value_name = DEVICES, env = VARIABLE, default_value_t = DeviceName::SIM, value_parser = device_or(DeviceName::SIM))]
    pub device: DeviceName,

    /// Another GPU allocator to compare with: a library, and its two functions with the signatures of
    /// PyTorch's pluggable allocator. Can be repeated.
    #[arg(long, value_name = "NAME=LIBRARY:ALLOCATE:FREE")]
    pub against: Vec<Against>,

    /// Run few rounds: enough to check that everything works, too few for reliable figures.
    #[arg(long)]
    pub quick: bool,

    /// Print a line of JSON for each case, with "schema": "forebay.bench.v1"; of transfers, "forebay.bandwidth.v1".
    #[arg(long)]
    pub json: bool,
}

/// The steps of the progress bar for a workload: a turn of the hot pairs is one step, and a sequence takes about as long
/// as twenty.
fn steps(case: Case, effort: Effort) -> u64 {
    match case {
        Case::Played(_) | Case::Stress(_) | Case::WholeStress => 20,
        Case::HotPair | Case::HotStatistics => u64::from(effort.hot().0) + 1,
        Case::HotThreads | Case::Objects | Case::Views => u64::from(effort.threaded().0) + 1,
    }
}

/// The allocators a sequence is played on.
#[derive(Clone, Copy, Debug)]
enum Allocator {
    /// The pool.
    Forebay,
    /// The driver, called for every block.
    Driver,
    /// The yardstick, only for pairs of 512 B.
    Mimalloc,
    /// Another vendor's.
    Foreign(Foreign),
}

impl Allocator {
    const fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Driver => "driver",
            Self::Mimalloc => "mimalloc",
            Self::Foreign(foreign) => foreign.name,
        }
    }
}

/// Measures the workloads and writes the results to `out`, text in lines of `width`. `out` strips escape sequences if
/// needed.
pub fn run(options: &BenchOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    match options.what {
        Subjects::Alloc => allocation(options, width, out),
        Subjects::Transfer if options.workloads.is_empty() && options.against.is_empty() => {
            bandwidth::bench(options.device, options.quick, options.json, width, out)
        }
        Subjects::Transfer => {
            complain("bench transfer measures all its workloads; leave out names and --against");
            Ok(Ending::BadUsage)
        }
    }
}

fn allocation(options: &BenchOptions, width: Width, out: &mut dyn Write) -> io::Result<Ending> {
    let effort = if options.quick { Effort::Quick } else { Effort::Full };
    let Ok(settings) = Settings::from_environment().inspect_err(|error| complain(error)) else {
        return Ok(Ending::BadUsage);
    };
    if options.device != DeviceName::SIM
        && options.workloads.iter().any(|case| case.chooses_devices())
    {
        complain("STRESS workloads choose their own devices; leave --device out");
        return Ok(Ending::BadUsage);
    }
    let Ok(foreign) = load_foreign(options).inspect_err(|error| complain(error)) else {
        return Ok(Ending::BadUsage);
    };
    let setup =
        BenchSetup { place: options.device, effort, settings: &settings, foreign: &foreign };
    let Ok(limit) = FreshDevice::full_device(setup.place).inspect_err(|error| complain(error))
    else {
        return Ok(Ending::Fault);
    };
    if !options.json {
        text::heading(&settings, width, out)?;
        out.flush()?;
    }
    let all = Case::chosen(&options.workloads).map(|case| steps(case, effort)).sum();
    let progress = Progress::of("bench alloc", all);
    let mut ending = Ending::Well;
    // Columns that did not fit, in any of the tables.
    let mut left_out = Vec::new();
    for case in Case::chosen(&options.workloads) {
        progress.doing(case.name());
        let rows = match case {
            Case::Played(workload) => {
                let rows = measure(workload, setup, limit);
                progress.advance(steps(case, effort));
                rows
            }
            Case::HotPair => hot::against_mimalloc(setup, &hot::SIZES, &progress),
            Case::HotStatistics => hot::against_uncounted(setup, &progress),
            Case::HotThreads => hot::on_threads(setup, &progress),
            Case::Objects => Ok(objects::against_boxes(setup, &progress)),
            Case::Views => views::of_buffers(setup, &progress),
            Case::Stress(stress) => {
                let rows = stress.measure(setup);
                progress.advance(steps(case, effort));
                rows
            }
            // Its workloads are measured one by one.
            Case::WholeStress => Ok(Vec::new()),
        };
        let rows = rows.unwrap_or_else(|error| {
            ending = Ending::Fault;
            progress.aside(|| complain(format_args!("{case}: {error}")));
            Vec::new()
        });
        for row in &rows {
            let Some(why) = &row.error else { continue };
            ending = Ending::Fault;
            let (part, allocator) = (&row.case, row.allocator);
            progress.aside(|| complain(format_args!("{case}, {part}: {allocator}: {why}")));
        }
        // One write for each workload, so that other programs' lines do not interrupt it.
        let mut text = Vec::new();
        let mut no_room = Vec::new();
        if options.json {
            json_lines(&rows, &mut text)?;
        } else if !rows.is_empty() {
            no_room = text::workload(case, &rows, width, &mut text)?;
        }
        no_room.retain(|heading| !left_out.contains(heading));
        left_out.extend(no_room);
        progress.aside(|| out.write_all(&text).and_then(|()| out.flush()))?;
    }
    drop(progress);
    if !options.json {
        if Case::chosen(&options.workloads).any(|case| !case.chooses_devices()) {
            text::reading_aid(setup.place, &left_out, width, out)?;
        } else {
            text::stress_reading_aid(&left_out, width, out)?;
        }
        out.flush()?;
    }
    Ok(ending)
}

/// Plays one workload on its allocators.
fn measure(workload: Workload, setup: BenchSetup<'_>, limit: Bytes) -> Result<Vec<Row>, Fault> {
    let sequences = workload.sequences(limit)?;
    let clock_ns = clock_overhead();
    let mut rows = Vec::new();
    for sequence in &sequences {
        let scripts = sequence.scripts();
        let mut tables: Vec<Table<'_>> = allocators(workload, sequence, setup)
            .map(|allocator| Table::new(allocator, sequence))
            .collect();
        for _ in 0..setup.effort.rounds() {
            for table in tables.iter_mut().filter(|table| table.error.is_none()) {
                match play_fresh(table.allocator, setup, sequence, &scripts) {
                    Ok((measured, clock)) => table.enter(measured, clock),
                    Err(error) => table.error = Some(error.to_string()),
                }
            }
        }
        // Group the rows by case, with the allocators of a case together.
        for phase in 0..sequence.phases().len() {
            rows.extend(
                tables.iter().filter_map(|table| table.row(workload, setup, phase, clock_ns)),
            );
        }
    }
    Ok(rows)
}

/// The allocators for a sequence. mimalloc is one of them if the sequence is pairs of 512 B on one thread.
fn allocators(
    workload: Workload,
    sequence: &Sequence,
    setup: BenchSetup<'_>,
) -> impl Iterator<Item = Allocator> {
    let small = sequence.trace().statistics().largest == Bytes::new(512);
    let yardstick = workload == Workload::MpLat && small;
    let all = [Allocator::Forebay, Allocator::Driver].into_iter();
    let yardstick = yardstick.then_some(Allocator::Mimalloc);
    all.chain(yardstick).chain(setup.foreign.iter().copied().map(Allocator::Foreign))
}

/// Loads the allocators that `--against` names, which are for GPUs.
fn load_foreign(options: &BenchOptions) -> Result<Vec<Foreign>, String> {
    let place = options.device;
    let load = |against| match place.kind() {
        DeviceKind::Cuda => Foreign::load(against, place.ordinal()),
        _ => Err(format!("--against compares GPU allocators; use --device cuda:0, not {place}")),
    };
    options.against.iter().map(load).collect()
}

/// Plays a sequence once, on a fresh device and a fresh allocator.
fn play_fresh(
    allocator: Allocator,
    setup: BenchSetup<'_>,
    sequence: &Sequence,
    scripts: &[Script],
) -> Result<(Vec<Measured>, &'static str), Fault> {
    let fresh = FreshDevice::open(setup.place, sequence.limit())?;
    let clock = match allocator {
        Allocator::Driver => fresh.driver_clock(),
        _ => fresh.host_clock(),
    };
    let measured = match allocator {
        Allocator::Forebay => {
            let pool = setup.pool(&fresh.device, sequence.limit())?;
            play::play(&Forebay(pool), &fresh, clock, sequence, scripts)
        }
        Allocator::Driver => {
            let driver = Driver(Arc::clone(&fresh.device));
            play::play(&driver, &fresh, clock, sequence, scripts)
        }
        Allocator::Mimalloc => play::play(&Mimalloc, &fresh, clock, sequence, scripts),
        Allocator::Foreign(foreign) => play::play(&foreign, &fresh, clock, sequence, scripts),
    };
    measured.map(|measured| (measured, clock.name()))
}

/// The results of one allocator's rounds, for each phase.
struct Table<'a> {
    allocator: Allocator,
    sequence: &'a Sequence,
    best: Vec<Option<Measured>>,
    rounds: u32,
    clock: &'static str,
    error: Option<String>,
}

impl<'a> Table<'a> {
    fn new(allocator: Allocator, sequence: &'a Sequence) -> Self {
        let best = vec![None; sequence.phases().len()];
        Self { allocator, sequence, best, rounds: 0, clock: "host", error: None }
    }

    /// Adds a round: keeps the best time of each phase, and the times of all pairs.
    fn enter(&mut self, measured: Vec<Measured>, clock: &'static str) {
        self.rounds += 1;
        self.clock = clock;
        for (best, mut new) in self.best.iter_mut().zip(measured) {
            if let Some(old) = best.take() {
                new.each.extend(old.each);
                if old.elapsed < new.elapsed {
                    (new.elapsed, new.driver) = (old.elapsed, old.driver);
                }
            }
            *best = Some(new);
        }
    }

    /// The row of a phase; `None` if it is not timed.
    fn row(
        &self,
        workload: Workload,
        setup: BenchSetup<'_>,
        phase: usize,
        clock_ns: u64,
    ) -> Option<Row> {
        let plan = self.sequence.phases().get(phase)?;
        if plan.timing == Timing::Untimed {
            return None;
        }
        let mut row = Row::of(workload.name(), &plan.case, setup, self.allocator.name());
        row.threads = self.sequence.threads() as u64;
        row.ops = plan.operations();
        row.rounds = self.rounds;
        row.clock = self.clock;
        row.error.clone_from(&self.error);
        if let (None, Some(Some(best))) = (&self.error, self.best.get(phase)) {
            let over_ops = |nanos: f64| nanos / row.ops.max(1) as f64;
            // If operations were timed one by one, take their mean, which leaves out the time between them.
            let sum = best.each.iter().map(|&nanos| nanos as f64).sum::<f64>();
            row.ns_per_op = Some(match best.each.len() {
                0 => over_ops(best.elapsed.as_nanos() as f64),
                count => sum / count as f64,
            });
            row.driver_ns_per_op = match self.allocator {
                Allocator::Forebay => best.driver.map(|price| over_ops(price.as_nanos() as f64)),
                _ => None,
            };
            let clock_ns = if self.clock == "host" { clock_ns } else { 0 };
            row.each = Each::of(best.each.clone(), clock_ns);
        }
        Some(row)
    }
}
