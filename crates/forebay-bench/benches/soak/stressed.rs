//! The rounds under the checker: many short episodes, each with a device and a pool of its own.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::stress::{Episode, Figures};

/// How many operations an episode has. Clocks of the checker grow with the streams that come and go, so
/// short episodes are faster than long ones, and try more pools.
const EPISODE: u64 = 16_384;

/// One episode in so many has a crowd of threads in it.
const CROWDED: u64 = 16;

/// How many threads each worker has come at once there.
const CROWD: usize = 130;

/// Some episodes, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stressed {
    pub(crate) seed: u64,
    pub(crate) threads: usize,
    pub(crate) operations: u64,
}

impl fmt::Display for Stressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}, threads {}, stress", self.seed, self.threads)
    }
}

impl Stressed {
    /// Runs them; `done` counts along.
    pub(crate) fn run(&self, done: &AtomicU64) -> Result<Figures, String> {
        let mut sum = Figures::default();
        for (seed, operations) in self.episodes() {
            let mut episode = Episode::of_seed(seed, self.threads, operations);
            if self.threads > 1 && seed % CROWDED == 0 {
                episode.crowd = CROWD;
            }
            let ended = episode.run(|_, device| device, done);
            sum.add(&ended.map_err(|what| self.violation(seed, operations, &what))?);
        }
        Ok(sum)
    }

    /// The seeds of the episodes, and how many operations each has.
    fn episodes(&self) -> impl Iterator<Item = (u64, u64)> {
        let (first, all) = (self.seed, self.operations);
        (0..all.div_ceil(EPISODE))
            .map(move |number| (first.wrapping_add(number), EPISODE.min(all - number * EPISODE)))
    }

    fn violation(&self, seed: u64, operations: u64, what: &str) -> String {
        let threads = self.threads;
        format!(
            "violation in a stress episode, seed {seed}, threads {threads}: {what}\nreplay: cargo \
             xtask soak --kind stress --operations {operations} --seed {seed} --threads {threads}"
        )
    }
}

/// In one line.
pub(crate) fn line(figures: &Figures, elapsed: Duration) -> String {
    let each = elapsed.as_nanos() / u128::from(figures.operations.max(1));
    format!(
        "{} operations in {:.1} s, {each} ns each; {} allocations, {} refused, {} failed by faults; {} \
         streams ended, {} without a word, {} frees on them; {} uses elsewhere, {} blocks handed on, {} \
         visiting threads, {} chores; no violation",
        figures.operations,
        elapsed.as_secs_f64(),
        figures.allocations,
        figures.refusals,
        figures.failures,
        figures.streams_announced + figures.streams_unannounced,
        figures.streams_unannounced,
        figures.freed_on_dead,
        figures.uses,
        figures.handed,
        figures.visitors,
        figures.chores
    )
}
