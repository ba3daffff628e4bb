//! The debug checks of a pool: a sanitizer for stream-ordered memory. This module holds their state, each part with its
//! own lock; the calls that use it are in `calls/checked/`.
//!
//! ```text
//!   canaries      [ block ........................ ][ canary, 512 B ]
//!   guard pages   | rest [ canary ][ block ...... ]| nothing mapped: at least one granule |
//!   poison        new block: 0xCB                         free: 0xDB, checked before it is allocated
//!   quarantine    freed ──> [ oldest | ............ | newest ] ──> the heap, checked on the way
//! ```
//!
//! All patterns are written and read back in the order of the block's stream, so a correctly ordered use is never taken
//! for a mistake. Reading back waits for that stream.
//!
//! With poison on, **all free memory of the pool holds 0xDB**: new pages and freed blocks are filled with it. So a
//! block can be checked as a whole before it is allocated, and any other byte was written by mistake, wherever the page
//! has moved in between.
//!
//! **Findings.** A call that finds a mistake reports it as an error ([`Error::is_finding`]) and still does what it can:
//! a block that was to be freed is free, and must not be freed again; a request returns no block, and may be repeated.
//! Memory that was written to by mistake is *retired*: it stays unused while the pool lives, because the program may
//! write there again. Any other error has changed nothing.
//!
//! Without checks there is no cost: the fast path knows nothing of them, and the slow path asks once. Only `make_room`
//! asks each part that may withhold memory, or knows that a stream was replaced.
//!
//! With guard pages, the pages of a block are in no heap: they are mapped for it, under the lock of [`guard`], and unmapped
//! once its work is done.

pub(in crate::pool) mod canary;
pub(in crate::pool) mod guard;
pub(in crate::pool) mod probe;
pub(in crate::pool) mod quarantine;
pub(in crate::pool) mod recent_frees;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use forebay_core::{Address, Bytes, Span, StreamId};
use forebay_hal::{Device, Pattern, StreamHandle};

use self::canary::{Canaries, CanaryRecord, pattern_of};
pub(in crate::pool) use self::guard::Guards;
use self::probe::Probe;
use self::quarantine::{Quarantine, Unclean};
use self::recent_frees::RecentFrees;
use crate::config::{Counting, Settings, Zeroing};
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::log::CallLog;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// The pattern of free memory with poison on: not an address, not a likely number, and not the pattern of new blocks.
pub(in crate::pool) const FREED: u8 = 0xDB;

/// The pattern of a new block with poison on.
const UNWRITTEN: u8 = 0xCB;

/// The most findings to keep. A program with more of them has seen enough.
const MAX_FINDINGS: usize = 1000;

/// Which checks are on, from settings that cannot change while a pool lives.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Aids {
    /// The byte that new blocks are filled with.
    new_blocks: Option<u8>,
    pub(in crate::pool) poison: bool,
    pub(in crate::pool) canaries: bool,
    pub(in crate::pool) guard_pages: bool,
    pub(in crate::pool) strict_streams: bool,
    /// Whether live bytes are counted exactly at every moment.
    exact: bool,
}

impl Aids {
    pub(in crate::pool) fn of(settings: &Settings) -> Self {
        let (poison, guard_pages) = (settings.poison(), settings.guard_pages());
        let new_blocks = match settings.zero() {
            Zeroing::Blocks => Some(0),
            // With poison, free memory holds its pattern, and with guard pages every block is on new pages: then each
            // block is zeroed instead of each page.
            Zeroing::Pages if poison || guard_pages => Some(0),
            _ => poison.then_some(UNWRITTEN),
        };
        Self {
            new_blocks,
            poison,
            canaries: settings.canaries(),
            guard_pages,
            strict_streams: settings.strict_streams(),
            exact: settings.statistics() == Counting::Exact,
        }
    }

    /// Whether the pool writes to a block before returning it.
    pub(in crate::pool) fn prepares_blocks(self) -> bool {
        self.new_blocks.is_some() || self.canaries
    }
}

/// The pattern that new pages are filled with.
pub(in crate::pool) fn fresh_page_pattern(settings: &Settings) -> Option<Pattern> {
    if settings.guard_pages() {
        return None;
    }
    if settings.poison() {
        return Some(Pattern::U8(FREED));
    }
    (settings.zero() == Zeroing::Pages).then_some(Pattern::U8(0))
}

