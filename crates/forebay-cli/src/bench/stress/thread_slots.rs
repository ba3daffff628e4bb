//! STRESS-SEATS: thread slots when many threads live.
//!
//! A pool has a cache for each thread, indexed by the thread's slot. A thread that started while many others
//! lived must be as fast as the first once they have ended, and a server with thousands of threads must not
//! slow down to the speed of a lock. So 256 threads take slots, one more starts, and the 256 end; then the
//! pairs of the last thread are compared with those of the first. After that, 10,000 living threads run
//! pairs, and for comparison as many threads as there are cores run the same.
//!
//! There are 65,536 slots, more than a process may have threads by default, so every thread here gets one.
//! The tests of the slots cover threads without one.

use core::num::NonZero;
use core::time::Duration;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, ScopedJoinHandle, scope};

use forebay::Pool;
use forebay_hal::StreamHandle;

use super::tools::{
    Deadline, Latch, OpensAtEnd, STACK, Times, counted, new_row, pairs, phantom, ratio,
};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::layout::grouped;
use crate::output::{Fault, nanos};

/// How many threads live when the last one starts.
const HOLDERS: usize = 256;

/// How much longer a pair may take with 10,000 living threads than with one thread per core: each thread
/// finds its cache cold.
const CROWDED: f64 = 4.0;

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// Pairs between two looks at the clock, of a thread in the crowd.
const STRETCH: u32 = 50;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let (_machine, device) = phantom(64)?;
    let pool = setup.pool(&device, None)?;
    let mut rows = first_and_last(setup, &pool)?;
    let (count, stretches) = setup.effort.pick((10_000, 10), (300, 2));
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    // The same work in all.
    let each = u32::try_from(count * stretches / cores)?;
    let (few, together) = living(setup, &pool, cores, each)?;
    let (mut crowd, crowded) = living(setup, &pool, count, u32::try_from(stretches)?)?;
    // The elapsed time depends on the scheduler, which wakes each thread. The processor time does not.
    let what = format!("{} threads / {} (processor time a pair)", grouped(count), grouped(cores));
    crowd.aim(what, ratio(crowded, together), CROWDED);
    rows.extend([few, crowd]);
    Ok(rows)
}

/// A thread of the scope with a small stack.
fn spawn<'scope, 'env, T: Send + 'scope>(
    scope: &'scope Scope<'scope, 'env>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Fault> {
    Ok(Builder::new().stack_size(STACK).spawn_scoped(scope, work)?)
}

/// The first thread and the last that came, a batch each in turn; the best batch of each counts.
fn first_and_last(setup: BenchSetup<'_>, pool: &Pool) -> Result<Vec<Row>, Fault> {
    let (rounds, count) = setup.effort.pick((100, 5_000), (5, 200));
    // The first thread is this one: it is there before the others.
    pairs(pool, STREAM, 1)?;
    let hold = Latch::default();
    let (mut first, mut last) = (Times::default(), Times::default());
    scope(|scope| {
        let _opens = OpensAtEnd(&hold);
        let mut holders = Vec::new();
        let (ready, is_ready) = channel();
        for _ in 0..HOLDERS {
            let (ready, hold) = (ready.clone(), &hold);
            holders.push(spawn(scope, move || {
                // Nobody listens only where the benchmark failed already.
                let _ = ready.send(pairs(pool, STREAM, 1));
                hold.wait();
            })?);
        }
        for _ in 0..HOLDERS {
            is_ready.recv()??;
        }
        let (order, orders) = channel();
        let (done, took) = channel();
        let done_at_first = done.clone();
        spawn(scope, move || {
            let _ = done_at_first.send(pairs(pool, STREAM, 1));
            batches(pool, &orders, &done);
        })?;
        took.recv()??;
        hold.open();
        for holder in holders {
            holder.join().map_err(|_| "a thread that held a place panicked")?;
        }
        for _ in 0..rounds {
            first.push(nanos(pairs(pool, STREAM, count)?));
            order.send(count)?;
            last.push(nanos(took.recv()??));
        }
        drop(order);
        Ok::<(), Fault>(())
    })?;
    let row = |case: &str, times: &Times| {
        let mut row = new_row(setup, case);
        (row.ops, row.rounds) = (u64::from(count), rounds);
        row.ns_per_op = times.least().map(|least| least as f64 / f64::from(count));
        row
    };
    let first = row("first thread", &first);
    let mut last = row(&format!("thread {}", HOLDERS + 2), &last);
    let what = format!("thread {} / first thread", HOLDERS + 2);
    last.aim(what, ratio(last.ns_per_op, first.ns_per_op), 1.5);
    Ok(vec![first, last])
}

