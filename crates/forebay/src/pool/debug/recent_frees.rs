//! Recently freed blocks, to name the one whose memory was written to after its free.

use std::collections::VecDeque;

use forebay_core::Address;

use crate::report::RecentFree;

/// The most freed blocks that are remembered: about as many as a program frees between two uses of one block, in a few
/// megabytes.
const MAX: usize = 1 << 16;

/// The recently freed blocks, the newest last.
#[derive(Debug, Default)]
pub(in crate::pool) struct RecentFrees {
    blocks: VecDeque<RecentFree>,
}

impl RecentFrees {
    pub(in crate::pool) fn remember(&mut self, block: RecentFree) {
        if self.blocks.len() >= MAX {
            self.blocks.pop_front();
        }
        self.blocks.push_back(block);
    }

    /// The last block that contained `address`.
    pub(in crate::pool) fn at(&self, address: Address) -> Option<RecentFree> {
        self.blocks.iter().rev().find(|block| block.held(address)).copied()
    }
}

#[cfg(test)]
mod tests;
