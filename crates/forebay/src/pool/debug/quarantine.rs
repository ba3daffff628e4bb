//! The quarantine: freed blocks that are kept out of use for a while, first in, first out. Guarded by the quarantine
//! lock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_core::{Address, Bytes, Span};

use super::probe::Mismatch;
use crate::Result;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::heap::serials::Serial;
use crate::report::RecentFree;

/// Free memory that the device refused to fill.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Unclean {
    pub(in crate::pool) memory: FreedBlock,
    /// The stream of `memory` by its serial: it may have ended, and its handle may be reused.
    pub(in crate::pool) order: Serial,
}

/// A block in quarantine.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Quarantined {
    pub(in crate::pool) memory: FreedBlock,
    /// The stream it was freed on, by its serial: it may have ended, and its handle may be reused.
    pub(in crate::pool) order: Serial,
    pub(in crate::pool) former: RecentFree,
    /// Its place in the order of additions; set when it is added.
    pub(in crate::pool) number: u64,
}

/// The blocks in quarantine, oldest first.
#[derive(Debug, Default)]
pub(in crate::pool) struct Quarantine {
    blocks: VecDeque<Quarantined>,
    bytes: u64,
    /// Blocks on their way to the heap: a request may count on them.
    leaving: BTreeMap<Address, Span>,
    /// The number of additions so far.
    added: u64,
}

impl Quarantine {
    pub(in crate::pool) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(in crate::pool) fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// The addresses of all blocks, and of those on their way to the heap.
    pub(in crate::pool) fn spans(&self) -> impl Iterator<Item = Span> {
        self.blocks.iter().map(|block| block.memory.span()).chain(self.leaving.values().copied())
    }

    /// Records that a block is no longer on its way to the heap: it is there, retired, or [back](Self::put_back).
    pub(in crate::pool) fn has_left(&mut self, block: &Quarantined) {
        self.leaving.remove(&block.memory.address);
    }

    pub(in crate::pool) fn added(&self) -> u64 {
        self.added
    }

    pub(in crate::pool) fn push(&mut self, mut block: Quarantined) {
        block.number = self.added;
        self.added += 1;
        self.bytes += block.memory.size.get();
        self.blocks.push_back(block);
    }

    /// Puts a block back as the oldest.
    pub(in crate::pool) fn put_back(&mut self, block: Quarantined) {
        self.bytes += block.memory.size.get();
        self.blocks.push_front(block);
    }

    /// Takes the oldest block while there are more than `most` bytes, until it [has left](Self::has_left).
    pub(in crate::pool) fn pop_beyond(&mut self, most: u64) -> Option<Quarantined> {
        let oldest = if self.bytes > most { self.blocks.pop_front() } else { None }?;
        self.bytes -= oldest.memory.size.get();
        self.leaving.insert(oldest.memory.address, oldest.memory.span());
        Some(oldest)
    }

    /// The streams that the blocks were freed on.
    pub(in crate::pool) fn orders(&self) -> BTreeSet<Serial> {
        self.blocks.iter().map(|block| block.order).collect()
    }

    /// Takes the blocks that were freed on a stream, of the first `before` additions, until each
    /// [has left](Self::has_left).
    pub(in crate::pool) fn release_of(&mut self, order: Serial, before: u64) -> Vec<Quarantined> {
        let taken = self.take_of(order, before);
        let spans = taken.iter().map(|block| (block.memory.address, block.memory.span()));
        self.leaving.extend(spans);
        taken
    }

    /// Takes the blocks that were freed on a stream, of the first `before` additions.
    pub(in crate::pool) fn take_of(&mut self, order: Serial, before: u64) -> Vec<Quarantined> {
        let all = core::mem::take(&mut self.blocks);
        let is_taken = |block: &Quarantined| block.order == order && block.number < before;
        let (taken, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_taken);
        self.blocks = others.into();
        self.bytes -= taken.iter().map(|block| block.memory.size.get()).sum::<u64>();
        taken
    }

    /// Takes the blocks that were written to according to `look`, of the first `before` additions.
    pub(in crate::pool) fn take_overwritten(
        &mut self,
        before: u64,
        look: impl Fn(Span) -> Result<Option<Mismatch>>,
    ) -> Result<Vec<(Quarantined, Mismatch)>> {
        let mut overwritten = Vec::new();
        let mut outcome = Ok(());
        self.blocks.retain(|block| {
            if outcome.is_err() || block.number >= before {
                return true;
            }
            match look(block.memory.span()) {
                Ok(None) => true,
                Ok(Some(mismatch)) => {
                    overwritten.push((*block, mismatch));
                    false
                }
                Err(error) => {
                    outcome = Err(error);
                    true
                }
            }
        });
        for (block, _) in &overwritten {
            self.bytes -= block.memory.size.get();
        }
        // Findings are reported in preference to a later failure of the check.
        if overwritten.is_empty() { outcome.map(|()| overwritten) } else { Ok(overwritten) }
    }
}
