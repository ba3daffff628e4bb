//! `forebay bandwidth`: how fast memory gets to a device and back, by every way, small to large.
//!
//! ```text
//!   pinned    the device copies pinned memory itself: the limit of the wire
//!   engine    ordinary memory through the transfer engine
//!   contract  ordinary memory by the device's own copy, in stream order
//! ```

use core::time::Duration;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use forebay::transfer::{TransferEngine, TransferOptions};
use forebay::{DeviceArray, PinnedArray, PinnedPool, Pool, StreamHandle};
use forebay_core::{Address, Bytes, GIB, KIB, MIB};
use forebay_hal::{Copy, Device, Place};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

use crate::Ending;
use crate::command::BandwidthOptions;
use crate::layout::{Column, Table, WhenNarrow};
use crate::output::{Width, complain};
use crate::progress::Progress;
use crate::replay::DeviceName;

/// The id of the form. A key that is there stays there with the same meaning.
const SCHEMA: &str = "forebay.bandwidth.v1";

/// Small transfers of a list.
const MANY: usize = 10_000;

type Fault = Box<dyn std::error::Error>;

/// One way at one size.
#[derive(Clone, Debug, Serialize)]
struct Row {
    schema: &'static str,
    device: DeviceName,
    /// "up" to the device, "down" from it, or "both" at once.
    direction: &'static str,
    /// "pinned", "engine" or "contract".
    way: &'static str,
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

/// Memory of both kinds and both directions, as large as the largest case.
struct Bench {
    place: DeviceName,
    device: Arc<dyn Device>,
    engine: TransferEngine,
    arrays: [DeviceArray<u8>; 2],
    pinned: [PinnedArray<u8>; 2],
    ordinary: [Vec<u8>; 2],
}

fn stream(array: &DeviceArray<u8>) -> StreamHandle {
    array.block().stream()
}

impl Bench {
    fn open(place: DeviceName, largest: usize, threads: Option<usize>) -> Result<Self, Fault> {
        let device = place.open(None, true)?;
        let pool = Pool::new(&device)?;
        let streams = [(); 2].map(|()| device.create_stream(forebay_hal::Priority::Normal));
        let [up, down] = streams;
        let mut arrays = [pool.array(largest, up?)?, pool.array(largest, down?)?];
        for array in &mut arrays {
            array.fill(0)?;
        }
        let memory = PinnedPool::new(&device)?;
        let mut pinned = [memory.array(largest)?, memory.array(largest)?];
        // Not zero, so that nothing is left out.
        for array in &mut pinned {
            array.host_mut()?.fill(7);
        }
        let options = TransferOptions::new();
        let options = threads.map_or(options.clone(), |threads| options.threads(threads));
        let engine = options.build(&device)?;
        let ordinary = [vec![7; largest], vec![7; largest]];
        Ok(Self { place, device, engine, arrays, pinned, ordinary })
    }

    /// Copies with the device's own call between ordinary memory and an array.
    fn contract(&mut self, direction: &str, size: usize) -> Result<(), Fault> {
        let [array, _] = &self.arrays;
        let [memory, _] = &mut self.ordinary;
        let host = Place::Host(Address::of_pointer(memory.as_mut_ptr()));
        let device = Place::Device(array.address());
        let (to, from) = if direction == "up" { (device, host) } else { (host, device) };
        let copy = Copy::linear(to, from, Bytes::new(size as u64))?;
        // SAFETY: both are as large as the largest case, and are borrowed until the stream was waited for. If that fails
        // the memory may still be in use, and the program ends.
        unsafe { self.device.copy(&copy, stream(array)) }?;
        if let Err(error) = self.device.synchronize_stream(stream(array)) {
            complain(format_args!("{error}"));
            std::process::abort();
        }
        Ok(())
    }

    fn pinned(&mut self, direction: &str, size: usize) -> Result<(), Fault> {
        let [up, down] = &self.arrays;
        let [source, sink] = &mut self.pinned;
        let size = Bytes::new(size as u64);
        if direction != "down" {
            let copy =
                Copy::linear(Place::Device(up.address()), Place::Host(source.address()), size)?;
            // SAFETY: as above; a pinned array notes the use, and is not freed before it is done.
            unsafe { self.device.copy(&copy, stream(up)) }?;
            source.read_on(stream(up))?;
        }
        if direction != "up" {
            let copy =
                Copy::linear(Place::Host(sink.address()), Place::Device(down.address()), size)?;
            // SAFETY: as above.
            unsafe { self.device.copy(&copy, stream(down)) }?;
            sink.written_on(stream(down))?;
        }
        for array in [up, down] {
            self.device.synchronize_stream(stream(array))?;
        }
        Ok(())
    }

    fn engine(&mut self, direction: &str, size: usize) -> Result<(), Fault> {
        let [up, down] = &mut self.arrays;
        let [source, sink] = &mut self.ordinary;
        let (source, sink) = (&source[..size], &mut sink[..size]);
        self.engine.scope(|transfers| {
            let up = (direction != "down").then(|| transfers.upload(source, up).submit());
            let down = (direction != "up").then(|| transfers.download(down, sink).submit());
            for ticket in [up, down].into_iter().flatten() {
                ticket?.wait()?;
            }
            Ok::<(), forebay::Error>(())
        })??;
        Ok(())
    }

