//! Claims: everything that a plan needs, taken out of the address space before the first driver call.
//!
//! ```text
//!   plan      [ hole ][  gap  ][ hole ]    and a free page elsewhere
//!   claimed   [######][ alias ][######]    and an alias where the page was: no request and no other plan gets any of it
//!   settled   [            hole           ]    or, if the driver fails, all of it as it was
//! ```
//!
//! The driver works without a lock on the address space. Meanwhile, the request owns what it waits for. A large claim
//! is taken in parts, between which other requests go on; if one of them takes a page that was to move, the rest fails.

use super::{AddressSpace, AddressSpaceError, Offset, PageMapping, Plan, Step, Streams};
use crate::Bytes;

/// A page that was taken out of the address space, to be moved or released. Its old addresses are an alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedPage {
    /// Where it was, and is still mapped.
    pub at: Offset,
    /// Its number.
    pub page: u64,
    /// Its size.
    pub size: Bytes,
    /// The streams in whose order all of it was free; none if its parts had no stream in common.
    pub streams: Streams,
}

/// A gap that a page is about to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedGap {
    /// Where the page goes.
    pub at: Offset,
    /// How large it is.
    pub size: Bytes,
    /// The page, if it exists already.
    pub from: Option<RemovedPage>,
    /// Whether the page is still mapped here.
    pub is_mapped: bool,
}

impl RemovedPage {
    /// Where it is still mapped.
    pub fn mapping(&self) -> PageMapping {
        PageMapping { at: self.at, page: self.page, size: self.size }
    }

    /// Puts the page back where it was.
    pub fn put_back(self, space: &mut AddressSpace) {
        let Self { at, page, size, streams } = self;
        let cleared = space.page_table_mut().clear_alias(at);
        let placed = space.add_page(at, size, page, streams);
        debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
    }
}

/// Holes that were taken out of the address space for a request, each with the streams in whose order it was free.
///
/// The numbers of these streams must not be reused until they are [back](AddressSpace::put_aside_back).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside(pub(super) Vec<(Offset, Offset, Streams)>);

/// What a plan needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The gaps that pages are about to fill.
    pub gaps: Vec<ClaimedGap>,
    /// Kept mappings in the way, which the driver has to remove first. No work uses them.
    pub cleared: Vec<PageMapping>,
    /// The holes of the window.
    pub aside: SetAside,
    /// The addresses that the request may occupy once all of it is settled.
    pub window: (Offset, Offset),
}

impl Claim {
    /// Begins to claim what a plan needs: takes the holes of its window. The plan was made for the address space as it is.
    pub fn begin(space: &mut AddressSpace, plan: &Plan) -> Self {
        let (start, end) = plan.window;
        Self { aside: space.set_aside(start, end), window: plan.window, ..Self::default() }
    }

    /// Takes what some of the plan's steps need, in order; returns the bytes of pages that move. Fails if a page has
    /// come into use since the plan was made, or is no longer free for `taker`. What was taken before stays claimed.
    pub fn take(
        &mut self,
        space: &mut AddressSpace,
        steps: &[Step],
        taker: &Streams,
    ) -> Result<Bytes, AddressSpaceError> {
        let first = self.gaps.len();
        steps.iter().try_for_each(|&step| self.take_step(space, step, taker))?;
        Ok(moved(self.gaps.get(first..).unwrap_or_default()))
    }

    fn take_step(
        &mut self,
        space: &mut AddressSpace,
        step: Step,
        taker: &Streams,
    ) -> Result<(), AddressSpaceError> {
        let (at, size, from, is_mapped) = match step {
            Step::Create { at, size } => (at, size, None, false),
            Step::Move { from, to, size } => (to, size, Some(from), false),
            Step::Return { from, to, size } => (to, size, Some(from), true),
            Step::Clear { at, .. } => {
                self.cleared.push(space.page_table_mut().clear_kept(at)?);
                return Ok(());
            }
        };
        let from = from.map(|from| space.remove_page(from)).transpose()?;
        let usable = from.is_none_or(|page| page.streams.contains(*taker));
        let claimed = match usable {
            true => space.page_table_mut().claim_gap(at, size),
            false => Err(AddressSpaceError::InUse { at }),
        };
        match claimed {
            Ok(()) => self.gaps.push(ClaimedGap { at, size, from, is_mapped }),
            Err(_) => from.into_iter().for_each(|page| page.put_back(space)),
        }
        claimed
    }

    /// Gives back a claim that was not used.
    pub fn give_back(mut self, space: &mut AddressSpace) {
        space.put_aside_back(&mut self.aside);
        self.gaps.into_iter().rev().for_each(|gap| gap.give_back(space));
        self.cleared.into_iter().for_each(|mapping| space.pages.keep(mapping));
    }

    /// Sets the page of a settled gap aside with the holes of the window, as far as it lies there: no other request gets
    /// it before the rest is settled.
    pub fn set_aside(&mut self, space: &mut AddressSpace, gap: ClaimedGap) {
        let (start, end) = self.window;
        let gap_end = gap.at.saturating_add(gap.size.get());
        self.aside.extend(space.set_aside(gap.at.max(start), gap_end.min(end)));
    }

    /// The bytes of pages that move.
    pub fn moved(&self) -> Bytes {
        moved(&self.gaps)
    }

    /// How many pages are to be created.
    pub fn new_pages(&self) -> usize {
        self.gaps.iter().filter(|gap| gap.from.is_none()).count()
    }
}

fn moved(gaps: &[ClaimedGap]) -> Bytes {
    let pages = gaps.iter().filter_map(|gap| gap.from);
    pages.fold(Bytes::ZERO, |sum, page| sum.saturating_add(page.size))
}

impl ClaimedGap {
    /// Adds `page`, which is mapped here now, to the address space, free in the order of `streams`.
    pub fn settle(self, space: &mut AddressSpace, page: u64, streams: Streams) {
        let cleared = space.page_table_mut().clear_alias(self.at);
        let placed = space.add_page(self.at, self.size, page, streams);
        debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
    }

    /// Gives back one gap of a claim, and the page that was to move there.
    pub fn give_back(self, space: &mut AddressSpace) {
        let cleared = space.page_table_mut().clear_alias(self.at);
        debug_assert!(cleared.is_ok(), "the claimed gap is gone: {cleared:?}");
        self.from.into_iter().for_each(|page| page.put_back(space));
    }
}

impl SetAside {
    /// Adds more holes.
    pub fn extend(&mut self, more: Self) {
        for (start, end, streams) in more.0 {
            match self.0.last_mut() {
                Some(last) if last.1 == start && last.2 == streams => last.1 = end,
                _ => self.0.push((start, end, streams)),
            }
        }
    }
}
