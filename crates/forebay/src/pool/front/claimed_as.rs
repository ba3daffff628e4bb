//! What a caller that frees a block says of it.

use forebay_core::{Address, Bytes};

use crate::sync::map::{BlockState, Slot};
use crate::{Error, Result};

/// What is said of a block that is to be freed, beside where it begins.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum ClaimedAs {
    /// Nothing.
    Any,
    /// How large it is, or how much was asked for.
    Sized(Bytes),
    /// Which block at its address it is.
    Exact(u64),
}

impl ClaimedAs {
    /// The block that is said to begin at `address`, if it is live, was used nowhere else, is not wide and
    /// not known to be another one. To be [checked](Self::fits) and claimed.
    #[inline(always)]
    pub(in crate::pool) fn plain(self, slot: &Slot, address: Address) -> Option<BlockState> {
        match self {
            // Claiming it is what tells.
            Self::Exact(generation) => Some(slot.expected(address, generation)),
            Self::Any | Self::Sized(_) => slot.plain(address),
        }
    }

    /// Whether a block that was found [`plain`](Self::plain), and for which as much was asked as `requested`
    /// tells, is as it is said to be. That a size is right which is the block's and not what was asked for is
    /// not seen here, but by [`fits`](Self::fits).
    #[inline(always)]
    pub(in crate::pool) fn fits_at_a_glance(
        self,
        known: BlockState,
        requested: fn(BlockState) -> u64,
    ) -> bool {
        match self {
            Self::Sized(size) => requested(known) == size.get(),
            Self::Any | Self::Exact(_) => true,
        }
    }

    /// Whether a block that was found plain is as it is said to be.
    pub(in crate::pool) fn fits(self, known: BlockState) -> bool {
        self.fits_at_a_glance(known, BlockState::requested)
            || matches!(self, Self::Sized(size) if known.size() == size)
    }

    /// Refuses a block at `address` that is not as it is said to be.
    pub(in crate::pool) fn check(self, known: BlockState, address: Address) -> Result<()> {
        match self {
            Self::Exact(generation) if known.generation() != generation => {
                Err(Error::StaleBlock { address, size: known.size() })
            }
            Self::Sized(said) if !self.fits(known) => {
                let (requested, size) = (Bytes::new(known.requested()), known.size());
                Err(Error::WrongSize { address, said, requested, size })
            }
            _ => Ok(()),
        }
    }
}
