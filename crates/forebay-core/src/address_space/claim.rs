//! Claims: everything that a plan needs, taken out of the address space before the first driver call.
//!
//! ```text
//!   plan      [ hole ][  gap  ][ hole ]    and a free page elsewhere
//!   claimed   [######][ alias ][######]    and an alias where the page was: no request and no other plan gets any of it
//!   settled   [            hole           ]    or, if the driver fails, all of it as it was
//! ```
//!
//! The driver works without a lock on the address space. What the request waits for is its own meanwhile.

use super::{AddressSpace, AddressSpaceError, Offset, Plan, Step, Streams};
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
}

/// Where a page is mapped that is no longer in the address space there: the old mapping of a moved page, kept or not, or a
/// page that is to be returned to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMapping {
    /// Where it is.
    pub at: Offset,
    /// The page that is mapped there.
    pub page: u64,
    /// How large it is.
    pub size: Bytes,
}

/// Holes that were taken out of the address space for a request, each with the streams in whose order it was free.
///
/// The numbers of these streams must not be reused until they are [back](AddressSpace::put_aside_back).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SetAside(Vec<(Offset, Offset, Streams)>);

/// What a plan needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// The gaps that pages are about to fill.
    pub gaps: Vec<ClaimedGap>,
    /// Kept mappings in the way, which the driver has to remove first. No work uses them.
    pub cleared: Vec<PageMapping>,
    /// The holes of the window.
    pub aside: SetAside,
    /// The addresses that the request may lie in once all of it is settled.
    pub window: (Offset, Offset),
}

impl Claim {
    /// The bytes of pages that move.
    pub fn moved(&self) -> Bytes {
        let moved = self.gaps.iter().filter_map(|gap| gap.from);
        moved.fold(Bytes::ZERO, |sum, page| sum.saturating_add(page.size))
    }

    /// How many pages are to be created.
    pub fn new_pages(&self) -> usize {
        self.gaps.iter().filter(|gap| gap.from.is_none()).count()
    }
}

impl AddressSpace {
    /// Takes everything that a plan needs out of the address space. The plan was made for `taker` and for the address
    /// space as it is now; otherwise nothing changes and the reason is returned.
    pub fn claim(&mut self, plan: &Plan, taker: &Streams) -> Result<Claim, AddressSpaceError> {
        let mut claim = Claim { window: plan.window, ..Claim::default() };
        for &step in &plan.steps {
            if let Err(error) = self.claim_step(step, taker, &mut claim) {
                self.give_back(claim);
                return Err(error);
            }
        }
        let (start, end) = plan.window;
        claim.aside = self.set_aside(start, end);
        Ok(claim)
    }

    fn claim_step(
        &mut self,
        step: Step,
        taker: &Streams,
        claim: &mut Claim,
    ) -> Result<(), AddressSpaceError> {
        let (at, size, from, is_mapped) = match step {
            Step::Create { at, size } => (at, size, None, false),
            Step::Move { from, to, size } => (to, size, Some(from), false),
            Step::Return { from, to, size } => (to, size, Some(from), true),
            Step::Clear { at, .. } => {
                let (page, size) = self.kept_at(at).ok_or(AddressSpaceError::Absent { at })?;
                self.clear_kept(at)?;
                claim.cleared.push(PageMapping { at, page, size });
                return Ok(());
            }
        };
        let from = from.map(|from| self.remove_page(from)).transpose()?;
        let usable = from.is_none_or(|page| page.streams.contains(*taker));
        let claimed = match usable {
            true => self.claim_gap(at, size),
            false => Err(AddressSpaceError::InUse { at }),
        };
        match claimed {
            Ok(()) => claim.gaps.push(ClaimedGap { at, size, from, is_mapped }),
            Err(_) => from.into_iter().for_each(|page| self.put_page_back(page)),
        }
        claimed
    }

    /// Gives back a claim that nothing was done with.
    pub fn give_back(&mut self, mut claim: Claim) {
        self.put_aside_back(&mut claim.aside);
        for gap in claim.gaps.into_iter().rev() {
            self.unclaim_gap(gap);
        }
        claim.cleared.into_iter().for_each(|mapping| self.keep_again(mapping));
    }

    /// Gives back one gap of a claim.
    pub fn unclaim_gap(&mut self, gap: ClaimedGap) {
        let cleared = self.clear_alias(gap.at);
        debug_assert!(cleared.is_ok(), "the claimed gap is gone: {cleared:?}");
        gap.from.into_iter().for_each(|page| self.put_page_back(page));
    }

    /// Puts a removed page back where it was.
    pub fn put_page_back(&mut self, page: RemovedPage) {
        let RemovedPage { at, page, size, streams } = page;
        let cleared = self.clear_alias(at);
        let placed = self.add_page(at, size, page, streams);
        debug_assert!(cleared.is_ok() && placed.is_ok(), "{cleared:?}, {placed:?}");
    }

    /// Takes the holes in `start..end` out of the address space. Their bytes count as neither free nor taken.
    pub fn set_aside(&mut self, start: Offset, end: Offset) -> SetAside {
        let inside = self.holes.all.each_from(start).take_while(|hole| hole.start < end);
        let parts: Vec<(Offset, Offset, Streams)> = inside
            .map(|hole| (hole.start.max(start), hole.end.min(end), *self.holes.set(&hole)))
            .collect();
        for &(start, end, _) in &parts {
            self.holes.remove_range(start, end);
            self.aside += end - start;
        }
        self.holes.adapt(&self.runs);
        SetAside(parts)
    }

    /// Puts holes back that were [set aside](Self::set_aside).
    pub fn put_aside_back(&mut self, aside: &mut SetAside) {
        for (start, end, streams) in aside.0.drain(..) {
            self.aside -= end - start;
            let freed = self.free(start, Bytes::new(end - start), streams);
            debug_assert!(freed.is_ok(), "what was set aside is free already: {freed:?}");
        }
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
