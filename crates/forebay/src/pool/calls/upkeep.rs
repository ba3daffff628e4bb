//! Upkeep: what a pool does between requests. It reads the pressure, releases memory that was not needed for a while,
//! and runs deferred tasks; on demand, or by one thread for all pools of the process that want it. The thread also grows
//! pools ahead of their requests, if they want that.

use core::time::Duration;
use std::sync::{Condvar, MutexGuard};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_core::pressure::{Level, Response};
use forebay_hal::{Call, StreamHandle};

use crate::Result;
use crate::pool::backing::deferred::MAX_SLOW;
use crate::pool::backing::{Backing, FreePage};
use crate::pool::calls::checked::{guard, strict};
use crate::pool::calls::{flush, registry, reported, settle};
use crate::pool::common::callback_guard::{Callback, CallbackGuard};
use crate::pool::common::wait::{Deadline, WaitBudget, poll};
use crate::pool::inner::PoolInner;
use crate::pool::turn;
use crate::sync::fork::{ForkGeneration, ForkSafeMutex};
use crate::sync::thread;

/// Runs the deferred tasks that are due.
pub(in crate::pool) fn process_deferred(pool: &PoolInner) -> Result<()> {
    pool.fork_generation.check()?;
    pool.backing().run_deferred(pool.context())?;
    continue_collection(pool)?;
    settle::release_segments(pool, Deadline::Now)?;
    if let Some(guards) = &pool.debug.guards {
        guard::unmap_freed(pool, guards, Deadline::Now)?;
    }
    Ok(())
}

/// Reads the pressure after the bytes held have changed, and responds to it. The caller holds no lock.
pub(super) fn read_pressure(pool: &PoolInner) -> Bytes {
    // A callback that uses the pool brings its thread here again. What it changed is read when it has returned.
    let Some(_reading) = CallbackGuard::begin(pool.id, Callback::Pressure) else {
        return Bytes::ZERO;
    };
    // One batch, whatever is read: the request did not ask for it.
    let mut batch = None;
    for _ in 0..MAX_READINGS {
        let held = pool.group.held();
        let Some((level, response)) = read_gauge(pool, held) else { break };
        match response {
            Response::Expand => set_under_pressure(pool, false),
            Response::Clean | Response::ReleaseIdle => {
                // A small bound from now on: memory cached by one thread is lost to the others.
                set_under_pressure(pool, true);
                let mut backing = pool.backing();
                flush::flush_caches(pool, &mut backing, false);
                if response == Response::ReleaseIdle {
                    let free = backing.free_pages(pool.context()).into_iter();
                    let free = free.fold(Bytes::ZERO, |sum, page| sum.saturating_add(page.size));
                    pool.upkeep().to_release = free;
                }
            }
            _ => {}
        }
        batch.get_or_insert_with(|| release_under_pressure(pool));
        for told in &pool.options.pressure_callbacks {
            pool.callbacks.call(|| turn::in_program(|| told(level, held)));
        }
        // A callback may have forked.
        if pool.is_from_parent() {
            return Bytes::ZERO;
        }
    }
    batch.get_or_insert_with(|| release_under_pressure(pool)).0
}

/// Updates the pressure level. Once it is below high, nothing more has to be released; between high and critical the
/// release goes on, so that a pool near the threshold does not cross it again and again.
fn read_gauge(pool: &PoolInner, held: Bytes) -> Option<(Level, Response)> {
    let thresholds = pool.group.limits.thresholds();
    let mut upkeep = pool.upkeep();
    let change = upkeep.gauge.read(&thresholds, held);
    if upkeep.gauge.level() < Level::High {
        upkeep.to_release = Bytes::ZERO;
    }
    change
}

