//! `forebay bandwidth` and `forebay bench transfer`: measure how fast data gets to a device and back, by every path.
//!
//! ```text
//!   ways ────────► a round of one way: pinned memory, ordinary memory through the engine, by the device's own copy, and on
//!      │           a GPU both by the driver's own calls, in the same run
//!   workloads ───► many small ones, zeros, a file, beside work of the device, and what others have published
//!      │
//!      └─► rows: the best of some rounds, with the processor time of all threads
//! ```

mod driver;
mod ways;
mod workloads;

use core::time::Duration;
use std::io::{self, Write};
use std::time::Instant;

use forebay_core::{Bytes, GIB, KIB, MIB};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use self::ways::{Bench, Direction, Way};
use crate::Ending;
use crate::command::{BandwidthOptions, BenchOptions};
use crate::layout::{Column, Table, WhenNarrow};
use crate::output::{Width, complain};
use crate::progress::Progress;
use crate::replay::DeviceName;

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.bandwidth.v1";

type Fault = Box<dyn std::error::Error>;

/// One way at one size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    schema: &'static str,
    device: DeviceName,
    /// "SIZES", or the name of the workload.
    workload: &'static str,
    /// "up" to the device, "down" from it, or "both" at once.
    direction: &'static str,
    /// "pinned", "pinned_driver", "pinned_engine", "engine", "contract" or "driver"; of a workload also a way of its own.
    way: &'static str,
    #[serde(skip)]
    words: &'static str,
    /// How many transfers were made at a time.
    transfers: u64,
    /// The bytes of each, of both directions together.
    bytes: u64,
    /// The rounds, of which the best counts.
    rounds: u32,
    /// The time of a round.
    seconds: f64,
    gb_per_s: f64,
    /// Processor time of all threads in that round.
    cpu_seconds: f64,
}

/// What a row is about.
#[derive(Clone, Copy)]
struct About {
    workload: &'static str,
    direction: Direction,
    /// The name in JSON, and the words in tables.
    way: (&'static str, &'static str),
    transfers: u64,
    bytes: u64,
}

impl About {
    fn of(workload: &'static str, direction: Direction, way: Way, bytes: u64) -> Self {
        Self { workload, direction, way: (way.name(), way.words()), transfers: 1, bytes }
    }
}

/// The best of some rounds, after one that makes slots and threads.
fn measure(
    place: DeviceName,
    about: About,
    rounds: u32,
    mut round: impl FnMut() -> Result<(), Fault>,
) -> Result<Row, Fault> {
    let mut best = (Duration::MAX, Duration::ZERO);
    for number in 0..=rounds {
        let (began, cpu) = (Instant::now(), cpu_time());
        round()?;
        let took = began.elapsed();
        if number > 0 && took < best.0 {
            best = (took, cpu_time().saturating_sub(cpu));
        }
    }
    let About { workload, direction, way: (way, words), transfers, bytes } = about;
    let seconds = best.0.as_secs_f64();
    Ok(Row {
        schema: SCHEMA,
        device: place,
        workload,
        direction: direction.name(),
        way,
        words,
        transfers,
        bytes,
        rounds,
        seconds,
        gb_per_s: transfers.saturating_mul(bytes) as f64 / seconds.max(1e-9) / 1e9,
        cpu_seconds: best.1.as_secs_f64(),
    })
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Measures every way at every size, and writes the rows on `out`.
pub(crate) fn run(
    options: &BandwidthOptions,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Ending> {
    let sizes: &[u64] = if options.quick {
        &[4 * KIB, MIB, 16 * MIB]
    } else {
        &[4 * KIB, 64 * KIB, MIB, 16 * MIB, 64 * MIB, 256 * MIB, GIB]
    };
    let rounds = if options.quick { 2 } else { 10 };
    let all = [
        Way::Pinned,
        Way::PinnedDriver,
        Way::PinnedEngine,
        Way::Engine,
        Way::Contract,
        Way::Driver,
    ];
    let largest = sizes.last().copied().unwrap_or(0);
    let mut cases: Vec<(Direction, u64, &[Way])> = Vec::new();
    for direction in [Direction::Up, Direction::Down] {
        cases.extend(sizes.iter().map(|&size| (direction, size, &all[..])));
    }
    cases.push((Direction::Both, largest, &all[..4]));
    let progress = Progress::of("bandwidth", cases.len() as u64);
    let mut rows = Vec::new();
    let measured = Bench::open(options.device, to_usize(largest), options.threads);
    let measured = measured.and_then(|mut bench| {
        for (direction, size, ways) in cases {
            let bytes = if direction == Direction::Both { 2 * size } else { size };
            for way in bench.ways(ways) {
                let about = About::of("SIZES", direction, way, bytes);
                let round = || bench.go(direction, way, to_usize(size));
                rows.push(measure(options.device, about, rounds, round)?);
            }
            progress.advance(1);
        }
        Ok(())
    });
    drop(progress);
    write(&rows, measured, options.json, width, out)
}

/// Measures the named workloads, and writes the rows on `out`.
pub(crate) fn bench(
    options: &BenchOptions,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Ending> {
    let progress = Progress::of("bench transfer", workloads::COUNT as u64);
    let mut rows = Vec::new();
    let measured = workloads::run(options.device, options.quick, &progress, &mut rows);
    drop(progress);
    write(&rows, measured, options.json, width, out)
}

fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn write(
    rows: &[Row],
    measured: Result<(), Fault>,
    json: bool,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Ending> {
    if json {
        for row in rows {
            serde_json::to_writer(&mut *out, row)?;
            out.write_all(b"\n")?;
        }
    } else if !rows.is_empty() {
        table(rows, width, out)?;
    }
    out.flush()?;
    Ok(match measured {
        Ok(()) => Ending::Well,
        Err(error) => {
            complain(format_args!("{error}"));
            Ending::Fault
        }
    })
}

fn table(rows: &[Row], width: Width, out: &mut dyn Write) -> io::Result<()> {
    let mut columns = vec![
        Column::words("direction", WhenNarrow::Keep),
        Column::words("memory", WhenNarrow::Keep),
        Column::figures("size", WhenNarrow::Keep),
        Column::figures("GB/s", WhenNarrow::Keep),
        Column::figures("time", WhenNarrow::Drop(1)),
        Column::figures("processor time", WhenNarrow::Drop(2)),
    ];
    let named = rows.iter().any(|row| row.workload != "SIZES");
    if named {
        columns.insert(0, Column::words("workload", WhenNarrow::Keep));
    }
    let mut table = Table::new(columns);
    for row in rows {
        let size = Bytes::new(row.bytes);
        let size = if row.transfers == 1 {
            size.to_string()
        } else {
            format!("{} x {size}", row.transfers)
        };
        let micros = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        let mut cells = vec![
            row.direction.into(),
            row.words.into(),
            size.into(),
            format!("{:.2}", row.gb_per_s).into(),
            micros(row.seconds).into(),
            micros(row.cpu_seconds).into(),
        ];
        if named {
            cells.insert(0, row.workload.into());
        }
        table.row(cells);
    }
    table.write(width, out)?;
    writeln!(out)?;
    writeln!(
        out,
        "The best of {} rounds each, by this machine's clock.",
        rows.first().map_or(0, |row| row.rounds)
    )?;
    if rows.iter().any(|row| row.device == DeviceName::SIM) {
        writeln!(out, "Figures of the simulated device tell how fast it is simulated.")?;
    }
    Ok(())
}
