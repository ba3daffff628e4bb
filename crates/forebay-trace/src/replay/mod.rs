//! Replays a recording on an allocator and reports the result.
//!
//! A pass plays every event in order and then frees what is still live; the next pass continues on the same player. So
//! the first pass shows a cold allocator, the second a warm one.

mod latency;
mod player;
mod verify;

pub use latency::Latency;
pub use player::{AddressedPlayer, DriverUse, FreeOrder, Player, ReplayError};
pub use verify::{Mismatch, NoData, Verdict, Verifier};

use core::fmt;
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::setters;

use crate::{BlockIndex, Event, Trace, WorkBudget};

/// How often progress is told: often enough for a person, too seldom to cost.
const PROGRESS_EVERY: usize = 1 << 13;

/// Options for a replay.
pub struct ReplayOptions<'a> {
    passes: u32,
    progress: Option<&'a mut dyn FnMut(u64)>,
    verify: Option<&'a mut Verifier>,
    stop_when_short: bool,
    observe: Option<&'a mut dyn FnMut(Moment<'_>)>,
    budget: Option<&'a WorkBudget<'a>>,
}

/// The moment after an event was played.
#[non_exhaustive]
pub struct Moment<'a> {
    /// The number of the pass, from 1.
    pub pass: u32,
    /// The index of the event in the recording, from 0.
    pub index: usize,
    /// The event.
    pub event: Event,
    /// The bytes that the program has requested and not freed, including refused requests.
    pub requested: Bytes,
    /// Whether the event was an allocation that ran out of memory.
    pub is_refused: bool,
    /// The player.
    pub player: &'a mut dyn Player,
}

impl fmt::Debug for Moment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Moment").field("index", &self.index).finish_non_exhaustive()
    }
}

impl<'a> ReplayOptions<'a> {
    /// The defaults: two passes, one cold and one warm, with no budget, progress reports or verification.
    pub fn new() -> Self {
        Self {
            passes: 2,
            progress: None,
            verify: None,
            stop_when_short: false,
            observe: None,
            budget: None,
        }
    }

    setters! {
        /// Sets the number of passes; at least one is played.
        passes: u32;
        /// Sets a callback for progress, called every few thousand events with the number played since the last call.
        progress: &'a mut dyn FnMut(u64);
        /// Writes every block when it is allocated and reads it before it is freed, outside the timed part. The verifier
        /// must be for the player's device.
        verify: impl Into<Option<&'a mut Verifier>>;
        /// Calls `observe` after every event of every pass, outside the timed part.
        observe: &'a mut dyn FnMut(Moment<'_>);
        /// Sets the budget, which may span other replays too.
        budget: &'a WorkBudget<'a>;
    }

    /// Ends the replay at the first allocation that runs out of memory. The last report is then that of the interrupted
    /// pass.
    #[must_use]
    pub fn stop_when_short(mut self) -> Self {
        self.stop_when_short = true;
        self
    }
}

impl Default for ReplayOptions<'_> {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ReplayOptions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayOptions").field("passes", &self.passes).finish_non_exhaustive()
    }
}

/// The result of one pass.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct PassReport {
    /// The number of the pass, from 1.
    pub pass: u32,
    /// The number of allocations and frees played.
    pub operations: u64,
    /// The peak of requested bytes.
    pub peak_requested: Bytes,
    /// The peak of bytes taken from the driver.
    pub peak_reserved: Bytes,
    /// The time of each operation on the host's clock, which itself adds some 20 to 50 ns.
    pub latency: Latency,
    /// The driver calls of this pass.
    pub driver: DriverUse,
    /// The number of allocations that ran out of memory.
    pub out_of_memory: u64,
    /// The first of them.
    pub first_out_of_memory: Option<ReplayError>,
    /// The result of verification; `None` if it was not requested.
    pub verified: Option<Verdict>,
}

impl PassReport {
    /// The peak taken divided by the peak requested: 1 is the lower limit. 0 if nothing was requested.
    pub fn ratio(&self) -> f64 {
        if self.peak_requested.is_zero() {
            return 0.0;
        }
        self.peak_reserved.get() as f64 / self.peak_requested.get() as f64
    }
}

/// Which blocks the player has at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LiveBlocks {
    /// Not allocated, freed again, or never got.
    No,
    /// Allocated on that stream.
    On(crate::StreamIndex),
}

