//! `forebay bandwidth` and `forebay bench transfer`: measure how fast data gets to a device and back, by every path.
//!
//! ```text
//!   ways ────────► a round of one way: pinned memory, ordinary memory through the engine, by the device's own copy, and on
//!      │           a GPU both by the driver's own calls, in the same run
//!   workloads ───► many small ones, zeros, a file, during work of the device, and published benchmarks of others
//!      │
//!      └─► rows: the best of some rounds, with the processor time of all threads
//! ```

mod driver;
mod row;
mod ways;
mod workloads;

use std::io::{self, Write};

use clap::Args;
use forebay::devices::VARIABLE;
use forebay_core::{Bytes, GIB, KIB, MIB};

use self::row::{About, Row, measure, to_usize};
use self::ways::{Bench, Direction, Way};
use crate::Ending;
use crate::layout::{Column, Table, WhenNarrow};
use crate::output::{Fault, Width, complain, json_lines};
use crate::progress::Progress;
use crate::replay::{DEVICES, DeviceName, device_or};

/// The options of `forebay bandwidth`.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct BandwidthOptions {
    /// The device: this machine's own memory, device number N of a driver, or simulated.
    #[arg(long, value_name = DEVICES, env = VARIABLE, default_value_t = DeviceName::HOST, value_parser = device_or(DeviceName::HOST))]
    pub device: DeviceName,

    /// The threads of the transfer engine [default: what a short measurement finds on a GPU, else one for each processor up to twelve].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,

    /// Measure small sizes in few rounds: enough to check that everything works.
    #[arg(long)]
    pub quick: bool,

    /// Print a line of JSON for each case, with "schema": "forebay.bandwidth.v1".
    #[arg(long)]
    pub json: bool,
}

/// Measures every way at every size, and writes the rows to `out`.
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

/// Measures the named workloads, and writes the rows to `out`.
pub(crate) fn bench(
    device: DeviceName,
    is_quick: bool,
    as_json: bool,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Ending> {
    let progress = Progress::of("bench transfer", workloads::COUNT as u64);
    let mut rows = Vec::new();
    let measured = workloads::run(device, is_quick, &progress, &mut rows);
    drop(progress);
    write(&rows, measured, as_json, width, out)
}

fn write(
    rows: &[Row],
    measured: Result<(), Fault>,
    json: bool,
    width: Width,
    out: &mut dyn Write,
) -> io::Result<Ending> {
    if json {
        json_lines(rows, &mut *out)?;
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
