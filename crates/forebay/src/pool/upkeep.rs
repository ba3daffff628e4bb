//! Upkeep: what a pool does between requests. Reading the pressure, collecting what was not needed for
//! a while, running errands; by hand, or by one thread for all pools of the process that want it.

use core::time::Duration;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use forebay_core::pressure::{Answer, Gauge, Level, Thresholds};
use forebay_core::{Bytes, Decay};

use super::registry;
use super::shared::Shared;
use crate::Result;

/// What upkeep remembers.
#[derive(Debug)]
pub(super) struct Upkeep {
    begun: Instant,
    decay: Decay,
    gauge: Gauge,
}

impl Upkeep {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), decay: Decay::default(), gauge: Gauge::default() }
    }
}

impl Shared {
    fn upkeep(&self) -> MutexGuard<'_, Upkeep> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn thresholds(&self) -> Thresholds {
        let limit = self.works().limit;
        let settings = self.settings();
        Thresholds {
            low: settings.pressure_low().of(limit),
            moderate: settings.pressure_moderate().of(limit),
            high: settings.pressure_high().of(limit),
            critical: settings.pressure_critical().of(limit),
        }
    }

    /// How near the pool is to its limit.
    pub(super) fn pressure(&self) -> Level {
        self.thresholds().level(self.heap().held())
    }

    /// Reads the pressure after what is held has changed, and does what it calls for. No lock is held.
    pub(super) fn read_pressure(&self) {
        let thresholds = self.thresholds();
        let held = self.heap().held();
        let Some((level, answer)) = self.upkeep().gauge.read(&thresholds, held) else { return };
        let full = self.magazine_units();
        match answer {
            Answer::Expand => self.bound_magazines(full),
            Answer::Clean | Answer::GiveBack => {
                // Small from now on: what a thread has at hand is lost to the others.
                self.bound_magazines(full.min(CLEANED_UNITS));
                let mut works = self.works();
                // What cannot be folded at the moment stays where it is; nothing is lost.
                let _ = self.fold(&mut works);
                if answer == Answer::GiveBack {
                    let keep = self.settings().min_bytes();
                    let _ = works.retire(self.site(), keep);
                }
            }
            _ => {}
        }
        for told in &self.options.pressure {
            told(level, held);
        }
    }

    /// Gives back to the device what was not needed in the last `age`, as far as that was watched:
    /// from one call of this to the next. Does not wait for the device; what work may still use goes
    /// when it is done. Gives how much is to go.
    pub(super) fn collect(&self, age: Duration) -> Result<Bytes> {
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
        let Some(needed) = needed else { return Ok(Bytes::ZERO) };
        let keep = needed.max(self.settings().min_bytes());
        let mut works = self.works();
        self.fold(&mut works)?;
        works.run_errands(self.site(), false)?;
        works.retire(self.site(), keep)
    }

    /// One round of the background thread. What fails now is tried in the next.
    fn tick(&self) {
        let age = self.settings().collect_after();
        let _ = match age {
            Some(age) => self.collect(age).map(drop),
            None => self.process_deferred(),
        };
        self.read_pressure();
    }
}

/// What a magazine holds at the most under pressure, in units of 512 B: 256 KiB.
const CLEANED_UNITS: u64 = 512;

/// Whether the thread is there.
static RUNNING: Mutex<bool> = Mutex::new(false);

/// Starts the thread, unless it is there. It ends when no pool wants it any more.
pub(super) fn start() {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    if !*running {
        let spawned = thread::Builder::new().name("forebay-upkeep".to_owned()).spawn(run);
        // Without a thread there is no upkeep but by hand: a pool works all the same.
        *running = spawned.is_ok();
    }
}

fn run() {
    loop {
        let pools: Vec<_> =
            registry::all().into_iter().filter(|pool| pool.settings().upkeep()).collect();
        let shortest = pools.iter().map(|pool| pool.settings().upkeep_interval()).min();
        let Some(interval) = shortest else {
            let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
            // One that came since was told that there is a thread.
            if registry::all().iter().any(|pool| pool.settings().upkeep()) {
                continue;
            }
            *running = false;
            return;
        };
        for pool in &pools {
            pool.tick();
        }
        // Not kept over the pause: a pool goes when its last user does.
        drop(pools);
        thread::sleep(interval);
    }
}
