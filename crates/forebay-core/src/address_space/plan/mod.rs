//! Plans: how to make room for a request that fits no hole.
//!
//! ```text
//!   choose the window with the fewest missing bytes, and fill its gaps:
//!
//!   [ page  ..][ gap ][..  page ]          before: two holes, neither large enough
//!   [ page  ..][ moved or new ][.. page ]  after: one
//! ```
//!
//! Free pages are moved from elsewhere before new ones are created, so that the pool takes memory from the device only
//! when it has no whole page free. There are three exceptions. A program at a new peak may grow a little beyond the
//! peak without moving pages, because it is likely to grow further and to need the new pages anyway. A program that
//! moves pages again and again may grow by a hundredth instead: a move costs the driver as much as a new page, and is
//! paid again at each step. And with hundreds of holes, a plan looks at only some of the free pages, and perhaps none
//! of these fits.
//!
//! A page that moves leaves its old mapping behind ([`Kept`](super::Kept)). The plan fills the window with the
//! lowest estimated price: a page that returns to where it is still mapped costs no driver call.
//!
//! Driver calls cost time per page, not per byte: few large pages are fast, many small ones waste less,
//! because the free part of a page in use serves no request that is larger. So the page size grows with
//! the pool, and shrinks with what the limit and the device leave it ([`Growth::within`]): pages that are
//! partly used when memory runs out cannot be replaced, so they have to be small from the start.
//!
//! Guarantee: if the entirely free pages that the taker may use, plus what the limit still allows to be
//! created, add up to the request in whole granules, there is a plan, provided some gap is larger than
//! the request by one page. If no gap is, the error is [`PlanError::Addresses`], not
//! [`PlanError::Limit`]. Free bytes in partly used pages cannot be moved and do not count.

mod donors;
mod growth;
mod planner;
pub(super) mod window;

use super::{AddressSpace, Offset, Streams};
use crate::Bytes;
pub use growth::Growth;
use planner::{MAX_SEEN, Planner};

/// One step of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Create a page and map it.
    Create {
        /// Where.
        at: Offset,
        /// How large.
        size: Bytes,
    },
    /// Move the free page at `from` to `to`.
    Move {
        /// Where it is.
        from: Offset,
        /// Where it goes.
        to: Offset,
        /// How large it is.
        size: Bytes,
    },
    /// Move the free page at `from` to `to`, where it is still mapped.
    Return {
        /// Where it is.
        from: Offset,
        /// Where it goes.
        to: Offset,
        /// How large it is.
        size: Bytes,
    },
    /// Remove the kept mapping at `at`, to make way for another page.
    Clear {
        /// Where it is.
        at: Offset,
        /// How large it is.
        size: Bytes,
    },
}

/// How to make room for a request that fits no hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The addresses that the request may occupy once they are done. Empty if it fits a hole already.
    pub window: (Offset, Offset),
}

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// The request was for 0 bytes.
    NoBytes,
    /// The limit leaves too little memory.
    Limit,
    /// No reserved range has enough unused addresses. Once one has, there is a plan.
    Addresses,
}

impl core::fmt::Display for PlanError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::NoBytes => "a request for 0 bytes needs no plan",
            Self::Limit => "the limit leaves no room for the request",
            Self::Addresses => "no reserved range has room for the request; reserve another",
        })
    }
}

impl core::error::Error for PlanError {}

impl Plan {
    /// A plan to make `size` bytes free in the order of `taker`, which is one stream, such that the address
    /// space holds at most `limit` bytes or does not grow.
    ///
    /// Its pages, including new ones, must be added in the order of `taker`: a page free for all streams
    /// would merge with a neighbour that the taker may not use.
    pub fn make(
        space: &AddressSpace,
        size: Bytes,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
    ) -> Result<Self, PlanError> {
        Self::make_among(space, size, taker, growth, limit, MAX_SEEN)
    }

    /// The same, looking at `most` gaps and holes first, and at all of them if there is no place among these.
    pub(super) fn make_among(
        space: &AddressSpace,
        size: Bytes,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
        most: usize,
    ) -> Result<Self, PlanError> {
        if size.is_zero() {
            return Err(PlanError::NoBytes);
        }
        let planner = |most| Planner::new(space, size.get(), &taker, growth, limit.get(), most);
        match planner(most).plan() {
            (Err(_), true) => planner(usize::MAX).plan().0,
            (plan, _) => plan,
        }
    }

    /// The size of the next segment for a request of `size`, on a device without page mapping, where a
    /// block cannot span two segments. `None` if the limit leaves too little memory.
    pub fn segment(
        space: &AddressSpace,
        size: Bytes,
        growth: &Growth,
        limit: Bytes,
    ) -> Option<Bytes> {
        let granule = space.page_table().granule().bytes().get();
        let least = size.get().checked_next_multiple_of(granule).filter(|&least| least > 0)?;
        let backed = space.backed_bytes().get();
        let room = limit.get().checked_sub(backed).filter(|&room| least <= room)?;
        let page = growth.page(backed.saturating_add(least), least, granule);
        // Whole multiples of the request, since a program tends to ask again for what it asked for.
        let page = page.max(growth.least_segment.get()).min(room);
        Some(Bytes::new((page / least * least).max(least)))
    }

    /// The bytes of all pages that the plan creates.
    pub fn created(&self) -> Bytes {
        self.steps.iter().fold(Bytes::ZERO, |sum, step| match step {
            Step::Create { size, .. } => sum.saturating_add(*size),
            Step::Move { .. } | Step::Return { .. } | Step::Clear { .. } => sum,
        })
    }
}
