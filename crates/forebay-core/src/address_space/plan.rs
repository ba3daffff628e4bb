//! Plans: how to make room for a request that fits no hole.
//!
//! ```text
//!   choose the window with the fewest missing bytes, and fill its gaps:
//!
//!   [ page  ..][ gap ][..  page ]          before: two holes, neither large enough
//!   [ page  ..][ moved or new ][.. page ]  after: one
//! ```
//!
//! Free pages are moved from elsewhere before new ones are created, so that the pool takes memory from
//! the device only when it has no whole page free. There are two exceptions. A program at a new peak may
//! grow a little beyond the peak without moving pages, because it is likely to grow further and to need
//! the new pages anyway. A program that moves pages again and again may grow by a hundredth instead: a
//! move costs the driver as much as a new page, and is paid again at each step.
//!
//! A page that moves leaves its old mapping behind ([`kept`](super::kept)). The plan fills the window with the
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

use std::collections::BTreeSet;

use super::donors::{Donors, FirstFit};
use super::window::{FreeRange, Return, openings, split, window};
use super::{AddressSpace, Offset, Streams};
use crate::Bytes;

/// A page is not smaller than this fraction of what one request misses, if the largest page allows.
const REQUEST_PART: u64 = 4;

/// How a pool grows. Each field gives the reason for its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The largest page. 32 MiB: by the costs measured on an H200, a gibibyte of such pages takes
    /// 1.3 ms to create, map and open for access. With 8 MiB it takes 4.6 ms, and with 128 MiB 0.5 ms,
    /// but such large pages are entirely free less often.
    pub largest_page: Bytes,
    /// A page is at most this fraction of the memory held, so that a small program does not take large
    /// pages: 12 means a twelfth, so less than a twelfth stays unused at the end.
    pub part: u64,
    /// How many pages a program at a new peak may hold beyond its need before pages are moved.
    pub spare_pages: u64,
    /// The spare pages are also at most this fraction of its need: 16 means a sixteenth. A few pages
    /// are a lot for a small program.
    pub spare_part: u64,
    /// How many bytes of pages are moved before the pool grows by one instead: 4, so that a program
    /// which moves a page once or twice does not grow.
    pub moves_per_growth: u64,
    /// How far a program that moves pages may grow beyond its peak: 100 means by a hundredth.
    pub slack_part: u64,
    /// A page is at most this fraction of the reach, which is the most that the pool could ever hold:
    /// 4096 means that the lost parts of pages stay far below a hundredth of it, and that a pool which
    /// holds all of it does not consist of more pages than a driver creates in half a second.
    pub reach_part: u64,
    /// A pool that holds less than this fraction of the reach may have larger pages, in proportion: 16
    /// means that one which holds a 32nd may have pages twice as large.
    pub early_part: u64,
    /// The smallest segment, on devices without page mapping. 2 MiB, so that small blocks share a call to the driver:
    /// on an H200 pinning 1 MiB takes 0.9 ms, and 64 MiB 31 ms.
    pub least_segment: Bytes,
    /// Whether free pages may be moved at all. If the memory behind an address must stay the same they
    /// may not, and new pages are created instead.
    pub moves: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Self {
            largest_page: Bytes::mib(32),
            part: 12,
            spare_pages: 8,
            spare_part: 16,
            moves_per_growth: 4,
            slack_part: 100,
            reach_part: 4096,
            early_part: 16,
            least_segment: Bytes::mib(2),
            moves: true,
        }
    }
}