    /// The best of some rounds of one way.
    fn row(
        &mut self,
        direction: &'static str,
        way: &'static str,
        size: usize,
        rounds: u32,
    ) -> Result<Row, Fault> {
        let mut best = (Duration::MAX, Duration::ZERO);
        // One more, to make slots and threads.
        for round in 0..=rounds {
            let (began, cpu) = (Instant::now(), cpu_time());
            match way {
                "pinned" => self.pinned(direction, size)?,
                "engine" => self.engine(direction, size)?,
                _ => self.contract(direction, size)?,
            }
            let took = began.elapsed();
            if round > 0 && took < best.0 {
                best = (took, cpu_time().saturating_sub(cpu));
            }
        }
        let both = if direction == "both" { 2 } else { 1 };
        Ok(self.result(direction, way, (1, size as u64 * both), rounds, best))
    }

    /// Many small transfers of ordinary memory: in a batch, and one by one.
    fn many(&mut self, way: &'static str, size: usize, rounds: u32) -> Result<Row, Fault> {
        let pool = Pool::new(&self.device)?;
        let stream = StreamHandle::DEFAULT;
        let mut arrays = Vec::new();
        for _ in 0..MANY {
            arrays.push(pool.array::<u8>(size, stream)?);
        }
        let source = vec![7_u8; MANY * size];
        let mut best = (Duration::MAX, Duration::ZERO);
        for round in 0..=rounds {
            let (began, cpu) = (Instant::now(), cpu_time());
            if way == "engine" {
                let results = self.engine.scope(|transfers| {
                    let items = source.chunks_exact(size).zip(&mut arrays).collect();
                    transfers.upload_all(items).wait()
                })?;
                results.into_iter().collect::<Result<(), _>>()?;
            } else {
                for (from, array) in source.chunks_exact(size).zip(&arrays) {
                    let from = Place::Host(Address::of_pointer(from.as_ptr()));
                    let to = Place::Device(array.address());
                    let copy = Copy::linear(to, from, Bytes::new(size as u64))?;
                    // SAFETY: as above; the stream is waited for below.
                    unsafe { self.device.copy(&copy, stream) }?;
                }
                if let Err(error) = self.device.synchronize_stream(stream) {
                    complain(format_args!("{error}"));
                    std::process::abort();
                }
            }
            let took = began.elapsed();
            if round > 0 && took < best.0 {
                best = (took, cpu_time().saturating_sub(cpu));
            }
        }
        Ok(self.result("up", way, (MANY as u64, size as u64), rounds, best))
    }

    fn result(
        &self,
        direction: &'static str,
        way: &'static str,
        (transfers, bytes): (u64, u64),
        rounds: u32,
        (took, cpu): (Duration, Duration),
    ) -> Row {
        let seconds = took.as_secs_f64();
        let all = transfers.saturating_mul(bytes) as f64;
        Row {
            schema: SCHEMA,
            device: self.place,
            direction,
            way,
            transfers,
            bytes,
            rounds,
            seconds,
            gb_per_s: all / seconds.max(1e-9) / 1e9,
            cpu_seconds: cpu.as_secs_f64(),
        }
    }
}

/// Processor time of all threads so far.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_nanos(u64::try_from(now.tv_nsec).unwrap_or(0))
}

/// Measures, and writes the rows on `out`.
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
    let mut cases: Vec<(&str, &str, usize)> = Vec::new();
    for direction in ["up", "down"] {
        for &size in sizes {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            cases.extend(["pinned", "engine", "contract"].map(|way| (direction, way, size)));
        }
    }
    let largest = sizes.last().copied().and_then(|size| usize::try_from(size).ok()).unwrap_or(0);
    cases.extend(["pinned", "engine"].map(|way| ("both", way, largest)));
    let progress = Progress::of("bandwidth", cases.len() as u64 + 2);
    let mut rows = Vec::new();
    let measured = Bench::open(options.device, largest, options.threads).and_then(|mut bench| {
        for (direction, way, size) in cases {
            rows.push(bench.row(direction, way, size, rounds)?);
            progress.advance(1);
        }
        for way in ["engine", "contract"] {
            rows.push(bench.many(way, 4 << 10, rounds)?);
            progress.advance(1);
        }
        Ok(())
    });
    drop(progress);
    if options.json {
        for row in &rows {
            serde_json::to_writer(&mut *out, row)?;
            out.write_all(b"\n")?;
        }
    } else if !rows.is_empty() {
        table(&rows, width, out)?;
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
    let mut table = Table::new([
        Column::words("direction", WhenNarrow::Keep),
        Column::words("memory", WhenNarrow::Keep),
        Column::figures("size", WhenNarrow::Keep),
        Column::figures("GB/s", WhenNarrow::Keep),
        Column::figures("time", WhenNarrow::Drop(1)),
        Column::figures("processor time", WhenNarrow::Drop(2)),
    ]);
    for row in rows {
        let memory = match row.way {
            "pinned" => "pinned",
            "engine" => "ordinary, engine",
            _ => "ordinary, device's copy",
        };
        let size = Bytes::new(row.bytes);
        let size = if row.transfers == 1 {
            size.to_string()
        } else {
            format!("{} x {size}", row.transfers)
        };
        let micros = |seconds: f64| format!("{:.1} us", seconds * 1e6);
        table.row([
            row.direction.into(),
            memory.into(),
            size.into(),
            format!("{:.2}", row.gb_per_s).into(),
            micros(row.seconds).into(),
            micros(row.cpu_seconds).into(),
        ]);
    }
    table.write(width, out)?;
    writeln!(out)?;
    writeln!(
        out,
        "The best of {} rounds each, by this machine's clock.",
        rows.first().map_or(0, |row| row.rounds)
    )?;
    if rows.iter().any(|row| row.device == DeviceName::Sim) {
        writeln!(out, "Figures of the simulated device tell how fast it is simulated.")?;
    }
    Ok(())
}
