//! Debug checks: the debugging aids of a pool. A sanitizer for memory in the order of streams.
//!
//! ```text
//!   canaries      [ block ........................ ][ canary, 512 B ]
//!   guard pages   | rest [ canary ][ block ...... ]| nothing is mapped here, a granule at least |
//!   poison        given out: 0xCB until it is written     free: 0xDB, looked at before it goes out
//!   quarantine    freed ──> [ oldest | ............ | newest ] ──> the heap, looked at on the way
//! ```
//!
//! Everything is written and read back in the order of the block's stream, so a use that the program
//! has ordered rightly is never taken for a mistake. Reading back waits for that stream.
//!
//! With poison on, **all free memory of the pool holds 0xDB**: new pages are filled with it, and so is
//! every block that comes back. So whatever is given out can be looked at as a whole, and any other
//! byte was written by someone who had no right to, wherever the page has moved in between.
//!
//! **What a call does that finds something.** It tells it as an error ([`Error::is_finding`]), and
//! does what it can: a block that was to be freed is taken back, and must not be freed again; a
//! request gets no block, and may be made again. Memory that someone wrote to without right is
//! *retired*: nobody gets it again as long as the pool lives, because whoever wrote there may do so
//! again. An error that is no finding has changed nothing, as everywhere.
//!
//! A pool with no aid on has none of this in its way: the fast path of a request knows nothing of it,
//! and the slow path asks once.

pub(in crate::pool) mod blocks;
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

use forebay_core::{Bytes, Span, StreamId};
use forebay_hal::{Device, Pattern, StreamHandle};

use self::canary::Canaries;
pub(in crate::pool) use self::guard::Guards;
use self::probe::Probe;
use self::quarantine::{Quarantine, Unclean};
use self::recent_frees::RecentFrees;
use crate::config::{Counting, Settings, Zeroing};
use crate::pool::common::log::CallLog;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// What free memory holds where poison is on: no address, no number a program computes with, and
/// not what new blocks hold.
pub(in crate::pool) const FREED: u8 = 0xDB;

/// What a block holds before it is written, where poison is on.
pub(in crate::pool) const UNWRITTEN: u8 = 0xCB;

/// How many findings are remembered. A program that makes more has seen enough.
const MOST_FINDINGS: usize = 1000;

/// Which aids are on, as settings say that cannot change while a pool lives.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Aids {
    /// What new blocks are filled with.
    pub(in crate::pool) new_blocks: Option<u8>,
    pub(in crate::pool) poison: bool,
    pub(in crate::pool) canaries: bool,
    pub(in crate::pool) guard_pages: bool,
    pub(in crate::pool) strict_streams: bool,
    /// Whether live bytes are counted at every moment.
    pub(in crate::pool) exact: bool,
}

