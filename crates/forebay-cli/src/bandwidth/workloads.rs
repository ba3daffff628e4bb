//! Transfers as real programs make them.

use core::time::Duration;
use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use forebay::{DeviceArray, StreamHandle};
use forebay_core::{Address, Bytes, GIB, KIB, MIB};
use forebay_hal::{Copy, Fill, Location, Pattern, Priority};

use super::row::{About, Row, measure, to_usize};
use super::ways::{Bench, Direction, Way, stream, wait_or_abort};
use crate::output::Fault;
use crate::progress::Progress;
use crate::replay::DeviceName;

/// How many there are.
pub(super) const COUNT: usize = 8;

/// Small transfers of a list.
const MANY: usize = 10_000;
const SMALL: usize = 4 << 10;

/// What DC-COPY moves, and what DC-LOOP allocates, how often.
const TEN_MB: usize = 10_000_000;
const LOOP_SIZE: usize = 1 << 20;
const LOOPS: u64 = 100;

/// So many fills tell how long one takes.
const SAMPLE: u32 = 8;

type Workload = fn(&mut Run<'_>) -> Result<(), Fault>;

struct Run<'a> {
    bench: Bench,
    rounds: u32,
    rows: &'a mut Vec<Row>,
}

/// Measures all of them.
pub(super) fn run(
    place: DeviceName,
    quick: bool,
    progress: &Progress,
    rows: &mut Vec<Row>,
) -> Result<(), Fault> {
    let (largest, rounds) = if quick { (16 * MIB, 2) } else { (GIB, 10) };
    let bench = Bench::open(place, to_usize(largest), None)?;
    let mut run = Run { bench, rounds, rows };
    let all: [(&str, Workload); COUNT] = [
        ("SMALL", |run| run.small("SMALL", 1)),
        ("SCATTERED", |run| run.small("SCATTERED", 2)),
        ("ZEROS-1M", |run| run.zeros("ZEROS-1M", MIB)),
        ("ZEROS-4K", |run| run.zeros("ZEROS-4K", 4 * KIB)),
        ("FILE", |run| run.file()),
        ("OVERLAP", |run| run.overlap()),
        ("DC-COPY", |run| run.ten_megabytes()),
        ("DC-LOOP", |run| run.allocate_and_copy()),
    ];
    for (name, workload) in all {
        progress.doing(name);
        workload(&mut run)?;
        progress.advance(1);
    }
    Ok(())
}

