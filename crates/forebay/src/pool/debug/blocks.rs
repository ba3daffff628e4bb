//! A block's way out and back, where aids are on.

use forebay_core::{Address, Span};
use forebay_hal::{Pattern, StreamHandle};

use super::canary::{CANARY, CanaryRecord, overrun, pattern_of};
use super::{DebugChecks, FREED};
use crate::pool::front::cached_block::FreedBlock;
use crate::sync::tracked::lock;
use crate::{Error, Result};

impl DebugChecks {
    /// Writes what a block holds when it is given out, and its canary, in the order of `stream`.
    /// `canary` is empty where it has none.
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
            let watched = CanaryRecord { size: block.size(), canary, number: 0 };
            lock(&self.canaries).add(block.start(), watched);
        }
        Ok(())
    }

    /// Looks at the canary of the block at `address`, after all that is enqueued on `stream`, and
    /// fills its memory with what free memory holds. Gives what was found: then nothing is filled.
    ///
    /// Where the device refuses, all is as before.
    pub(in crate::pool) fn check_and_poison(
        &self,
        address: Address,
        memory: FreedBlock,
    ) -> Result<Option<Error>> {
        let watched = lock(&self.canaries).at(address);
        if let Some(CanaryRecord { size, canary, .. }) = watched {
            let mismatch = self.probe.first_mismatch(canary, pattern_of(address), memory.stream)?;
            // Nobody looks at it any more once it is filled.
            lock(&self.canaries).remove(address);
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

    /// The first sign in free memory, which no work uses, that someone has written there, and who had it last.
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

/// Where the canary of a block before guard pages is: in front of it, as far as its first page goes.
pub(in crate::pool) fn canary_before(pages: Span, block: Address) -> Span {
    let room = block.offset_from(pages.start()).unwrap_or_default().min(CANARY);
    let start = Address::new(block.get().saturating_sub(room.get()));
    Span::new(start, room).unwrap_or_default()
}
