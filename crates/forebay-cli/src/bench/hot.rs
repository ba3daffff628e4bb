//! The hot pair: a block that was just freed is allocated and freed again, compared with mimalloc in the same run.
//!
//! Contestants take turns, one batch at a time, and the best batch of each counts: a disturbance of the machine affects
//! all of them, and a disturbance of one batch affects none. A variant of the pool is one more contestant.

use core::hint::black_box;
use core::time::Duration;
use std::sync::Barrier;
use std::time::Instant;

use forebay_core::{Bytes, KIB, MIB};
use forebay_hal::{Call, StreamHandle};
use forebay_trace::workload::size_name;

use super::row::Row;
use super::setup::{BenchSetup, FreshDevice};
use super::subject::{Forebay, Mimalloc, Subject, Uncounted};
use crate::output::Fault;
use crate::progress::Progress;

/// The sizes of the pool's pairs.
pub(crate) const SIZES: [Bytes; 5] = [
    Bytes::new(512),
    Bytes::new(64 * KIB),
    Bytes::new(MIB),
    Bytes::new(16 * MIB),
    Bytes::new(256 * MIB),
];

/// The size of mimalloc's pairs.
const YARDSTICK: Bytes = Bytes::new(512);

/// The size threads take.
const THREADED: Bytes = Bytes::new(64 * KIB);

/// The names of these workloads.
pub(super) const PAIRS: &str = "HOT";
pub(super) const STATISTICS: &str = "HOT-STATISTICS";
pub(super) const THREADS: &str = "HOT-THREADS";

/// A batch of so many pairs on so many threads: from the first thread's beginning to the last's end.
type Batch<'a> = Box<dyn Fn(u32) -> forebay::Result<Duration> + 'a>;

pub(super) struct Contestant<'a> {
    row: Row,
    batch: Batch<'a>,
    best: Option<Duration>,
}

impl<'a> Contestant<'a> {
    pub(super) fn new(row: Row, batch: impl Fn(u32) -> forebay::Result<Duration> + 'a) -> Self {
        Self { row, batch: Box::new(batch), best: None }
    }
}

/// So many pairs of one size, one after the other.
fn pairs<S: Subject>(
    subject: &S,
    size: Bytes,
    stream: StreamHandle,
    count: u32,
) -> forebay::Result<(Instant, Instant)> {
    let began = Instant::now();
    for _ in 0..count {
        let held = subject.allocate(black_box(size), stream)?;
        subject.free(held, stream)?;
    }
    Ok((began, Instant::now()))
}

/// One thread's batch.
fn alone<S: Subject>(
    subject: &S,
    size: Bytes,
    stream: StreamHandle,
    count: u32,
) -> forebay::Result<Duration> {
    pairs(subject, size, stream, count).map(|(began, ended)| ended - began)
}

/// A batch on several threads, each with a stream of its own.
pub(super) fn side_by_side<S: Subject>(
    subject: &S,
    size: Bytes,
    streams: &[StreamHandle],
    count: u32,
) -> forebay::Result<Duration> {
    let gate = Barrier::new(streams.len());
    let ends: Vec<forebay::Result<(Instant, Instant)>> = std::thread::scope(|scope| {
        let begin = |&stream: &StreamHandle| {
            let gate = &gate;
            scope.spawn(move || {
                // What a thread does first, as getting its own caches, is not the hot pair.
                let warm = pairs(subject, size, stream, 1);
                gate.wait();
                warm.and_then(|_| pairs(subject, size, stream, count))
            })
        };
        let threads: Vec<_> = streams.iter().map(begin).collect();
        let panicked = |_| {
            let reason = "a thread of the benchmark panicked".into();
            Err(forebay_hal::Error::Transient { call: Call::Allocate, reason }.into())
        };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    });
    let ends: Vec<(Instant, Instant)> = ends.into_iter().collect::<forebay::Result<_>>()?;
    let began = ends.iter().map(|&(began, _)| began).min();
    let ended = ends.iter().map(|&(_, ended)| ended).max();
    Ok(began.zip(ended).map_or(Duration::ZERO, |(began, ended)| ended - began))
}

/// Lets the contestants take turns, and fills in their rows.
pub(super) fn contest(
    mut contestants: Vec<Contestant<'_>>,
    (rounds, count): (u32, u32),
    progress: &Progress,
) -> Vec<Row> {
    // The first turn warms up, and its time does not count.
    for round in 0..=rounds {
        for one in contestants.iter_mut().filter(|one| one.row.error.is_none()) {
            match (one.batch)(count) {
                Ok(_) if round == 0 => {}
                Ok(took) => one.best = Some(one.best.map_or(took, |best| best.min(took))),
                Err(error) => one.row.error = Some(error.to_string()),
            }
        }
        progress.advance(1);
    }
    let finish = |one: Contestant<'_>| {
        let mut row = one.row;
        row.rounds = rounds;
        row.ops = row.threads * u64::from(count);
        if row.error.is_none() {
            row.ns_per_op = one.best.map(|best| best.as_nanos() as f64 / row.ops.max(1) as f64);
        }
        row
    };
    contestants.into_iter().map(finish).collect()
}