impl Growth {
    /// The same for a pool that could hold at most `reach` bytes and holds, or is about to hold, `held` of them:
    /// the scarcer memory is, the smaller the pages.
    ///
    /// ```
    /// use forebay_core::Bytes;
    /// use forebay_core::address_space::Growth;
    ///
    /// let page = |held, reach| Growth::default().within(held, reach).largest_page;
    /// assert_eq!(page(Bytes::gib(12), Bytes::gib(140)), Bytes::mib(32), "plentiful");
    /// assert_eq!(page(Bytes::mib(96), Bytes::gib(12)), Bytes::mib(24), "little is held as yet");
    /// assert_eq!(page(Bytes::gib(6), Bytes::gib(12)), Bytes::mib(3));
    /// ```
    #[must_use]
    pub fn within(mut self, held: Bytes, reach: Bytes) -> Self {
        let whole = u128::from((reach.get() / self.reach_part.max(1)).max(1));
        let many = u128::from(held.get().max(1)) * u128::from(self.early_part.max(1));
        let early = whole * u128::from(reach.get()) / many;
        let most = u64::try_from(whole.max(early)).unwrap_or(u64::MAX);
        self.largest_page = self.largest_page.min(Bytes::new(most));
        self
    }

    /// How many bytes may be created instead of moved, by an address space that has `backed` bytes and a peak of
    /// `peak`, after `moved` bytes were moved: whole pages of `page` bytes.
    pub(super) fn instead_of_moves(&self, page: u64, moved: u64, backed: u64, peak: u64) -> u64 {
        let most = peak.saturating_add(peak / self.slack_part.max(1)).saturating_sub(backed);
        most.min(moved / self.moves_per_growth.max(1)) / page.max(1) * page
    }

    /// The size of a new page for a pool that will hold `held` bytes, `missing` of them new: whole granules, and a power
    /// of two below the largest page. One request is not served by many small pages.
    pub(super) fn page(&self, held: u64, missing: u64, granule: u64) -> u64 {
        let part = (held / self.part.max(1)).max(missing / REQUEST_PART).max(granule);
        let part = 1_u64 << part.ilog2();
        part.clamp(granule, (self.largest_page.get() / granule * granule).max(granule))
    }

    /// How many bytes may be backed before pages of `page` bytes are moved, if `live` bytes will be in
    /// blocks and the previous peak was `peak`.
    pub(super) fn ceiling(&self, page: u64, live: u64, peak: u64) -> u64 {
        if live <= peak {
            return 0;
        }
        let spare = page.saturating_mul(self.spare_pages).min(live / self.spare_part.max(1));
        live.saturating_add(spare)
    }
}

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
    /// The addresses that the request may lie in once they are done. Empty if it fits a hole already.
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