/// Releases one batch of what was idle when the pressure became critical. Memory that requests use again meanwhile stays.
/// Returns how much was released, and whether pages were taken out and more are left to release.
fn release_under_pressure(pool: &PoolInner) -> (Bytes, bool) {
    let left = pool.upkeep().to_release;
    if left.is_zero() {
        return (Bytes::ZERO, false);
    }
    let keep = pool.settings().min_bytes();
    let mut backing = pool.backing();
    let [small, large] = pool.heap().spaces.backed();
    let keep = keep.max(small.saturating_add(large).saturating_sub(left));
    let is_full = backing.deferred.releases() >= MAX_SLOW;
    let mut pages = idle_first(backing.free_pages(pool.context()));
    let (taken, released, _) = release_batch(pool, &mut backing, &mut pages, keep);
    drop(backing);
    // Segments that the device refuses now are released later.
    let segments = settle::release_segments(pool, Deadline::Now).unwrap_or_default();
    // If nothing could go although more may be taken out, nothing is idle any more.
    let is_over = taken.is_zero() && !is_full;
    let left = if is_over { Bytes::ZERO } else { left.saturating_sub(taken) };
    pool.upkeep().to_release = left;
    (released.saturating_add(segments), !taken.is_zero() && !left.is_zero())
}

/// Takes free pages out of the address spaces, unless as many are out as one batch may return, and returns those to the
/// device that no work uses. Returns how much was taken out, how much the device has back, and whether that went well.
fn release_batch(
    pool: &PoolInner,
    backing: &mut Backing,
    pages: &mut impl Iterator<Item = FreePage>,
    keep: Bytes,
) -> (Bytes, Bytes, Result<()>) {
    // In the address spaces or on their way to the device. Growth needs the backing lock, so that a difference is what was
    // returned.
    let held_in_pages = || {
        let heap = pool.heap();
        let [small, large] = heap.spaces.backed();
        small.saturating_add(large).saturating_add(heap.ledger.outgoing())
    };
    let before = held_in_pages();
    let most = MAX_SLOW.saturating_sub(backing.deferred.releases());
    let taken = backing.defer_release(pool.context(), pages, keep, most);
    let ran = backing.run_deferred(pool.context());
    (taken, before.saturating_sub(held_in_pages()), ran)
}

/// Sets whether the pool is under pressure, which lowers the bound of magazines.
fn set_under_pressure(pool: &PoolInner, under_pressure: bool) {
    pool.upkeep().under_pressure = under_pressure;
    update_magazine_bounds(pool);
}

/// Applies the bound from the settings to all magazines, or the lower one under pressure.
pub(super) fn update_magazine_bounds(pool: &PoolInner) {
    let full = pool.front.full();
    let under_pressure = pool.upkeep().under_pressure;
    pool.front.set_bound(if under_pressure { full.min(CLEANED_UNITS) } else { full });
}

/// Releases memory that was not needed in the last `age`, as far as calls of this have watched it. Does not wait
/// for the device: memory that work may still use stays for a later call. Returns how much was released.
pub(in crate::pool) fn collect(pool: &PoolInner, age: Duration) -> Result<Bytes> {
    release(pool, || collect_inner(pool, age))
}

/// Runs a call that releases memory, reads the pressure, and reports it. Returns how much was released in all: the
/// pressure may release more than the call did.
pub(in crate::pool) fn release(
    pool: &PoolInner,
    call: impl FnOnce() -> Result<Bytes>,
) -> Result<Bytes> {
    pool.fork_generation.check()?;
    let begun = reported::begin_reported(pool);
    let released = call();
    let more = read_pressure(pool);
    let released = released.map(|released| released.saturating_add(more));
    reported::tell_release(pool, &begun, &released);
    released
}

fn collect_inner(pool: &PoolInner, age: Duration) -> Result<Bytes> {
    strict::recheck_streams(pool, &mut WaitBudget::default());
    let mut backing = pool.backing();
    // Flushed first: cached blocks are not needed, and must not count as in use.
    flush::flush_caches(pool, &mut backing, false);
    let needed = {
        let mut upkeep = pool.upkeep();
        let now = pool.history.begun.elapsed();
        let most = {
            let mut heap = pool.heap();
            let out = heap.out();
            core::mem::replace(&mut heap.ledger.window_peak, out).max(out)
        };
        upkeep.decay.note(now, most);
        upkeep.decay.needed(now, age)
    };
    // A failure here does not keep the rest from being released.
    let ran = backing.run_deferred(pool.context());
    let Some(needed) = needed else { return ran.map(|()| Bytes::ZERO) };
    drop(backing);
    let keep = needed.max(pool.settings().min_bytes());
    let released = release_in_batches(pool, keep);
    ran.and(released)
}

/// Continues a collection that left memory for later. Returns whether it leaves some again.
fn continue_collection(pool: &PoolInner) -> Result<bool> {
    let Some(keep) = pool.upkeep().collecting else { return Ok(false) };
    release_in_batches(pool, keep)?;
    Ok(pool.upkeep().collecting.is_some())
}

