//! STRESS-CROWD: growing while many threads are busy.
//!
//! To grow, a pool may need every thread's cache. With more busy threads than cores, a thread that is not running
//! cannot answer, and waiting for it means waiting for the scheduler. Beside each row stands a control: plain work that
//! takes as long as growing takes alone, under the same load on another pool. The control's time is the scheduler's
//! share.

use core::hint::black_box;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::thread::{Builder, scope, sleep};
use std::time::Instant;

use forebay::Pool;
use forebay_core::Bytes;
use forebay_hal::StreamHandle;

use super::tools::{STACK, grow, new_row, pairs, phantom, ratio, row_of};
use crate::bench::row::Row;
use crate::bench::setup::BenchSetup;
use crate::output::{Fault, nanos};

/// How many busy threads.
const CROWDS: [usize; 3] = [16, 64, 200];

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// What each growth asks for: more than any page that is at hand.
const GROWTH: Bytes = Bytes::mib(300);

/// How often the pool grows: with 300 MiB each, 88 GiB of the 140.
const GROWTHS: u32 = 300;

/// How long the growing thread sleeps in between, so that the scheduler owes it time.
const PAUSE: Duration = Duration::from_micros(200);

/// Steps of plain work that are timed at once.
const WORK: u64 = 10_000;

pub(super) fn measure(setup: BenchSetup<'_>) -> Result<Vec<Row>, Fault> {
    let (crowds, growths): (&[usize], u32) = setup.effort.pick((&CROWDS, GROWTHS), (&[4], 20));
    let mut alone = new_row(setup, "alone");
    grow(setup, &new_pool(setup)?, (GROWTH, growths, PAUSE), &mut alone)?.enter(&mut alone);
    let steps = steps_for(alone.each.map_or(0, |each| each.p50_ns));
    let mut rows = vec![alone];
    for &crowd in crowds {
        let case = format!("{crowd} busy threads");
        let mut growing = new_row(setup, &case);
        let mut control = row_of(setup, &case, "control");
        (growing.threads, control.threads) = (crowd as u64 + 1, crowd as u64 + 1);
        let pool = new_pool(setup)?;
        beside(&pool, crowd, || grow(setup, &pool, (GROWTH, growths, PAUSE), &mut growing))?
            .enter(&mut growing);
        let busy = new_pool(setup)?;
        let plain_work = || {
            control.time(setup, 15, growths as usize, |_, times| {
                times.time(|| work(steps));
                sleep(PAUSE);
                Ok(())
            })
        };
        beside(&busy, crowd, plain_work)?.enter(&mut control);
        if crowd == 64 {
            let p99 = growing.each.map(|each| each.p99_ns as f64 / 1e6);
            growing.aim("p99 in milliseconds", p99, 5.0);
        }
        growing.aim("growing / control (mean)", ratio(growing.ns_per_op, control.ns_per_op), 3.0);
        rows.extend([growing, control]);
    }
    Ok(rows)
}

fn new_pool(setup: BenchSetup<'_>) -> Result<Pool, Fault> {
    let (_machine, device) = phantom(140)?;
    setup.pool(&device, None)
}

/// Does `work` while so many threads do pairs on `pool`.
fn beside<T>(
    pool: &Pool,
    crowd: usize,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let ended = AtomicBool::new(false);
    scope(|scope| {
        // However this ends, the threads do.
        let _ends = Ends(&ended);
        for _ in 0..crowd {
            let busy = || {
                while !ended.load(Ordering::Relaxed) {
                    if pairs(pool, STREAM, 100).is_err() {
                        break;
                    }
                }
            };
            Builder::new().stack_size(STACK).spawn_scoped(scope, busy)?;
        }
        sleep(Duration::from_millis(50));
        work()
    })
}

/// Work that uses the processor and nothing else.
fn work(steps: u64) {
    let mut sum = 0_u64;
    for step in 0..steps {
        sum = black_box(sum.wrapping_mul(3) ^ step);
    }
}

/// How many steps of plain work take so long when nothing disturbs them.
fn steps_for(nanoseconds: u64) -> u64 {
    let once = |_| {
        let began = Instant::now();
        work(WORK);
        nanos(began.elapsed())
    };
    let least = (0..50).map(once).min().unwrap_or(0).max(1);
    nanoseconds.saturating_mul(WORK) / least
}