/// The request that a plan is made for.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    size: u64,
    taker: &'a Streams,
    growth: &'a Growth,
    limit: u64,
}

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
        if size.is_zero() {
            return Err(PlanError::NoBytes);
        }
        let request = Request { size: size.get(), taker: &taker, growth, limit: limit.get() };
        if space.has_hole(&request) {
            return Ok(Self { steps: Vec::new(), window: (0, 0) });
        }
        let (ranges, donors) = (space.ranges(&taker), Donors::default());
        let below_peak = growth.moves && space.taken().saturating_add(size.get()) <= space.peak;
        let is_scarce = growth.moves && limit.get().saturating_sub(space.backed) < size.get();
        // A program at a new peak with room to grow gets new pages: it will need them anyway.
        let returns =
            if below_peak || is_scarce { space.returns(&taker, &donors) } else { Vec::new() };
        let returning = || {
            let parts =
                (!returns.is_empty()).then(|| split(&ranges, space.kept.all(), &returns))?;
            space.fill(&ranges, space.cheapest(&parts, &request)?, &request, &returns, &donors)
        };
        // Without prices for mappings that are in the way: a program that grows does best close to its other
        // pages. A recorded ResNet run holds 1.005 of what it asks for, and 1.017 with prices here.
        let moving =
            || space.fill(&ranges, space.cheapest(&ranges, &request)?, &request, &[], &donors);
        // In a window between blocks, a page may be too large for its gap, and the pages inside the window
        // cannot move. In a large gap every page fits and every free page can move.
        let at_the_end = || {
            let end = space.last_gap().filter(|gap| gap.1 - gap.0 >= request.size)?;
            space.fill(&ranges, end.0, &request, &[], &donors)
        };
        let attempts: [&dyn Fn() -> Option<Self>; 3] = [&returning, &moving, &at_the_end];
        let mut plan: Option<Self> = None;
        for next in attempts.iter().filter_map(|attempt| attempt()) {
            // Below its peak, a program has what it needs, perhaps in pages that fit only elsewhere.
            let is_good = !below_peak || next.created().is_zero();
            if plan.as_ref().is_none_or(|best| next.created() < best.created()) {
                plan = Some(next);
            }
            if is_good {
                break;
            }
        }
        plan.map_or_else(|| space.fill_elsewhere(&ranges, &request, &donors), Ok)
    }

    /// The size of the next segment for a request of `size`, on a device without page mapping, where a
    /// block cannot span two segments. `None` if the limit leaves too little memory.
    pub fn segment(
        space: &AddressSpace,
        size: Bytes,
        growth: &Growth,
        limit: Bytes,
    ) -> Option<Bytes> {
        let granule = space.granule.bytes().get();
        let least = size.get().checked_next_multiple_of(granule).filter(|&least| least > 0)?;
        let room = limit.get().checked_sub(space.backed).filter(|&room| least <= room)?;
        let page = growth.page(space.backed.saturating_add(least), least, granule);
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

impl AddressSpace {
    /// Whether the request fits a hole already.
    fn has_hole(&self, request: &Request<'_>) -> bool {
        self.holes.can_take(request.size, request.taker)
    }

    /// Where the request would lie at the lowest price.
    fn cheapest(&self, ranges: &[FreeRange], request: &Request<'_>) -> Option<Offset> {
        let granule = self.granule.bytes().get();
        let windows = openings(ranges).filter_map(|opening| window(granule, opening, request.size));
        windows.min().map(|window| window.at)
    }

    /// The gap at the end of the range where the last page lies, or of the last range.
    fn last_gap(&self) -> Option<(Offset, Offset)> {
        let page = self.pages.last_key_value().map(|(&at, placed)| (at, at + placed.size));
        let range = page.and_then(|(start, end)| self.reserved.around(start, end));
        let (_, end) = range.or_else(|| self.reserved.last())?;
        self.gaps.around(end.checked_sub(1)?, end)
    }

    /// A plan that fills the lowest gap in which every page fits, or why there is none.
    fn fill_elsewhere(
        &self,
        ranges: &[FreeRange],
        request: &Request<'_>,
        donors: &Donors,
    ) -> Result<Plan, PlanError> {
        let granule = self.granule.bytes().get();
        let whole = request.size.checked_next_multiple_of(granule).ok_or(PlanError::Limit)?;
        let pages = donors.each(self, request.taker).filter(|_| request.growth.moves);
        let (movable, largest) = pages
            .map(|donor| donor.1)
            .fold((0_u64, 0), |(sum, most), page| (sum.saturating_add(page), page.max(most)));
        let room = request.limit.saturating_sub(self.backed) / granule * granule;
        if whole > room.saturating_add(movable) {
            return Err(PlanError::Limit);
        }
        let needed = whole.saturating_add(largest);
        let mut gaps = self.gaps.each().filter(|gap| gap.1 - gap.0 >= needed);
        let filled = gaps.next().and_then(|gap| self.fill(ranges, gap.0, request, &[], donors));
        filled.ok_or(PlanError::Addresses)
    }

    /// A plan after which all bytes of the request are backed from `at` on. Pages go where they can return to; the rest of
    /// the gaps is filled with moved and new ones.
    fn fill(
        &self,
        ranges: &[FreeRange],
        at: Offset,
        request: &Request<'_>,
        returns: &[Return],
        donors: &Donors,
    ) -> Option<Plan> {
        let Request { size, taker, growth, limit } = *request;
        let granule = self.granule.bytes().get();
        let end = at.checked_add(size)?;
        let window = (at, end);
        let first = ranges.partition_point(|it| it.end <= at);
        let inside = ranges.get(first..)?.iter().take_while(|it| it.start < end);
        let gaps = inside.filter(|it| it.is_gap).map(|gap| {
            let from = gap.start.max(at / granule * granule);
            let to = end.next_multiple_of(granule).min(gap.end);
            (from, to, gap.end)
        });
        let (mut steps, mut gone) = (Vec::new(), BTreeSet::new());
        // What is left of the gaps once pages have returned.
        let mut gaps_left: Vec<(Offset, Offset, Offset)> = Vec::new();
        let mut missing = 0;
        for (mut from, to, gap_end) in gaps {
            let next = returns.partition_point(|it| it.to < from);
            for it in returns.iter().skip(next).take_while(|it| it.to < to) {
                let outside = it.from + it.size <= at || it.from >= end;
                if !outside || it.to < from || it.to + it.size > gap_end || !gone.insert(it.from) {
                    continue;
                }
                gaps_left.extend((from < it.to).then_some((from, it.to, it.to)));
                let size = Bytes::new(it.size);
                steps.push(Step::Return { from: it.from, to: it.to, size });
                missing += it.to - from;
                from = it.to + it.size;
            }
            gaps_left.extend((from < to).then_some((from, to, gap_end)));
            missing += to.saturating_sub(from);
        }
        let held = self.backed.saturating_add(missing);
        let page = growth.page(held, missing, granule);
        let live = self.taken().saturating_add(size);
        let ceiling = growth.ceiling(page, live, self.peak).min(limit);
        let mut room = limit.saturating_sub(self.backed);
        let instead = growth.instead_of_moves(page, self.moved, self.backed, self.peak).min(room);
        let moves = growth.moves && held > ceiling;
        let mut to_move = if moves { missing.saturating_sub(instead) } else { 0 };
        let outside = |&(from, size): &(Offset, u64)| from + size <= at || from >= end;
        let donors = (to_move > 0).then(|| donors.each(self, taker)).into_iter().flatten();
        let donors = donors.filter(outside).filter(|donor| !gone.contains(&donor.0));
        let mut donors = FirstFit::new(donors);
        for (mut at, to, gap_end) in gaps_left {
            let (start, cleared) = (at, steps.len());
            // The gap may go on beyond what is needed; a page may reach into it.
            let mut next = 0;
            while at < to
                && to_move > 0
                && let Some((number, (from, size))) = donors.take(next, gap_end - at)
            {
                next = number + 1;
                steps.push(Step::Move { from, to: at, size: Bytes::new(size) });
                at += size;
                to_move = to_move.saturating_sub(size);
            }
            while at < to {
                let size = page.min(gap_end - at).min(room) / granule * granule;
                if size == 0 {
                    return None;
                }
                steps.push(Step::Create { at, size: Bytes::new(size) });
                room -= size;
                at += size;
            }
            let in_the_way = self.kept.overlapping(start, at);
            let clear =
                |(at, end): (Offset, Offset)| Step::Clear { at, size: Bytes::new(end - at) };
            let clears: Vec<Step> = in_the_way.map(clear).collect();
            steps.splice(cleared..cleared, clears);
        }
        Some(Plan { steps, window })
    }

    /// Where pages can return to that `taker` may use, by address. Looks at the kept mappings or at the free pages, whichever
    /// are fewer.
    fn returns(&self, taker: &Streams, donors: &Donors) -> Vec<Return> {
        let most_free = self.free_bytes().get() / self.granule.bytes().get();
        if self.kept.len() as u64 <= most_free {
            let returns = self.kept.each().filter_map(|(to, placed)| {
                let (from, size) = (*self.places.get(&placed.page)?, placed.size);
                let hole = self.holes.around(from).filter(|hole| from + size <= hole.end)?;
                self.holes.set(&hole).serve(taker).then_some(Return { to, size, from })
            });
            return returns.collect();
        }
        let mut returns: Vec<Return> = Vec::new();
        for (from, size) in donors.each(self, taker) {
            let page = self.pages.get(&from).map(|placed| placed.page);
            let kept = page.into_iter().flat_map(|page| self.kept.of(page));
            returns.extend(kept.map(|to| Return { to, size, from }));
        }
        returns.sort_unstable();
        returns
    }
}