/// Releases free memory as far as no work uses it, so that `keep` bytes stay. Other threads go on between two
/// batches, and memory that they need meanwhile stays.
fn release_in_batches(pool: &PoolInner, keep: Bytes) -> Result<Bytes> {
    let mut pages = idle_first(pool.backing().free_pages(pool.context()));
    let mut released = Bytes::ZERO;
    pool.upkeep().collecting = None;
    loop {
        let mut backing = pool.backing();
        // What requests needed since the caller looked is needed.
        let keep = keep.max(pool.heap().ledger.window_peak);
        let (taken, returned, ran) = release_batch(pool, &mut backing, &mut pages, keep);
        let waits = backing.deferred.releases() > 0;
        drop(backing);
        released = released.saturating_add(returned);
        released = released.saturating_add(settle::release_segments(pool, Deadline::Now)?);
        ran?;
        if waits && !is_release_due_soon(pool) {
            pool.upkeep().collecting = Some(keep);
            return Ok(released);
        }
        if !waits && taken.is_zero() {
            return Ok(released);
        }
        settle::let_others_in(pool);
    }
}

/// Whether the work of a page that is to be returned is done, or is within the time that an event takes on a stream
/// that has no other work.
fn is_release_due_soon(pool: &PoolInner) -> bool {
    let soon = Instant::now().checked_add(EVENT_LATENCY).map_or(Deadline::Now, Deadline::At);
    let due = poll(soon, || {
        let mut backing = pool.backing();
        if pool.captures.any() {
            return Ok(Some(false));
        }
        backing.deferred.poll();
        Ok(backing.deferred.has_due_release().then_some(true))
    });
    due.unwrap_or(false)
}

/// Merges holes as far as possible without waiting.
pub(in crate::pool) fn defragment(pool: &PoolInner) -> Result<()> {
    pool.fork_generation.check()?;
    strict::recheck_streams(pool, &mut WaitBudget::default());
    {
        let mut backing = pool.backing();
        flush::flush_caches(pool, &mut backing, false);
        backing.free_holes_of_idle_streams(pool.context());
    }
    process_deferred(pool)
}

/// Asks the thread to grow the pool further, after a request made it grow for `stream`.
pub(super) fn ask_to_grow_ahead(pool: &PoolInner, stream: StreamHandle) {
    let wanted = {
        let settings = pool.settings();
        settings.upkeep() && !settings.grow_ahead().is_zero()
    };
    if wanted {
        let serial = {
            let mut heap = pool.heap();
            heap.slots.get(stream).and_then(|slot| heap.slots.serial(slot))
        };
        pool.upkeep().grown_for = serial.map(|serial| (stream, serial));
        start();
    }
}

/// Grows the pool by what it wants to have ready, unless that is there or memory is scarce. A failure does not matter:
/// a request that needs the memory tries again.
fn grow_ahead(pool: &PoolInner) {
    let Some((stream, serial)) = pool.upkeep().grown_for.take() else { return };
    let ahead = pool.settings().grow_ahead();
    let reserve = Bytes::new(ahead.get().saturating_mul(SCARCE_BELOW));
    let room = pool.group.limits.limit().saturating_sub(pool.group.held());
    let info = pool.log.call(Call::MemoryInfo, || pool.source.memory_info());
    if !ahead.is_zero() && info.is_ok_and(|info| info.free.min(room) >= reserve) {
        let _ = pool.backing().grow_ahead(pool.context(), ahead, stream, serial);
        read_pressure(pool);
    }
}

/// One round of the upkeep thread. A failure is retried in the next one.
fn tick(pool: &PoolInner) {
    #[cfg(test)]
    assert!(!PANIC.swap(false, std::sync::atomic::Ordering::Relaxed), "on purpose");
    let age = pool.settings().collect_after();
    let _ = defragment(pool);
    match age {
        Some(age) => drop(collect(pool, age)),
        None => _ = read_pressure(pool),
    }
    while release_under_pressure(pool).1 {
        settle::let_others_in(pool);
    }
}

/// The pages in the order in which a call that does not wait should release them.
fn idle_first(mut pages: Vec<FreePage>) -> impl Iterator<Item = FreePage> {
    pages.sort_by_key(|page| !page.is_idle);
    pages.into_iter()
}