/// Whether settings make the pool check every call.
pub(in crate::pool) fn checks_calls(settings: &Settings) -> bool {
    let aids = Aids::of(settings);
    aids.prepares_blocks()
        || aids.guard_pages
        || aids.strict_streams
        || aids.exact
        || !settings.quarantine().is_zero()
}

/// The setting, if any, that makes the pool enqueue work of its own on streams, or record, query or wait there, which
/// would invalidate a capture. Counting and recording blocks does none of that.
pub(in crate::pool) fn conflicts_with_capture(settings: &Settings) -> Option<&'static str> {
    let all = [
        (settings.zero() != Zeroing::Never, "zero"),
        (settings.poison(), "poison"),
        (settings.canaries(), "canaries"),
        (settings.guard_pages(), "guard_pages"),
        (settings.strict_streams(), "strict_streams"),
        (!settings.quarantine().is_zero(), "quarantine"),
    ];
    all.into_iter().find(|&(on, _)| on).map(|(_, setting)| setting)
}

/// Whether freed blocks may be cached in magazines: not if the pool writes to each block when it is allocated or freed.
pub(in crate::pool) fn allows_magazines(settings: &Settings) -> bool {
    let aids = Aids::of(settings);
    !aids.prepares_blocks() && !aids.guard_pages
}

/// The debug checks of a pool, and their state.
///
/// The lock of `streams` is taken before the backing lock and those of the other checks, canaries before quarantine, and
/// findings after both.
pub(in crate::pool) struct DebugChecks {
    pub(in crate::pool) aids: Aids,
    pub(in crate::pool) probe: Probe,
    pub(in crate::pool) guards: Option<Guards>,
    pub(in crate::pool) canaries: Mutex<Canaries>,
    pub(in crate::pool) quarantine: Mutex<Quarantine>,
    /// The most bytes in quarantine.
    pub(in crate::pool) max_quarantined: AtomicU64,
    pub(in crate::pool) recent_frees: Mutex<RecentFrees>,
    /// Free memory without the free pattern, because the device refused to fill it.
    pub(in crate::pool) unclean: Mutex<Vec<Unclean>>,
    /// The stream that each handle stood for when it was last seen.
    pub(in crate::pool) streams: Mutex<HashMap<StreamHandle, StreamId>>,
    pub(in crate::pool) findings: Mutex<Vec<Error>>,
    pub(in crate::pool) retired: AtomicU64,
    /// Bytes in live blocks and their peak, if they are counted exactly.
    pub(in crate::pool) live: AtomicU64,
    pub(in crate::pool) peak: AtomicU64,
}

impl DebugChecks {
    pub(in crate::pool) fn new(
        device: &Arc<dyn Device>,
        settings: &Settings,
        log: &CallLog,
    ) -> Result<Self> {
        let aids = Aids::of(settings);
        let probe = Probe::new(device, log);
        let guards = aids.guard_pages.then(|| Guards::new(device, log)).transpose()?;
        Ok(Self {
            aids,
            probe,
            guards,
            canaries: Mutex::default(),
            quarantine: Mutex::default(),
            max_quarantined: AtomicU64::new(settings.quarantine().get()),
            recent_frees: Mutex::default(),
            unclean: Mutex::default(),
            streams: Mutex::default(),
            findings: Mutex::default(),
            retired: AtomicU64::new(0),
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        })
    }

    /// Bytes behind a block that belong to the pool.
    pub(in crate::pool) fn tail(&self) -> Bytes {
        // With guard pages the canary is in front of the block: nothing is mapped behind it.
        let behind = self.aids.canaries && !self.aids.guard_pages;
        if behind { canary::CANARY } else { Bytes::ZERO }
    }

    /// Whether freed blocks are checked or quarantined.
    pub(in crate::pool) fn checks_frees(&self) -> bool {
        self.aids.poison
            || self.aids.canaries
            || self.aids.guard_pages
            || self.max_quarantined.load(Ordering::Relaxed) > 0
    }

    pub(in crate::pool) fn add_live(&self, size: Bytes) {
        if self.aids.exact {
            let live = self.live.fetch_add(size.get(), Ordering::Relaxed).wrapping_add(size.get());
            self.peak.fetch_max(live, Ordering::Relaxed);
        }
    }