impl Run<'_> {
    fn row(
        &mut self,
        about: About,
        mut round: impl FnMut(&mut Bench) -> Result<(), Fault>,
    ) -> Result<Duration, Fault> {
        let bench = &mut self.bench;
        let row = measure(bench.place, about, self.rounds, || round(bench))?;
        let took = Duration::from_secs_f64(row.seconds);
        self.rows.push(row);
        Ok(took)
    }

    /// 10,000 pieces of 4 KiB of ordinary memory, each to an array of its own, which are every `stride`th: neighbours, or
    /// never so.
    fn small(&mut self, name: &'static str, stride: usize) -> Result<(), Fault> {
        let on = StreamHandle::DEFAULT;
        let pool = &self.bench.pool;
        let arrays: Result<Vec<_>, _> =
            (0..MANY * stride).map(|_| pool.on(on).uninit::<u8>(SMALL)).collect();
        let mut arrays: Vec<_> = arrays?.into_iter().step_by(stride).collect();
        let source = vec![7_u8; MANY * SMALL];
        for way in self.bench.ways(&[Way::Engine, Way::Contract, Way::Driver]) {
            let about = About {
                transfers: MANY as u64,
                ..About::of(name, Direction::Up, way, SMALL as u64)
            };
            self.row(about, |bench| upload_each(bench, way, &source, &mut arrays))?;
        }
        Ok(())
    }

    /// Memory of which 19 of 20 blocks are zero.
    fn zeros(&mut self, name: &'static str, block: u64) -> Result<(), Fault> {
        let size = self.bench.largest;
        let fill = |bench: &mut Bench, value: u8| {
            let [source, _] = &mut bench.ordinary;
            for (number, block) in source.chunks_mut(to_usize(block)).enumerate() {
                block.fill(if number % 20 == 0 { 7 } else { value });
            }
        };
        fill(&mut self.bench, 0);
        for way in [Way::Engine, Way::Pinned] {
            let about = About::of(name, Direction::Up, way, size as u64);
            self.row(about, |bench| bench.go(Direction::Up, way, size))?;
        }
        fill(&mut self.bench, 7);
        Ok(())
    }

    /// A file that the system has in memory, four times as large as the array that takes it.
    fn file(&mut self) -> Result<(), Fault> {
        let size = self.bench.largest;
        let file = Arc::new(fresh_file(&self.bench.ordinary[0], 4)?);
        let stream = self.bench.device.create_stream(Priority::Normal)?;
        let mut array = Some(self.bench.pool.on(stream).uninit::<u8>(size)?);
        let way = ("engine", "file, engine");
        let bytes = 4 * size as u64;
        let about = About { way, ..About::of("FILE", Direction::Up, Way::Engine, bytes) };
        self.row(about, |bench| {
            for part in 0..4 {
                let Some(to) = array.take() else { return Ok(()) };
                let ticket = bench.engine.upload_file(&file, part * size as u64, to).submit()?;
                array = Some(ticket.wait()?);
            }
            Ok(())
        })?;
        drop(array);
        Ok(())
    }

    /// An upload beside fills on another stream that take as long as it.
    fn overlap(&mut self) -> Result<(), Fault> {
        let size = self.bench.largest;
        let beside = self.bench.device.create_stream(Priority::Normal)?;
        let about =
            |way| About { way, ..About::of("OVERLAP", Direction::Up, Way::Engine, size as u64) };
        let alone = self
            .row(about(Way::Engine.names()), |bench| bench.go(Direction::Up, Way::Engine, size))?;
        // Of several, after a first one: how long one takes where others come after it.
        let mut once = 0.0;
        for count in [1, SAMPLE] {
            let began = Instant::now();
            fills(&mut self.bench, beside, count)?;
            wait_or_abort(&*self.bench.device, beside);
            once = (began.elapsed().as_secs_f64() / f64::from(count)).max(1e-6);
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // some thousands at most
        let count = (alone.as_secs_f64() / once).round().max(1.0) as u32;
        self.row(about(("fills", "fills alone")), |bench| {
            fills(bench, beside, count)?;
            wait_or_abort(&*bench.device, beside);
            Ok(())
        })?;
        self.row(about(("engine_and_fills", "both at once")), |bench| {
            fills(bench, beside, count)?;
            let done = bench.go(Direction::Up, Way::Engine, size);
            wait_or_abort(&*bench.device, beside);
            done
        })?;
        Ok(())
    }

    /// DC-COPY: 10 MB each way.
    fn ten_megabytes(&mut self) -> Result<(), Fault> {
        let all = [Way::Pinned, Way::PinnedDriver, Way::Engine, Way::Contract, Way::Driver];
        for direction in [Direction::Up, Direction::Down] {
            for way in self.bench.ways(&all) {
                let about = About::of("DC-COPY", direction, way, TEN_MB as u64);
                self.row(about, |bench| bench.go(direction, way, TEN_MB))?;
            }
        }
        Ok(())
    }

    /// DC-LOOP: allocate, copy in, a small fill, copy out, free; with the pool and the engine, and without both.
    fn allocate_and_copy(&mut self) -> Result<(), Fault> {
        let mut memory = vec![7_u8; LOOP_SIZE];
        let about = |way| About {
            way,
            transfers: LOOPS,
            ..About::of("DC-LOOP", Direction::Both, Way::Engine, 2 * LOOP_SIZE as u64)
        };
        let stream = self.bench.device.create_stream(Priority::Normal)?;
        self.row(about(("engine", "pool and engine")), |bench| {
            for _ in 0..LOOPS {
                let mut array = bench.pool.on(stream).uninit::<u8>(LOOP_SIZE)?;
                bench
                    .engine
                    .scope(|transfers| transfers.upload(&memory, &mut array).submit()?.wait())??;
                let fill = Fill::linear(array.address(), Bytes::new(4), Pattern::U32(1))?;
                // SAFETY: the first bytes of the array, which is freed in the order of the stream.
                unsafe { bench.device.fill(&fill, stream) }?;
                bench.engine.scope(|transfers| {
                    transfers.download(&array, &mut memory).submit()?.wait()
                })??;
            }
            Ok(())
        })?;
        if self.bench.raw.is_none() {
            return Ok(());
        }
        self.row(about(("driver", "driver's own calls")), |bench| {
            let Some(raw) = &bench.raw else { return Ok(()) };
            for _ in 0..LOOPS {
                let host = Address::of_pointer(memory.as_mut_ptr()).get();
                // SAFETY: memory of this size, which the closure has alone.
                unsafe { raw.round(host, LOOP_SIZE) }?;
            }
            Ok(())
        })?;
        Ok(())
    }
}