/// Does the batches that are ordered, until no more can come.
fn batches(pool: &Pool, orders: &Receiver<u32>, done: &Sender<Result<Duration, Fault>>) {
    while let Ok(count) = orders.recv() {
        if done.send(pairs(pool, STREAM, count)).is_err() {
            return;
        }
    }
}

/// So many threads that live at once. The times of the row are those of threads: a pair, on the
/// average of the thread's own pairs, so that waking them is in none of them. With it the processor time of a
/// pair in nanoseconds, where all were done.
fn living(
    setup: BenchSetup<'_>,
    pool: &Pool,
    count: usize,
    stretches: u32,
) -> Result<(Row, Option<f64>), Fault> {
    let mut row = new_row(setup, format!("{} living threads", grouped(count)));
    row.threads = count as u64;
    let starting = Deadline::after(setup.effort, 30);
    let hold = Latch::default();
    let (mut times, mut pairs_done) = (Times::default(), 0_u64);
    let mut together = 0_u64;
    let cut_off = scope(|scope| {
        let _opens = OpensAtEnd(&hold);
        let (ready, is_ready) = channel();
        let (done, is_done) = channel();
        for index in 0..count {
            let (ready, done, hold) = (ready.clone(), done.clone(), &hold);
            let thread = spawn(scope, move || {
                let _ = ready.send(pairs(pool, STREAM, 1));
                hold.wait();
                let _ = done.send(in_stretches(pool, stretches, Deadline::after(setup.effort, 20)));
            });
            if let Err(error) = thread {
                let skipped = format!("left out: the system refused thread {index}: {error}");
                return Ok(Some(skipped));
            }
            if starting.is_over() {
                return Ok(Some(
                    starting.cut(format_args!("{} had come", counted(index, "thread"))),
                ));
            }
        }
        for _ in 0..count {
            is_ready.recv()??;
        }
        hold.open();
        for _ in 0..count {
            let (took, processor, done) = is_done.recv()??;
            times.push(nanos(took) / u64::from(done).max(1));
            pairs_done += u64::from(done);
            together += processor;
        }
        Ok::<_, Fault>(None)
    })?;
    let all = count as u64 * u64::from(stretches * STRETCH);
    let undone = all.saturating_sub(pairs_done);
    row.aim("pairs that were not done", Some(undone as f64), 0.0);
    row.figures().cut_off = cut_off;
    if row.figures().cut_off.is_none() {
        times.enter(&mut row);
        // The clock is read once a stretch: nothing of it is in a pair.
        if let Some(each) = &mut row.each {
            each.clock_ns = 0;
        }
        row.ops = pairs_done;
        if pairs_done < all {
            row.figures().cut_off = Some(format!("cut off: {pairs_done} of {all} pairs were done"));
        }
    }
    let together = (undone == 0).then(|| together as f64 / all as f64);
    Ok((row, together))
}

/// Pairs of one thread, until they are done or the time is over: how long on the clock, how many nanoseconds of a
/// processor, and how many.
fn in_stretches(
    pool: &Pool,
    stretches: u32,
    deadline: Deadline,
) -> Result<(Duration, u64, u32), Fault> {
    let (mut took, mut done, began) = (Duration::ZERO, 0, processor_nanos());
    while done < stretches * STRETCH && !(done > 0 && deadline.is_over()) {
        took += pairs(pool, STREAM, STRETCH)?;
        done += STRETCH;
    }
    Ok((took, processor_nanos().saturating_sub(began), done))
}

/// How long this thread has run.
fn processor_nanos() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let nanos = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}