    /// Counts a freed block, before its memory can be allocated again.
    pub(in crate::pool) fn subtract_live(&self, size: Bytes) {
        if self.aids.exact {
            self.live.fetch_sub(size.get(), Ordering::Relaxed);
        }
    }

    /// Writes the initial contents of a block and its canary, in the order of `stream`. `canary` is empty if the block
    /// has none.
    pub(in crate::pool) fn write_patterns(
        &self,
        block: Span,
        canary: Span,
        stream: StreamHandle,
    ) -> Result<()> {
        if let Some(byte) = self.aids.new_blocks {
            self.probe.fill(block, Pattern::U8(byte), stream)?;
        }
        if self.aids.canaries && !canary.is_empty() {
            self.probe.fill(canary, pattern_of(block.start()), stream)?;
            let watched = CanaryRecord { size: block.size(), canary, stream, number: 0 };
            lock(&self.canaries).add(block.start(), watched);
        }
        Ok(())
    }

    /// Checks the canary of the block at `address`, after all work enqueued on `stream`, and fills its memory with the
    /// free pattern. Returns a finding; then nothing is filled.
    ///
    /// A device error leaves everything as before.
    pub(in crate::pool) fn check_and_poison(
        &self,
        address: Address,
        memory: FreedBlock,
    ) -> Result<Option<Error>> {
        let watched = lock(&self.canaries).blocks.get(&address).copied();
        if let Some(CanaryRecord { size, canary, stream: allocated_on, .. }) = watched {
            let pattern = pattern_of(address);
            let mismatch = self.probe.first_mismatch(canary, pattern, Some(memory.stream))?;
            let is_written_late = mismatch.is_some()
                && allocated_on != memory.stream
                && self.is_intact_later(canary, pattern)?;
            // Removed before the fill, so that no check reads it any more.
            lock(&self.canaries).blocks.remove(&address);
            if is_written_late {
                let freed_on = memory.stream;
                return Ok(Some(Error::UnorderedFree { address, size, freed_on, allocated_on }));
            }
            if let Some(mismatch) = mismatch {
                return Ok(Some(mismatch.overrun(address, size)));
            }
        }
        if self.aids.poison && !self.aids.guard_pages {
            let filled = self.probe.fill(memory.span(), Pattern::U8(FREED), memory.stream);
            if let Err(error) = filled {
                if let Some(watched) = watched {
                    lock(&self.canaries).add(address, watched);
                }
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Whether a canary that does not hold its pattern does so once all work of the device is done: then it was not
    /// overwritten, but not written yet.
    fn is_intact_later(&self, canary: Span, pattern: Pattern) -> Result<bool> {
        self.probe.synchronize()?;
        Ok(self.probe.first_mismatch(canary, pattern, None)?.is_none())
    }

    /// Finds the first byte of free memory that was written to, and names the block that was there last. No work may use the
    /// memory.
    pub(in crate::pool) fn written_since(&self, memory: FreedBlock) -> Result<Option<Error>> {
        let mismatch = self.probe.first_mismatch(memory.span(), Pattern::U8(FREED), None)?;
        let last = |at| lock(&self.recent_frees).at(at);
        Ok(mismatch.map(|mismatch| mismatch.after_free(last)))
    }

    /// The peak of live bytes, if they are counted exactly.
    pub(in crate::pool) fn peak_live(&self) -> Option<Bytes> {
        self.aids.exact.then(|| Bytes::new(self.peak.load(Ordering::Relaxed)))
    }

    /// Adds the free memory that is withheld from the heap: quarantined and unclean blocks.
    pub(in crate::pool) fn add_withheld(&self, spans: &mut Vec<Span>) {
        spans.extend(lock(&self.quarantine).spans());
        spans.extend(lock(&self.unclean).iter().map(|one| one.memory.span()));
    }

    /// Retires memory: it is never allocated again.
    pub(in crate::pool) fn retire(&self, size: Bytes) {
        self.retired.fetch_add(size.get(), Ordering::Relaxed);
    }

    /// Records a finding, unless it is recorded already.
    pub(in crate::pool) fn record_finding(&self, finding: Error) -> Error {
        let mut findings = lock(&self.findings);
        if findings.len() < MAX_FINDINGS && !findings.contains(&finding) {
            findings.push(finding.clone());
        }
        finding
    }
}