fn upload_each(
    bench: &Bench,
    way: Way,
    source: &[u8],
    arrays: &mut [DeviceArray<u8>],
) -> Result<(), Fault> {
    let pieces = source.chunks_exact(SMALL);
    if way == Way::Engine {
        let results = bench
            .engine
            .scope(|transfers| transfers.upload_all(pieces.zip(arrays).collect()).wait())?;
        return Ok(results.into_iter().collect::<Result<(), _>>()?);
    }
    let on = StreamHandle::DEFAULT;
    let address = |piece: &[u8]| Address::of_pointer(piece.as_ptr());
    if let (Way::Driver, Some(raw)) = (way, &bench.raw) {
        let copies: Vec<_> = pieces
            .zip(&*arrays)
            .map(|(piece, array)| (on, (array.address().get(), address(piece).get(), SMALL)))
            .collect();
        // SAFETY: every array is as large as its piece, and all are waited for.
        return unsafe { raw.copy_on(&copies) };
    }
    for (piece, array) in pieces.zip(&*arrays) {
        let (to, from) = (Location::Device(array.address()), Location::Host(address(piece)));
        let copy = Copy::linear(to, from, Bytes::new(SMALL as u64))?;
        // SAFETY: as above; the stream is waited for below.
        let enqueued = unsafe { bench.device.copy(&copy, on) };
        if let Err(error) = enqueued {
            wait_or_abort(&*bench.device, on);
            return Err(error.into());
        }
    }
    wait_or_abort(&*bench.device, on);
    Ok(())
}

/// Fills the array of the other direction, again and again.
fn fills(bench: &mut Bench, on: StreamHandle, count: u32) -> Result<(), Fault> {
    let [_, array] = &bench.arrays;
    let fill = Fill::linear(array.address(), Bytes::new(bench.largest as u64), Pattern::U8(3))?;
    bench.device.synchronize_stream(stream(array))?;
    for _ in 0..count {
        // SAFETY: all of the array, whose own stream is idle; it lives until the bench is dropped, after a wait for this
        // stream.
        unsafe { bench.device.fill(&fill, on) }?;
    }
    Ok(())
}

/// A file without a name that holds `bytes` so many times.
fn fresh_file(bytes: &[u8], times: u32) -> Result<File, Fault> {
    let path = std::env::temp_dir().join(format!("forebay-bench-{}", std::process::id()));
    let mut file = File::options().read(true).write(true).create_new(true).open(&path)?;
    let written = (0..times).try_for_each(|_| file.write_all(bytes));
    std::fs::remove_file(&path)?;
    written?;
    Ok(file)
}
