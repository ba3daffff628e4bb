//! What the caller of a free claims about the block, and the block once it is claimed.

use forebay_core::{Address, Bytes};

use crate::pool::common::free_block::CachedBlock;
use crate::sync::map::{BlockState, Slot, SlotRef};
use crate::{Error, Result};

/// A block that was claimed by one free: no other call has it.
#[derive(Clone, Copy)]
pub(in crate::pool) struct Claimed<'a> {
    pub(in crate::pool) slot: &'a Slot,
    pub(in crate::pool) known: BlockState,
    pub(in crate::pool) address: Address,
}

impl Claimed<'_> {
    /// The block as a magazine keeps it.
    #[inline]
    pub(super) fn cached(&self) -> CachedBlock {
        CachedBlock { address: self.address, slot: SlotRef::new(self.slot) }
    }
}

/// What the caller claims about a block to be freed, beside its address.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum FreeClaim {
    /// Nothing: any live block at the address.
    Any,
    /// Its size, either requested or rounded.
    Sized(Bytes),
    /// Its generation: this very block, not a later one at its address.
    Exact(u64),
    /// That the caller owns it, as a handle or for one: any owned block at the address.
    Owned,
    /// That the caller owns it, and its generation.
    ExactOwned(u64),
}

impl FreeClaim {
    /// The state of the block at `address`, if it may be freed on the fast path: live, used on no other stream, not
    /// wide, and not known to be another block. The caller then checks the claim with [`matches`](Self::matches) and
    /// claims the slot.
    #[inline(always)]
    pub(in crate::pool) fn plain(self, slot: &Slot, address: Address) -> Option<BlockState> {
        match self {
            // The claim is a compare-and-exchange with this very state, so it fails for any other block.
            Self::Exact(generation) => Some(slot.expected(address, generation)),
            Self::ExactOwned(generation) => Some(slot.expected_owned(address, generation)),
            Self::Any | Self::Sized(_) => slot.plain(address),
            Self::Owned => slot.plain_owned(address),
        }
    }

    /// Claims a block that was found [`plain`](Self::plain), unless its state changed since.
    #[inline(always)]
    pub(in crate::pool) fn claim(self, slot: &Slot, known: BlockState) -> bool {
        match self {
            Self::Any | Self::Sized(_) | Self::Exact(_) => slot.claim_plain(known),
            Self::Owned | Self::ExactOwned(_) => slot.claim_owned(known),
        }
    }

    /// Whether the claim agrees with the requested size of a [`plain`](Self::plain) block; `requested` reads it. A
    /// claimed size that equals the rounded size is also right, but only [`matches`](Self::matches) accepts it: the
    /// fast path compares once.
    #[inline(always)]
    pub(super) fn matches_requested(
        self,
        known: BlockState,
        requested: fn(BlockState) -> u64,
    ) -> bool {
        match self {
            Self::Sized(size) => requested(known) == size.get(),
            _ => true,
        }
    }

    /// Whether the claim agrees with a block that was found plain.
    pub(in crate::pool) fn matches(self, known: BlockState) -> bool {
        self.matches_requested(known, BlockState::requested)
            || matches!(self, Self::Sized(size) if known.size() == size)
    }

    /// Whether the caller is the owner of the block.
    pub(in crate::pool) fn is_owner(self) -> bool {
        matches!(self, Self::Owned | Self::ExactOwned(_))
    }

    /// Fails if the claim does not agree with the block at `address`.
    pub(in crate::pool) fn check(self, known: BlockState, address: Address) -> Result<()> {
        match self {
            Self::Exact(generation) | Self::ExactOwned(generation)
                if known.generation() != generation =>
            {
                Err(Error::StaleBlock { address, size: known.size() })
            }
            Self::Sized(claimed) if !self.matches(known) => {
                let (requested, size) = (Bytes::new(known.requested()), known.size());
                Err(Error::WrongSize { address, claimed, requested, size })
            }
            _ => Ok(()),
        }
    }
}
