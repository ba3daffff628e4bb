//! Watches forebay's pool while the first pass is replayed.

use std::collections::BTreeMap;

use forebay::Pool;
use forebay_hal::Call;
use forebay_trace::{BlockIndex, Event, Moment};

use super::data::{Happening, HappeningKind, Happenings, HeldRanges, PoolSamples};

/// The most moments at which the pool's statistics are read.
const MAX_SAMPLES: u64 = 1024;

/// The most moments at which the pool's addresses are read, which takes longer.
const MAX_MAPS: u64 = 128;

/// The most ranges of addresses that are kept of a moment.
const MAX_RANGES: usize = 128;

/// The most happenings of one kind that are listed.
const MAX_LISTED: usize = 150;

/// An observer of the first pass on forebay's pool.
#[derive(Debug)]
pub(super) struct PoolWatch {
    pool: Pool,
    events: u64,
    peak_at: u64,
    held: u64,
    moved: u64,
    listed: BTreeMap<HappeningKind, Vec<Happening>>,
    seen: Seen,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) samples: PoolSamples,
    pub(super) happenings: Happenings,
    /// Where each block lay, by number; 0 if it got no memory.
    addresses: Vec<u64>,
    /// By address, not by offset.
    pub(super) maps: Vec<HeldRanges>,
}

impl Seen {
    /// Where a block lay; `None` if it got no memory.
    pub(super) fn address(&self, block: BlockIndex) -> Option<u64> {
        self.addresses.get(block.0 as usize).copied().filter(|&address| address > 0)
    }
}

impl PoolWatch {
    /// Watches an empty pool while a run of `events` is played that has its peak after the event `peak_at`.
    pub(super) fn new(pool: Pool, events: u64, peak_at: u64) -> Self {
        let (listed, seen) = (BTreeMap::new(), Seen::default());
        Self { pool, events, peak_at, held: 0, moved: 0, listed, seen }
    }

    /// After an event.
    pub(super) fn see(&mut self, moment: &mut Moment<'_>) {
        let at = moment.index as u64;
        self.follow_block(at, moment);
        let held = moment.player.reserved().get();
        if held > self.held {
            self.seen.happenings.growths += 1;
            self.list(HappeningKind::Growth, at, held - self.held, 1);
        } else if held < self.held {
            self.seen.happenings.releases += 1;
            self.list(HappeningKind::Release, at, self.held - held, 1);
        }
        self.held = held;
        let is_due = |most: u64| {
            let every = self.events.div_ceil(most).max(1);
            at.is_multiple_of(every) || at + 1 == self.events || at == self.peak_at
        };
        let is_map_due = is_due(MAX_MAPS);
        if is_due(MAX_SAMPLES) {
            self.sample(at);
        }
        if is_map_due {
            self.read_map(at);
        }
    }

    fn follow_block(&mut self, at: u64, moment: &mut Moment<'_>) {
        let Event::Allocate { block, size, .. } = moment.event else { return };
        if moment.is_refused {
            self.seen.happenings.out_of_memory += 1;
            self.list(HappeningKind::OutOfMemory, at, size.get(), 1);
        }
        let address = moment.player.placed().and_then(|player| player.address(block));
        self.seen.addresses.push(address.map_or(0, |address| address.get()));
    }

    fn sample(&mut self, at: u64) {
        let found = self.pool.statistics();
        // Pages that were mapped and not made for it had been elsewhere.
        let moved = found.driver.of(Call::Map).saturating_sub(found.driver.of(Call::CreatePage));
        let new = moved.saturating_sub(self.moved);
        self.moved = moved.max(self.moved);
        if new > 0 {
            self.seen.happenings.moved_pages += new;
            self.list(HappeningKind::PageMoves, at, 0, new);
        }
        let samples = &mut self.seen.samples;
        samples.at.push(at);
        samples.held_bytes.push(found.held.get());
        samples.live_bytes.push(found.live.get());
        samples.free_bytes.push(found.free.get());
        samples.largest_free_bytes.push(found.largest_free.get());
        samples.fragmentation.push(found.fragmentation());
        samples.moved_pages.push(new);
    }

    fn read_map(&mut self, at: u64) {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for span in self.pool.memory_map().spans {
            let (start, size) = (span.start().get(), span.size().get());
            match ranges.last_mut() {
                Some((last, length)) if last.saturating_add(*length) == start => *length += size,
                _ => ranges.push((start, size)),
            }
        }
        if ranges.len() > MAX_RANGES {
            // The largest stay, the lowest first as before.
            ranges.sort_by_key(|&(start, size)| (core::cmp::Reverse(size), start));
            ranges.truncate(MAX_RANGES);
            ranges.sort_unstable();
        }
        if self.seen.maps.last().is_none_or(|last| last.ranges != ranges) {
            self.seen.maps.push(HeldRanges { at, ranges });
        }
    }

    /// Lists a happening. Where there are too many of a kind, the smallest gives way.
    fn list(&mut self, kind: HappeningKind, at: u64, bytes: u64, count: u64) {
        let listed = self.listed.entry(kind).or_default();
        listed.push(Happening { at, kind, bytes, count });
        if listed.len() >= 2 * MAX_LISTED {
            keep_largest(listed);
        }
    }

    /// What was seen.
    pub(super) fn finish(mut self) -> Seen {
        self.listed.values_mut().for_each(keep_largest);
        let listed = &mut self.seen.happenings.listed;
        listed.extend(self.listed.into_values().flatten());
        listed.sort_by_key(|happening| (happening.at, happening.kind));
        self.seen
    }
}

fn keep_largest(listed: &mut Vec<Happening>) {
    listed.sort_by_key(|one| (core::cmp::Reverse((one.bytes, one.count)), one.at));
    listed.truncate(MAX_LISTED);
}
