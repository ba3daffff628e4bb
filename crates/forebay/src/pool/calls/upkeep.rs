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
use crate::pool::backing::deferred::MOST_SLOW;
use crate::pool::backing::{Backing, FreePage};
use crate::pool::calls::registry;
use crate::pool::common::callback_guard::{Callback, CallbackGuard};
use crate::pool::common::upkeep_state::Upkeep;
use crate::pool::common::wait::{Deadline, WaitBudget, poll};
use crate::pool::shared::Shared;
use crate::pool::turn;
use crate::sync::fork::{Birth, ForkSafeMutex};
use crate::sync::{thread, tracked};

impl Shared {
    pub(in crate::pool) fn upkeep(&self) -> tracked::Guard<'_, Upkeep> {
        tracked::lock(&self.upkeep)
    }

    /// How near the pool is to its limit.
    pub(in crate::pool) fn pressure(&self) -> Level {
        self.group.limits.thresholds().level(self.group.held())
    }

    /// Reads the pressure after the bytes held have changed, and responds to it. The caller holds no lock.
    pub(in crate::pool) fn read_pressure(&self) {
        // A callback that uses the pool brings its thread here again. What it changed is read when it has returned.
        let Some(_reading) = CallbackGuard::begin(self.id, Callback::Pressure) else { return };
        let mut may_release = true;
        // One batch, whatever is read: the request did not ask for it.
        let mut release = || {
            if core::mem::take(&mut may_release) {
                self.release_under_pressure();
            }
        };
        for _ in 0..MOST_READINGS {
            let held = self.group.held();
            let Some((level, response)) = self.read_gauge(held) else { break };
            match response {
                Response::Expand => self.set_under_pressure(false),
                Response::Clean | Response::ReleaseIdle => {
                    // A small bound from now on: memory cached by one thread is lost to the others.
                    self.set_under_pressure(true);
                    let mut backing = self.backing();
                    self.flush_caches(&mut backing, false);
                    if response == Response::ReleaseIdle {
                        let free = backing.free_pages(self.context()).into_iter();
                        let free =
                            free.fold(Bytes::ZERO, |sum, page| sum.saturating_add(page.size));
                        self.upkeep().to_release = free;
                    }
                }
                _ => {}
            }
            release();
            for told in &self.options.pressure_callbacks {
                self.callbacks.call(|| turn::in_program(|| told(level, held)));
            }
            // A callback may have forked.
            if self.is_inherited() {
                return;
            }
        }
        release();
    }

    /// Updates the pressure level. Once it is below high, nothing more has to be released; between high and critical the
    /// release goes on, so that a pool near the threshold does not cross it again and again.
    fn read_gauge(&self, held: Bytes) -> Option<(Level, Response)> {
        let thresholds = self.group.limits.thresholds();
        let mut upkeep = self.upkeep();
        let change = upkeep.gauge.read(&thresholds, held);
        if upkeep.gauge.level() < Level::High {
            upkeep.to_release = Bytes::ZERO;
        }
        change
    }

    /// Releases one batch of what was idle when the pressure became critical. Returns whether it did and more is left.
    /// Memory that requests use again meanwhile stays.
    fn release_under_pressure(&self) -> bool {
        let left = self.upkeep().to_release;
        if left.is_zero() {
            return false;
        }
        let keep = self.settings().min_bytes();
        let mut backing = self.backing();
        let keep = keep.max(self.heap().backed().saturating_sub(left));
        let is_full = backing.deferred.releases() >= MOST_SLOW;
        let mut pages = idle_first(backing.free_pages(self.context()));
        let taken = self.take_out_batch(&mut backing, &mut pages, keep);
        let _ = backing.run_deferred(self.context());
        drop(backing);
        // Segments that the device refuses now are released later.
        let _ = self.release_segments(Deadline::Now);
        // If nothing could go although more may be taken out, nothing is idle any more.
        let is_over = taken.is_zero() && !is_full;
        let left = if is_over { Bytes::ZERO } else { left.saturating_sub(taken) };
        self.upkeep().to_release = left;
        !taken.is_zero() && !left.is_zero()
    }

    /// Takes free pages out of the address spaces, unless as many are out as one batch may return.
    fn take_out_batch(
        &self,
        backing: &mut Backing,
        pages: &mut impl Iterator<Item = FreePage>,
        keep: Bytes,
    ) -> Bytes {
        let most = MOST_SLOW.saturating_sub(backing.deferred.releases());
        backing.defer_release(self.context(), pages, keep, most)
    }

    /// Sets whether the pool is under pressure, which lowers the bound of magazines.
    fn set_under_pressure(&self, under_pressure: bool) {
        self.upkeep().under_pressure = under_pressure;
        self.update_magazine_bounds();
    }

    /// Applies the bound from the settings to all magazines, or the lower one under pressure.
    pub(in crate::pool) fn update_magazine_bounds(&self) {
        let full = self.front.full();
        let under_pressure = self.upkeep().under_pressure;
        self.front.set_bound(if under_pressure { full.min(CLEANED_UNITS) } else { full });
    }

    /// Releases memory that was not needed in the last `age`, as far as calls of this have watched it. Does not wait
    /// for the device: memory that work may still use stays for a later call. Returns how much was released.
    pub(in crate::pool) fn collect(&self, age: Duration) -> Result<Bytes> {
        self.birth.check()?;
        let begun = self.begin_told();
        let collected = self.collect_inner(age);
        self.tell_release(&begun, &collected);
        self.read_pressure();
        collected
    }

    fn collect_inner(&self, age: Duration) -> Result<Bytes> {
        self.recheck_streams(&mut WaitBudget::default());
        let mut backing = self.backing();
        // Flushed first: cached blocks are not needed, and must not count as in use.
        self.flush_caches(&mut backing, false);
        let needed = {
            let mut upkeep = self.upkeep();
            let now = upkeep.begun.elapsed();
            let most = {
                let mut heap = self.heap();
                let out = heap.out();
                core::mem::replace(&mut heap.window_peak, out).max(out)
            };
            upkeep.decay.note(now, most);
            upkeep.decay.needed(now, age)
        };
        // A failure here does not keep the rest from being released.
        let ran = backing.run_deferred(self.context());
        let Some(needed) = needed else { return ran.map(|()| Bytes::ZERO) };
        drop(backing);
        let keep = needed.max(self.settings().min_bytes());
        let released = self.release_in_batches(keep);
        ran.and(released)
    }

    /// Continues a collection that left memory for later. Returns whether it leaves some again.
    pub(in crate::pool) fn continue_collection(&self) -> Result<bool> {
        let Some(keep) = self.upkeep().collecting else { return Ok(false) };
        self.release_in_batches(keep)?;
        Ok(self.upkeep().collecting.is_some())
    }

    /// Releases free memory as far as no work uses it, so that `keep` bytes stay. Other threads go on between two
    /// batches, and memory that they need meanwhile stays.
    fn release_in_batches(&self, keep: Bytes) -> Result<Bytes> {
        let mut pages = idle_first(self.backing().free_pages(self.context()));
        let mut released = Bytes::ZERO;
        self.upkeep().collecting = None;
        loop {
            let mut backing = self.backing();
            // Growth needs the backing lock too, so that within it the difference is what was returned.
            let held = || {
                let heap = self.heap();
                heap.backed().saturating_add(heap.outgoing)
            };
            // What requests needed since the caller looked is needed.
            let keep = keep.max(self.heap().window_peak);
            let before = held();
            let taken = self.take_out_batch(&mut backing, &mut pages, keep);
            let ran = backing.run_deferred(self.context());
            let returned = before.saturating_sub(held());
            let waits = backing.deferred.releases() > 0;
            drop(backing);
            released = released.saturating_add(returned);
            released = released.saturating_add(self.release_segments(Deadline::Now)?);
            ran?;
            if waits && !self.is_release_due_soon() {
                self.upkeep().collecting = Some(keep);
                return Ok(released);
            }
            if !waits && taken.is_zero() {
                return Ok(released);
            }
            self.let_others_in();
        }
    }

    /// Whether the work of a page that is to be returned is done, or is within the time that an event takes on a stream
    /// that has no other work.
    fn is_release_due_soon(&self) -> bool {
        let soon = Instant::now().checked_add(EVENT_LATENCY).map_or(Deadline::Now, Deadline::At);
        let due = poll(soon, || {
            let mut backing = self.backing();
            if self.captures.any() {
                return Ok(Some(false));
            }
            backing.deferred.poll();
            Ok(backing.deferred.has_due_release().then_some(true))
        });
        due.unwrap_or(false)
    }

    /// Merges holes as far as possible without waiting.
    pub(in crate::pool) fn defragment(&self) -> Result<()> {
        self.birth.check()?;
        self.recheck_streams(&mut WaitBudget::default());
        {
            let mut backing = self.backing();
            self.flush_caches(&mut backing, false);
            backing.free_holes_of_idle_streams(self.context());
        }
        self.process_deferred()
    }

    /// After a request made the pool grow for `stream`: the thread is to make it grow further.
    pub(in crate::pool) fn ask_to_grow_ahead(&self, stream: StreamHandle) {
        let wanted = {
            let settings = self.settings();
            settings.upkeep() && !settings.grow_ahead().is_zero()
        };
        if wanted {
            let serial = {
                let mut heap = self.heap();
                heap.slots.get(stream).and_then(|slot| heap.slots.serial(slot))
            };
            self.upkeep().grown_for = serial.map(|serial| (stream, serial));
            start();
        }
    }

    /// Makes the pool grow by what it wants to have ready, unless it is there or memory is scarce. A failure does not
    /// matter: a request that needs the memory tries again.
    fn grow_ahead(&self) {
        let Some((stream, serial)) = self.upkeep().grown_for.take() else { return };
        let ahead = self.settings().grow_ahead();
        let reserve = Bytes::new(ahead.get().saturating_mul(SCARCE_BELOW));
        let room = self.group.limits.limit().saturating_sub(self.group.held());
        let info = self.log.call(Call::MemoryInfo, || self.device.memory_info());
        if !ahead.is_zero() && info.is_ok_and(|info| info.free.min(room) >= reserve) {
            let _ = self.backing().grow_ahead(self.context(), ahead, stream, serial);
            self.read_pressure();
        }
    }

    /// One round of the upkeep thread. A failure is retried in the next one.
    fn tick(&self) {
        #[cfg(test)]
        assert!(!PANIC.swap(false, std::sync::atomic::Ordering::Relaxed), "on purpose");
        let age = self.settings().collect_after();
        let _ = self.defragment();
        match age {
            Some(age) => drop(self.collect(age)),
            None => self.read_pressure(),
        }
        while self.release_under_pressure() {
            self.let_others_in();
        }
    }
}