/// The longest that an event on a stream without other work takes to be reached; on one H200 10 us.
const EVENT_LATENCY: Duration = Duration::from_micros(200);

/// How long the thread pauses while it waits for work that uses memory it is to release.
const BETWEEN_COLLECTIONS: Duration = Duration::from_millis(2);

/// The most levels that one call reads and reports. A callback that changes the level each time is told the rest later.
const MAX_READINGS: usize = 4;

/// The most a magazine holds under pressure, in units of 512 B: 256 KiB.
const CLEANED_UNITS: u64 = 512;

/// A pool grows ahead while this many times as much is left. Below that, the rest is for requests.
const SCARCE_BELOW: u64 = 8;

/// The state of the upkeep thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Thread {
    /// It does not run.
    None,
    /// It runs.
    Running,
    /// It runs, and a pool has asked for it since it last read the registry.
    Requested,
}

/// The state of the thread, and the process it runs in: a forked child starts without one.
static THREAD: ForkSafeMutex<(Thread, Option<ForkGeneration>)> =
    ForkSafeMutex::new((Thread::None, None));

/// Notified when a pool asks for the thread: its interval may be shorter than the current pause.
static ASKED: Condvar = Condvar::new();

/// No other lock is taken while this one is held: a pool asks for the thread with its settings locked, and the thread
/// reads the settings of pools.
fn thread_state() -> MutexGuard<'static, (Thread, Option<ForkGeneration>)> {
    let mut state = THREAD.lock();
    let here = Some(ForkGeneration::here());
    if state.1 != here {
        *state = (Thread::None, here);
    }
    state
}

/// Starts the thread unless it runs. It ends when no pool wants it any more.
pub(in crate::pool) fn start() {
    let mut state = thread_state();
    state.0 = match state.0 {
        Thread::None => {
            let spawned = thread::spawn("forebay-upkeep", run);
            // A pool works without the thread; upkeep then happens only on demand.
            if spawned.is_ok() { Thread::Requested } else { Thread::None }
        }
        Thread::Running | Thread::Requested => Thread::Requested,
    };
    ASKED.notify_all();
}

fn run() {
    let mut last: Option<Instant> = None;
    loop {
        thread_state().0 = Thread::Running;
        let pools = registry::with_upkeep();
        let mut shortest: Option<Duration> = None;
        for (id, pool) in &pools {
            turn::with_turn(*id, pool, |pool| {
                let interval = pool.settings().upkeep_interval();
                shortest = Some(shortest.map_or(interval, |shortest| shortest.min(interval)));
            });
        }
        let Some(interval) = shortest else {
            let mut state = thread_state();
            // A pool that came meanwhile counts on this thread.
            if state.0 == Thread::Requested {
                continue;
            }
            state.0 = Thread::None;
            return;
        };
        let is_due = last.is_none_or(|last| last.elapsed() >= interval);
        let mut is_collecting = false;
        for (id, pool) in &pools {
            turn::with_turn(*id, pool, |pool| {
                let round = || {
                    grow_ahead(pool);
                    if is_due {
                        tick(pool);
                    }
                    // A failure is retried in the next round.
                    continue_collection(pool).unwrap_or(false)
                };
                // A panic, such as a listener's, ends neither the thread nor the upkeep of other pools.
                is_collecting |= pool.callbacks.call(round).unwrap_or(false);
            });
        }
        if is_due {
            last = Some(Instant::now());
        }
        let unasked = |state: &mut (Thread, Option<ForkGeneration>)| state.0 != Thread::Requested;
        let pause = interval.saturating_sub(last.map_or(Duration::ZERO, |last| last.elapsed()));
        let pause = if is_collecting { pause.min(BETWEEN_COLLECTIONS) } else { pause };
        drop(ASKED.wait_timeout_while(thread_state(), pause, unasked));
    }
}

/// Makes the next round panic, for tests.
#[cfg(test)]
pub(in crate::pool) static PANIC: std::sync::atomic::AtomicBool =
    std::sync::atomic::AtomicBool::new(false);

/// Whether the thread runs, for tests.
#[cfg(test)]
pub(in crate::pool) fn runs() -> bool {
    thread_state().0 != Thread::None
}
