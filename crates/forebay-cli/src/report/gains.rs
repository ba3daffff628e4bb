//! What an advised change gains: the run is replayed with it.

use core::fmt;
use std::error::Error;

use forebay::{PoolOptions, Settings};
use forebay_core::Bytes;
use forebay_trace::analysis::SizeStatistics;
use forebay_trace::{Event, PassReport, PoolPlayer, ReplayOptions, Trace, TraceBuilder, replay};

use super::lives::Life;
use super::terms::{Depth, Terms};
use super::trials::{PASSES, Taken, rebuilt};
use crate::replay::{DeviceName, Row, open_device, time};

/// What a change gains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gain {
    pub(super) before: Taken,
    pub(super) after: Taken,
}

impl Gain {
    /// The saved part of the pool's peak; negative where the change costs memory.
    pub(super) fn memory(&self) -> f64 {
        saved(self.before.peak, self.after.peak)
    }

    /// The saved part of the driver's time.
    pub(super) fn driver(&self) -> f64 {
        saved(self.before.driver_ns, self.after.driver_ns)
    }

    /// Whether one figure is better by far and the other no worse.
    pub(super) fn helps(&self) -> bool {
        let (memory, driver) = (self.memory(), self.driver());
        (memory >= 0.01 && driver >= -0.1) || (driver >= 0.2 && memory >= -0.001)
    }

    /// The figures in a sentence.
    pub(super) fn sentence(&self) -> String {
        format!(
            "Replayed so, the pool takes {} instead of {} and spends {} instead of {} in the driver.",
            Bytes::new(self.after.peak),
            Bytes::new(self.before.peak),
            time(self.after.driver_ns),
            time(self.before.driver_ns),
        )
    }
}

/// Fraction saved; 0 if `before` is 0.
fn saved(before: u64, after: u64) -> f64 {
    (before as f64 - after as f64) / before.max(1) as f64
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not negated: nothing saved is +0.0.
        let (memory, driver) = (0.0 - self.memory() * 100.0, 0.0 - self.driver() * 100.0);
        write!(f, "memory {memory:+.1} %, driver time {driver:+.1} %")
    }
}

/// Replays a run with changes.
pub(super) struct Gains<'a> {
    pub(super) trace: &'a Trace,
    pub(super) lives: &'a [Life],
    terms: &'a Terms<'a>,
    /// forebay's pool with the run as it is.
    rows: &'a [Row],
}

impl<'a> Gains<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        lives: &'a [Life],
        terms: &'a Terms<'a>,
        rows: &'a [Row],
    ) -> Self {
        Self { trace, lives, terms, rows }
    }

    /// What the run takes as it is, over its first `passes`.
    pub(super) fn before(&self, passes: u32) -> Taken {
        let ours = self.rows.iter().filter(|row| row.policy == "forebay" && row.pass <= passes);
        ours.fold(Taken::default(), |sum, row| Taken {
            peak: sum.peak.max(row.peak_reserved_bytes),
            driver_ns: sum.driver_ns.saturating_add(row.driver_ns),
        })
    }

    /// What the run would take without these blocks.
    pub(super) fn without(&self, picks: impl Fn(&Life) -> bool) -> Option<Gain> {
        let others = self.trace.events().filter(|event| !self.is_picked(event, &picks));
        self.of_run(others)
    }

    /// What it would take if these blocks were allocated before all others.
    pub(super) fn first(&self, picks: impl Fn(&Life) -> bool) -> Option<Gain> {
        let is_first = |event: &Event| {
            matches!(event, Event::Allocate { .. }) && self.is_picked(event, &picks)
        };
        let first = self.trace.events().filter(is_first);
        self.of_run(first.chain(self.trace.events().filter(|event| !is_first(event))))
    }

    /// What it would take if each block were freed on the stream that allocated it.
    pub(super) fn freed_where_allocated(&self) -> Option<Gain> {
        let at_home = |event| match event {
            Event::Free { block, stream } => {
                let life = self.lives.get(block.0 as usize);
                Event::Free { block, stream: life.map_or(stream, |life| life.stream) }
            }
            other => other,
        };
        self.of_run(self.trace.events().map(at_home))
    }

    /// What its first pass would take of a pool that has had as many blocks of these sizes as are live at once.
    pub(super) fn warmed_up(&self, sizes: &[SizeStatistics]) -> Option<Gain> {
        let mut warm_up = TraceBuilder::new("warm-up");
        let stream = self.trace.streams().first().copied()?;
        let blocks = sizes.iter().flat_map(|of| (0..of.max_live).map(|_| of.size));
        for (key, size) in (0..).zip(blocks) {
            warm_up.allocate(key, size, stream).ok()?;
        }
        let warm_up = warm_up.finish();
        let after = self.measured(|player| {
            replay(&warm_up, player, self.playing(1))?;
            Ok(replay(self.trace, player, self.playing(1))?)
        })?;
        Some(Gain { before: self.before(1), after })
    }

    /// The part of its requests that thread caches serve with these settings.
    pub(super) fn cache_hits(&self, settings: &Settings) -> Option<f64> {
        let mut player = self.player(settings)?;
        replay(self.trace, &mut player, self.playing(PASSES)).ok()?;
        let figures = player.pool().statistics();
        Some(figures.magazine_hits as f64 / figures.allocations.max(1) as f64)
    }

    /// The settings in force, unless somebody chose them: those are not mixed with others.
    pub(super) fn default_settings(&self) -> Option<&Settings> {
        Some(self.terms.settings).filter(|&settings| settings == &Settings::default())
    }

    fn playing(&self, passes: u32) -> ReplayOptions<'_> {
        ReplayOptions::new().passes(passes).budget(self.terms.budget)
    }

    fn is_picked(&self, event: &Event, picks: impl Fn(&Life) -> bool) -> bool {
        let (Event::Allocate { block, .. } | Event::Free { block, .. }) = *event;
        self.lives.get(block.0 as usize).is_some_and(picks)
    }

    fn of_run(&self, events: impl Iterator<Item = Event>) -> Option<Gain> {
        let after = self.measured(|player| {
            let changed = rebuilt(self.trace, events)?;
            Ok(replay(&changed, player, self.playing(PASSES))?)
        })?;
        Some(Gain { before: self.before(PASSES), after })
    }

    /// What passes on a new pool took. `None` if nothing is to be measured, or a request was refused: then the figures
    /// are those of another run.
    fn measured(
        &self,
        play: impl FnOnce(&mut PoolPlayer) -> Result<Vec<PassReport>, Box<dyn Error>>,
    ) -> Option<Taken> {
        let passes = play(&mut self.player(self.terms.settings)?).ok()?;
        passes.iter().all(|pass| pass.out_of_memory == 0).then(|| Taken::over(&passes))
    }

    /// A new pool; `None` if nothing is to be measured.
    fn player(&self, settings: &Settings) -> Option<PoolPlayer> {
        if self.terms.depth == Depth::Quick {
            return None;
        }
        (self.terms.tell)("advice");
        let device = open_device(DeviceName::SIM, self.terms.capacity, false).ok()?;
        PoolPlayer::with(device, PoolOptions::with(settings.clone())).ok()
    }
}