/// The pages in the order in which a call that does not wait should release them.
fn idle_first(mut pages: Vec<FreePage>) -> impl Iterator<Item = FreePage> {
    pages.sort_by_key(|page| !page.is_idle);
    pages.into_iter()
}

/// How long an event of a stream without other work takes at most to be reached; on one H200 10 us.
const EVENT_LATENCY: Duration = Duration::from_micros(200);

/// How long the thread pauses while it waits for work that uses memory it is to release.
const BETWEEN_COLLECTIONS: Duration = Duration::from_millis(2);

/// The most levels that one call reads and tells. A callback that changes the level each time is told the rest later.
const MOST_READINGS: usize = 4;

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

/// The state of the thread, and the process it is of: a forked child starts without one.
static THREAD: ForkSafeMutex<(Thread, Option<Birth>)> = ForkSafeMutex::new((Thread::None, None));

/// Notified when a pool asks for the thread: its interval may be shorter than the current pause.
static ASKED: Condvar = Condvar::new();

/// No other lock is taken while this one is held: a pool asks for the thread with its settings locked, and the thread
/// reads the settings of pools.
fn thread_state() -> MutexGuard<'static, (Thread, Option<Birth>)> {
    let mut state = THREAD.lock();
    let here = Some(Birth::here());
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
                    pool.grow_ahead();
                    if is_due {
                        pool.tick();
                    }
                    // A failure is retried in the next round.
                    pool.continue_collection().unwrap_or(false)
                };
                // A panic, as of a listener of the program, ends neither the thread nor the upkeep of other pools.
                is_collecting |= pool.callbacks.call(round).unwrap_or(false);
            });
        }
        if is_due {
            last = Some(Instant::now());
        }
        let unasked = |state: &mut (Thread, Option<Birth>)| state.0 != Thread::Requested;
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