/// Plays `trace` on `player`, pass after pass.
///
/// An allocation that runs out of memory is counted, and the replay continues without that block; any other failure
/// ends it. Frees of blocks that were never obtained are skipped.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_sim::{MemoryModel, SimMachine};
/// use forebay_trace::{Model, ReplayOptions, TraceBuilder, replay};
///
/// let mut builder = TraceBuilder::new("one block");
/// builder.allocate(0, Bytes::mib(3), 0)?;
/// let trace = builder.finish();
/// let machine = SimMachine::builder().memory(MemoryModel::Phantom).build()?;
/// let device = machine.device(0).ok_or("no device")?;
/// let mut player = Model::Torch.player(device)?;
/// let reports = replay(&trace, &mut *player, ReplayOptions::new().passes(1))?;
/// assert_eq!(reports[0].peak_reserved, Bytes::mib(20), "3 MiB come out of a 20 MiB segment");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replay(
    trace: &Trace,
    player: &mut dyn Player,
    mut options: ReplayOptions<'_>,
) -> Result<Vec<PassReport>, ReplayError> {
    let played = play_passes(trace, player, &mut options);
    if played.is_err()
        && let Some(verifier) = &mut options.verify
    {
        // Work on blocks may be under way, and the caller lets go of the player next.
        let _ = verifier.settle();
    }
    played
}

fn play_passes(
    trace: &Trace,
    player: &mut dyn Player,
    options: &mut ReplayOptions<'_>,
) -> Result<Vec<PassReport>, ReplayError> {
    let mut held = vec![LiveBlocks::No; trace.blocks()];
    let mut reports = Vec::new();
    for pass in 1..=options.passes.max(1) {
        let mut report = play(trace, player, pass, &mut held, options)?;
        for (index, held) in held.iter_mut().enumerate() {
            if let LiveBlocks::On(stream) = core::mem::replace(held, LiveBlocks::No) {
                // Blocks are numbered in 31 bits, so this never saturates.
                let block = BlockIndex(u32::try_from(index).unwrap_or(u32::MAX));
                if let Some(verifier) = &mut options.verify {
                    verifier.read(player, block, stream)?;
                }
                player.free(block, stream)?;
                spend(options.budget, None)?;
            }
        }
        if let Some(verifier) = &mut options.verify {
            report.verified = Some(verifier.verdict()?);
        }
        player.end_pass()?;
        let is_short = report.out_of_memory > 0;
        reports.push(report);
        if is_short && options.stop_when_short {
            break;
        }
    }
    Ok(reports)
}

/// Counts an event that ended `now`; unless that is known, the clock is asked.
fn spend(budget: Option<&WorkBudget<'_>>, now: Option<Instant>) -> Result<(), ReplayError> {
    budget.map_or(Ok(()), |budget| budget.spend(now.unwrap_or_else(Instant::now)))
}

fn play(
    trace: &Trace,
    player: &mut dyn Player,
    pass: u32,
    held: &mut [LiveBlocks],
    options: &mut ReplayOptions<'_>,
) -> Result<PassReport, ReplayError> {
    let before = player.driver();
    let mut report = PassReport { pass, peak_reserved: player.reserved(), ..PassReport::default() };
    let mut requested = Bytes::ZERO;
    let mut told = 0_u64;
    for (index, event) in trace.events().enumerate() {
        let refused_before = report.out_of_memory;
        let mut now = None;
        match event {
            Event::Allocate { block, size, stream } => {
                // What was asked for counts whether it was got or not: the peak is the program's.
                requested = requested.saturating_add(size);
                report.peak_requested = report.peak_requested.max(requested);
                let began = Instant::now();
                let got = player.allocate(block, size, stream);
                let took = began.elapsed();
                now = began.checked_add(took);
                report.latency.record(took);
                report.operations += 1;
                match got {
                    Ok(()) => {
                        if let Some(held) = held.get_mut(block.0 as usize) {
                            *held = LiveBlocks::On(stream);
                        }
                        if let Some(verifier) = &mut options.verify {
                            verifier.write(player, block, size, stream)?;
                        }
                    }
                    Err(error) if error.is_out_of_memory() => {
                        report.out_of_memory += 1;
                        report.first_out_of_memory.get_or_insert(error);
                        if options.stop_when_short {
                            break;
                        }
                    }
                    Err(error) => return Err(error),
                }
                report.peak_reserved = report.peak_reserved.max(player.reserved());
            }
            Event::Free { block, stream } => {
                requested = requested.saturating_sub(trace.size(block));
                let was = held
                    .get_mut(block.0 as usize)
                    .map_or(LiveBlocks::No, |held| core::mem::replace(held, LiveBlocks::No));
                if let LiveBlocks::On(_) = was {
                    if let Some(verifier) = &mut options.verify {
                        verifier.read(player, block, stream)?;
                    }
                    let began = Instant::now();
                    player.free(block, stream)?;
                    let took = began.elapsed();
                    now = began.checked_add(took);
                    report.latency.record(took);
                    report.operations += 1;
                }
            }
        }
        spend(options.budget, now)?;
        if let Some(observe) = &mut options.observe {
            let is_refused = report.out_of_memory > refused_before;
            observe(Moment { pass, index, event, requested, is_refused, player: &mut *player });
        }
        if index % PROGRESS_EVERY == 0
            && let Some(tell) = &mut options.progress
        {
            tell(index as u64 - told);
            told = index as u64;
        }
    }
    if let Some(tell) = &mut options.progress {
        tell(trace.len() as u64 - told);
    }
    report.driver = player.driver().since(before);
    Ok(report)
}

#[cfg(test)]
mod tests;
