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
use crate::pool::calls::registry;
use crate::pool::common::upkeep_state::Upkeep;
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::shared::Shared;
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
        let thresholds = self.group.limits.thresholds();
        let held = self.group.held();
        let Some((level, response)) = self.upkeep().gauge.read(&thresholds, held) else { return };
        match response {
            Response::Expand => self.set_under_pressure(false),
            Response::Clean | Response::ReleaseIdle => {
                // A small bound from now on: memory cached by one thread is lost to the others.
                self.set_under_pressure(true);
                let mut backing = self.backing();
                self.flush_caches(&mut backing);
                if response == Response::ReleaseIdle {
                    let keep = self.settings().min_bytes();
                    backing.defer_release(self.context(), keep);
                    let _ = backing.run_deferred(self.context(), false);
                }
                drop(backing);
                // Segments that the device refuses now are released later.
                let _ = self.release_segments(Deadline::Now);
            }
            _ => {}
        }
        for told in &self.options.pressure_callbacks {
            self.callbacks.call(|| told(level, held));
        }
    }

    /// Sets whether the pool is under pressure, which lowers the bound of magazines.
    fn set_under_pressure(&self, under_pressure: bool) {
        self.upkeep().under_pressure = under_pressure;
        self.update_magazine_bounds();
    }

    /// Applies the bound from the settings to all magazines, or the lower one under pressure.
    pub(in crate::pool) fn update_magazine_bounds(&self) {
        let full = self.magazine_units();
        let under_pressure = self.upkeep().under_pressure;
        self.bound_magazines(if under_pressure { full.min(CLEANED_UNITS) } else { full });
    }

    /// Releases memory that was not needed in the last `age`, as far as calls of this have watched it. Does not wait
    /// for the device: memory that work may still use is released when the work is done. Returns how much will be
    /// released.
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
        self.flush_caches(&mut backing);
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
        let ran = backing.run_deferred(self.context(), false);
        let Some(needed) = needed else { return ran.map(|()| Bytes::ZERO) };
        let keep = needed.max(self.settings().min_bytes());
        let released = backing.defer_release(self.context(), keep);
        let ran = ran.and(backing.run_deferred(self.context(), false));
        drop(backing);
        let given = self.release_segments(Deadline::Now);
        ran.and(given).map(|()| released)
    }

    /// Merges holes as far as possible without waiting.
    pub(in crate::pool) fn defragment(&self) -> Result<()> {
        self.birth.check()?;
        self.recheck_streams(&mut WaitBudget::default());
        {
            let mut backing = self.backing();
            self.flush_caches(&mut backing);
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
        let age = self.settings().collect_after();
        let _ = self.defragment();
        match age {
            Some(age) => drop(self.collect(age)),
            None => self.read_pressure(),
        }
    }
}

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
        let shortest = pools.iter().map(|pool| pool.settings().upkeep_interval()).min();
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
        for pool in &pools {
            pool.grow_ahead();
            if is_due {
                pool.tick();
            }
        }
        // Not kept during the pause, so that a pool can be dropped meanwhile.
        drop(pools);
        if is_due {
            last = Some(Instant::now());
        }
        let unasked = |state: &mut (Thread, Option<Birth>)| state.0 != Thread::Requested;
        let pause = interval.saturating_sub(last.map_or(Duration::ZERO, |last| last.elapsed()));
        drop(ASKED.wait_timeout_while(thread_state(), pause, unasked));
    }
}

/// Whether the thread runs, for tests.
#[cfg(test)]
pub(in crate::pool) fn runs() -> bool {
    thread_state().0 != Thread::None
}
