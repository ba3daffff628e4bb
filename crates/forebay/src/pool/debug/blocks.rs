//! Writing and checking the patterns of one block.

use forebay_core::{Address, Span};
use forebay_hal::{Pattern, StreamHandle};

use super::canary::{CANARY, CanaryRecord, overrun, pattern_of};
use super::{DebugChecks, FREED};
use crate::pool::common::free_block::FreedBlock;
use crate::sync::tracked::lock;
use crate::{Error, Result};

impl DebugChecks {
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
        let watched = lock(&self.canaries).at(address);
        if let Some(CanaryRecord { size, canary, stream: allocated_on, .. }) = watched {
            let mismatch = self.probe.first_mismatch(canary, pattern_of(address), memory.stream)?;
            let is_written_late = mismatch.is_some()
                && allocated_on != memory.stream
                && self.is_intact_later(canary, pattern_of(address))?;
            // Removed before the fill, so that no check reads it any more.
            lock(&self.canaries).remove(address);
            if is_written_late {
                let freed_on = memory.stream;
                return Ok(Some(Error::UnorderedFree { address, size, freed_on, allocated_on }));
            }
            if let Some(mismatch) = mismatch {
                return Ok(Some(overrun(address, size, mismatch)));
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
        let own = self.probe.own_stream()?;
        Ok(self.probe.first_mismatch_now(canary, pattern, own)?.is_none())
    }

    /// The first byte of free memory, not in use by any work, that was written to, with the block that was there last.
    pub(in crate::pool) fn written_since(&self, memory: FreedBlock) -> Result<Option<Error>> {
        let (free, own) = (Pattern::U8(FREED), self.probe.own_stream()?);
        let mismatch = self.probe.first_mismatch_now(memory.span(), free, own)?;
        Ok(mismatch.map(|mismatch| Error::WrittenAfterFree {
            written: mismatch.at,
            expected: mismatch.expected,
            found: mismatch.found,
            block: lock(&self.recent_frees).at(mismatch.at),
        }))
    }
}

/// The canary of a guarded block: in front of it, as far as its first page reaches.
pub(in crate::pool) fn canary_before(pages: Span, block: Address) -> Span {
    let room = block.offset_from(pages.start()).unwrap_or_default().min(CANARY);
    let start = Address::new(block.get().saturating_sub(room.get()));
    Span::new(start, room).unwrap_or_default()
}