/// Pairs of `sizes` through the pool, and mimalloc's of 512 B; with the quotients.
pub(crate) fn against_mimalloc(
    setup: BenchSetup<'_>,
    sizes: &[Bytes],
    progress: &Progress,
) -> Result<Vec<Row>, Fault> {
    let fresh = FreshDevice::open(setup.place, None)?;
    let streams = fresh.streams(1)?;
    let stream = streams.first().map_or(StreamHandle::DEFAULT, forebay_hal::Stream::handle);
    // A pool for each size: none finds what another left.
    let pool = || setup.pool(&fresh.device, None);
    let pools: Vec<(Bytes, Forebay)> =
        sizes.iter().map(|&size| Ok((size, Forebay(pool()?)))).collect::<Result<_, Fault>>()?;
    let row = Row::of(PAIRS, size_name(YARDSTICK), setup, "mimalloc");
    let yardstick = Contestant::new(row, |count| alone(&Mimalloc, YARDSTICK, stream, count));
    let ours = pools.iter().map(|(size, pool)| {
        let row = Row::of(PAIRS, size_name(*size), setup, "forebay");
        Contestant::new(row, move |count| alone(pool, *size, stream, count))
    });
    let contestants = [yardstick].into_iter().chain(ours).collect();
    let rows = contest(contestants, setup.effort.hot(), progress);
    Ok(over_the_first(rows))
}

/// Each over the first of them.
fn over_the_first(mut rows: Vec<Row>) -> Vec<Row> {
    let yardstick = rows.first().and_then(|row| row.ns_per_op).filter(|&ns| ns > 0.0);
    for row in &mut rows {
        row.quotient = row.ns_per_op.zip(yardstick).map(|(ns, yardstick)| ns / yardstick);
    }
    rows
}

/// The pair of 64 KiB with statistics and without: what they cost.
pub(super) fn against_uncounted(
    setup: BenchSetup<'_>,
    progress: &Progress,
) -> Result<Vec<Row>, Fault> {
    let fresh = FreshDevice::open(setup.place, None)?;
    let streams = fresh.streams(1)?;
    let stream = streams.first().map_or(StreamHandle::DEFAULT, forebay_hal::Stream::handle);
    let without = Uncounted(setup.pool(&fresh.device, None)?);
    let with = Forebay(setup.pool(&fresh.device, None)?);
    let row = |allocator| Row::of(STATISTICS, size_name(THREADED), setup, allocator);
    let contestants = vec![
        Contestant::new(row("uncounted"), |count| alone(&without, THREADED, stream, count)),
        Contestant::new(row("forebay"), |count| alone(&with, THREADED, stream, count)),
    ];
    Ok(over_the_first(contest(contestants, setup.effort.hot(), progress)))
}

/// One thread, two, and on in doublings to as many as the machine has cores.
fn thread_counts() -> Vec<usize> {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    let doubled = core::iter::successors(Some(1_usize), |count| count.checked_mul(2));
    let mut counts: Vec<usize> = doubled.take_while(|&count| count <= cores.max(2)).collect();
    if !counts.contains(&cores) {
        counts.push(cores);
    }
    counts
}

/// The most threads of a workload.
pub(super) fn max_threads() -> usize {
    thread_counts().into_iter().max().unwrap_or(1)
}

/// An allocator with the size that threads take of it, and its batch of pairs on so many threads.
pub(super) type Threaded<'a> =
    (&'static str, Bytes, &'a dyn Fn(usize, u32) -> forebay::Result<Duration>);

/// Each on one thread and more, with its throughput over that on one thread.
pub(super) fn on_more_threads(
    bench: &'static str,
    subjects: &[Threaded<'_>],
    setup: BenchSetup<'_>,
    progress: &Progress,
) -> Vec<Row> {
    let mut contestants = Vec::new();
    for &(allocator, size, batch) in subjects {
        for count in thread_counts() {
            let mut row = Row::of(bench, size_name(size), setup, allocator);
            row.threads = count as u64;
            contestants.push(Contestant::new(row, move |pairs| batch(count, pairs)));
        }
    }
    let mut rows = contest(contestants, setup.effort.threaded(), progress);
    let ones: Vec<(&str, Option<f64>)> = rows
        .iter()
        .filter(|row| row.threads == 1)
        .map(|row| (row.allocator, row.ns_per_op))
        .collect();
    for row in &mut rows {
        let one = ones.iter().find(|(allocator, _)| *allocator == row.allocator);
        let one = one.and_then(|&(_, ns)| ns);
        row.speed_up = one.zip(row.ns_per_op.filter(|&ns| ns > 0.0)).map(|(one, ns)| one / ns);
    }
    rows
}

/// The pair of 64 KiB on several threads, each with a stream of its own. mimalloc beside it shows what the machine allows.
pub(super) fn on_threads(setup: BenchSetup<'_>, progress: &Progress) -> Result<Vec<Row>, Fault> {
    let fresh = FreshDevice::open(setup.place, None)?;
    let streams = fresh.streams(max_threads())?;
    let handles: Vec<StreamHandle> = streams.iter().map(forebay_hal::Stream::handle).collect();
    let pool = Forebay(setup.pool(&fresh.device, None)?);
    let of = |count| handles.get(..count).unwrap_or_default();
    let ours = |count, pairs| side_by_side(&pool, THREADED, of(count), pairs);
    let yardstick = |count, pairs| side_by_side(&Mimalloc, YARDSTICK, of(count), pairs);
    let subjects: [Threaded<'_>; 2] =
        [("forebay", THREADED, &ours), ("mimalloc", YARDSTICK, &yardstick)];
    Ok(on_more_threads(THREADS, &subjects, setup, progress))
}