impl Aids {
    pub(in crate::pool) fn of(settings: &Settings) -> Self {
        let (poison, guard_pages) = (settings.poison(), settings.guard_pages());
        let new_blocks = match settings.zero() {
            Zeroing::Blocks => Some(0),
            // Where free memory holds a pattern, and where every block is new pages, what comes from
            // new pages is zeroed when it is given out.
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

    /// Whether a block is written to before it is given out.
    pub(in crate::pool) fn prepares_blocks(self) -> bool {
        self.new_blocks.is_some() || self.canaries
    }
}

/// What new pages of a pool are filled with before anything else.
pub(in crate::pool) fn fresh_page_pattern(settings: &Settings) -> Option<Pattern> {
    if settings.guard_pages() {
        return None;
    }
    if settings.poison() {
        return Some(Pattern::U8(FREED));
    }
    (settings.zero() == Zeroing::Pages).then_some(Pattern::U8(0))
}

/// Whether settings have the pool look after every block.
pub(in crate::pool) fn checks_calls(settings: &Settings) -> bool {
    let aids = Aids::of(settings);
    aids.prepares_blocks()
        || aids.guard_pages
        || aids.strict_streams
        || aids.exact
        || !settings.quarantine().is_zero()
}

/// The setting, if any, by which the pool enqueues work of its own on streams, or records, asks or waits
/// there: what a capture must not see. Counting and noting blocks does none of that.
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

/// Whether freed blocks may wait in magazines: not where each is written to, on its way out or back.
pub(in crate::pool) fn allows_magazines(settings: &Settings) -> bool {
    let aids = Aids::of(settings);
    !aids.prepares_blocks() && !aids.guard_pages
}

/// The aids of a pool, and what they remember.
///
/// No two of its locks are held at once but those of the canaries and the quarantine, in this order; and
/// that of the streams is taken before the backing's.
pub(in crate::pool) struct DebugChecks {
    pub(in crate::pool) aids: Aids,
    pub(in crate::pool) probe: Probe,
    pub(in crate::pool) guards: Option<Guards>,
    pub(in crate::pool) canaries: Mutex<Canaries>,
    pub(in crate::pool) quarantine: Mutex<Quarantine>,
    /// The most bytes in quarantine.
    pub(in crate::pool) most_quarantined: AtomicU64,
    pub(in crate::pool) recent_frees: Mutex<RecentFrees>,
    /// Memory that no longer holds what free memory should, because the device refused to fill it.
    pub(in crate::pool) unclean: Mutex<Vec<Unclean>>,
    /// Which stream each handle was, the last time it was seen.
    pub(in crate::pool) streams: Mutex<HashMap<StreamHandle, StreamId>>,
    pub(in crate::pool) findings: Mutex<Vec<Error>>,
    /// Bytes that nobody gets any more.
    pub(in crate::pool) retired: AtomicU64,
    /// Bytes in live blocks, and the most of them; where they are counted exactly.
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
        let guards = aids.guard_pages.then(|| Guards::new(device, &probe)).transpose()?;
        Ok(Self {
            aids,
            probe,
            guards,
            canaries: Mutex::default(),
            quarantine: Mutex::default(),
            most_quarantined: AtomicU64::new(settings.quarantine().get()),
            recent_frees: Mutex::default(),
            unclean: Mutex::default(),
            streams: Mutex::default(),
            findings: Mutex::default(),
            retired: AtomicU64::new(0),
            live: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        })
    }

    /// How many bytes behind a block are the pool's own.
    pub(in crate::pool) fn tail(&self) -> Bytes {
        // Before guard pages the canary is in front: behind the block there is nothing.
        let behind = self.aids.canaries && !self.aids.guard_pages;
        if behind { canary::CANARY } else { Bytes::ZERO }
    }

    /// Where each block has pages of its own.
    pub(in crate::pool) fn guards(&self) -> Option<&Guards> {
        self.guards.as_ref()
    }

    /// Whether the host waits for the stream of a request before the memory is given out.
    pub(in crate::pool) fn waits_for_stream(&self) -> bool {
        self.aids.poison
    }

    /// Whether a block that comes back is to be looked at or kept.
    pub(in crate::pool) fn checks_frees(&self) -> bool {
        self.aids.poison
            || self.aids.canaries
            || self.aids.guard_pages
            || self.most_quarantined.load(Ordering::Relaxed) > 0
    }

    /// A block went out.
    pub(in crate::pool) fn add_live(&self, size: Bytes) {
        if self.aids.exact {
            let live = self.live.fetch_add(size.get(), Ordering::Relaxed).wrapping_add(size.get());
            self.peak.fetch_max(live, Ordering::Relaxed);
        }
    }

    /// A block came back, and nobody has its memory yet.
    pub(in crate::pool) fn subtract_live(&self, size: Bytes) {
        if self.aids.exact {
            self.live.fetch_sub(size.get(), Ordering::Relaxed);
        }
    }

    /// The most bytes that were ever in live blocks at once, where they are counted exactly.
    pub(in crate::pool) fn peak_live(&self) -> Option<Bytes> {
        self.aids.exact.then(|| Bytes::new(self.peak.load(Ordering::Relaxed)))
    }

    /// Bytes in quarantine.
    pub(in crate::pool) fn quarantined(&self) -> Bytes {
        lock(&self.quarantine).bytes()
    }

    /// Adds the memory that is free and kept from the heap: what is in quarantine, and what is unclean.
    pub(in crate::pool) fn add_withheld(&self, spans: &mut Vec<Span>) {
        spans.extend(lock(&self.quarantine).spans());
        spans.extend(lock(&self.unclean).iter().map(|one| one.memory.span()));
    }

    /// Bytes that nobody gets any more.
    pub(in crate::pool) fn retired(&self) -> Bytes {
        Bytes::new(self.retired.load(Ordering::Relaxed))
    }

    /// Keeps memory from everyone from now on.
    pub(in crate::pool) fn retire(&self, size: Bytes) {
        self.retired.fetch_add(size.get(), Ordering::Relaxed);
    }

    /// Notes a finding, once.
    pub(in crate::pool) fn record_finding(&self, finding: Error) -> Error {
        let mut findings = lock(&self.findings);
        if findings.len() < MOST_FINDINGS && !findings.contains(&finding) {
            findings.push(finding.clone());
        }
        finding
    }
}
