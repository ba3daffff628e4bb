//! One plan in the making.
//!
//! ```text
//!   ranges    [ gap ][ hole ][ gap ]   [ hole ][ gap          ]      the gaps, and the holes beside them that the taker may use
//!   attempts  1  where pages return to, at the lowest price      2  where the fewest bytes are missing
//!             3  at the end of the last range                    4  the lowest gap in which every page fits
//! ```
//!
//! A planner changes nothing. Of several attempts, the plan that creates the fewest bytes is taken.

use core::cell::OnceCell;
use std::collections::BTreeSet;

use super::donors::{ByLength, Donor, FirstFit, sorted};
use super::window::{FreeRange, Return, openings, split, window};
use super::{Growth, Plan, PlanError, Step};
use crate::Bytes;
use crate::address_space::{AddressSpace, Holes, Offset, PageTable, Streams};

/// See the module.
pub(super) struct Planner<'a> {
    space: &'a AddressSpace,
    table: &'a PageTable,
    holes: &'a Holes,
    size: u64,
    taker: &'a Streams,
    /// The number of the taker.
    number: u32,
    growth: &'a Growth,
    limit: u64,
    granule: u64,
    /// The bytes of all pages.
    backed: u64,
    ranges: Vec<FreeRange>,
    /// The free pages in order of preference, if there is no index of lengths. The attempts share them.
    sorted: OnceCell<Vec<Donor>>,
}

impl<'a> Planner<'a> {
    /// A planner for `size` bytes in the order of `taker`.
    pub(super) fn new(
        space: &'a AddressSpace,
        size: u64,
        taker: &'a Streams,
        growth: &'a Growth,
        limit: u64,
    ) -> Self {
        let table = space.page_table();
        Self {
            space,
            table,
            holes: space.holes(),
            size,
            taker,
            number: taker.lowest().unwrap_or(Streams::MOST),
            growth,
            limit,
            granule: table.granule().bytes().get(),
            backed: table.backed_bytes().get(),
            ranges: Vec::new(),
            sorted: OnceCell::new(),
        }
    }

    /// The plan, or why there is none.
    pub(super) fn plan(mut self) -> Result<Plan, PlanError> {
        let (space, growth) = (self.space, self.growth);
        if self.holes.index.can_take(self.size, self.number) {
            return Ok(Plan { steps: Vec::new(), window: (0, 0) });
        }
        self.ranges = self.ranges();
        let below_peak = growth.moves && space.taken().saturating_add(self.size) <= space.peak;
        let is_scarce = growth.moves && self.limit.saturating_sub(self.backed) < self.size;
        // A program at a new peak with room to grow gets new pages: it will need them anyway.
        let returns = if below_peak || is_scarce { self.returns() } else { Vec::new() };
        let returning = || {
            let kept = self.table.kept().each().map(|kept| kept.span());
            let parts = (!returns.is_empty()).then(|| split(&self.ranges, kept, &returns))?;
            self.fill(self.cheapest(&parts)?, &returns)
        };
        // Without prices for mappings that are in the way: a program that grows does best close to its other
        // pages. A recorded ResNet run holds 1.005 of what it asks for, and 1.017 with prices here.
        let moving = || self.fill(self.cheapest(&self.ranges)?, &[]);
        // In a window between blocks, a page may be too large for its gap, and the pages inside the window
        // cannot move. In a large gap every page fits and every free page can move.
        let at_the_end = || {
            let end = self.table.last_gap().filter(|gap| gap.1 - gap.0 >= self.size)?;
            self.fill(end.0, &[])
        };
        let attempts: [&dyn Fn() -> Option<Plan>; 3] = [&returning, &moving, &at_the_end];
        let mut plan: Option<Plan> = None;
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
        plan.map_or_else(|| self.fill_elsewhere(), Ok)
    }

    /// The gaps, and the holes beside them that the taker can use, in order.
    fn ranges(&self) -> Vec<FreeRange> {
        let mut ranges: Vec<FreeRange> = Vec::new();
        for gap in self.table.gaps.each() {
            let hole = |at| self.holes.index.usable_around(at, self.taker).map(FreeRange::hole);
            let (below, above) = (gap.0.checked_sub(1).and_then(hole), hole(gap.1));
            // The hole between two gaps is above the one and below the other.
            let below = below.filter(|below| ranges.last() != Some(below));
            ranges.extend(below.into_iter().chain([FreeRange::gap(gap)]).chain(above));
        }
        ranges
    }

    /// Where pages can return to that the taker may use, by address. Looks at the kept mappings or at the free pages,
    /// whichever are fewer.
    fn returns(&self) -> Vec<Return> {
        let kept = self.table.kept();
        if kept.count() as u64 <= self.holes.bytes().get() / self.granule {
            let returns = kept.each().filter_map(|kept| {
                let (from, size) = (self.table.place_of(kept.page)?, kept.size.get());
                let hole = self.holes.index.usable_around(from, self.taker)?;
                (from + size <= hole.1).then_some(Return { to: kept.at, size, from })
            });
            return returns.collect();
        }
        let mut returns: Vec<Return> = Vec::new();
        for (from, size) in self.donors() {
            let page = self.table.page(from).map(|page| page.0);
            let kept = page.into_iter().flat_map(|page| kept.of(page));
            returns.extend(kept.map(|to| Return { to, size, from }));
        }
        returns.sort_unstable();
        returns
    }

    /// Every page that is free in the order of the taker, in order of preference.
    fn donors(&self) -> Box<dyn Iterator<Item = Donor> + '_> {
        let Self { table, holes, number, .. } = *self;
        match holes.index.by_length(number, self.granule) {
            Some(holes) => Box::new(ByLength::new(table, holes)),
            None => {
                let sorted = self.sorted.get_or_init(|| sorted(table, holes, number));
                Box::new(sorted.iter().copied())
            }
        }
    }

    /// Where the request would lie at the lowest price.
    fn cheapest(&self, ranges: &[FreeRange]) -> Option<Offset> {
        let windows = openings(ranges).filter_map(|it| window(self.granule, it, self.size));
        windows.min().map(|window| window.at)
    }

    /// A plan that fills the lowest gap in which every page fits, or why there is none.
    fn fill_elsewhere(&self) -> Result<Plan, PlanError> {
        let whole = self.size.checked_next_multiple_of(self.granule).ok_or(PlanError::Limit)?;
        let pages = self.donors().filter(|_| self.growth.moves);
        let (movable, largest) = pages
            .map(|donor| donor.1)
            .fold((0_u64, 0), |(sum, most), page| (sum.saturating_add(page), page.max(most)));
        let room = self.limit.saturating_sub(self.backed) / self.granule * self.granule;
        if whole > room.saturating_add(movable) {
            return Err(PlanError::Limit);
        }
        let needed = whole.saturating_add(largest);
        let mut gaps = self.table.gaps.each().filter(|gap| gap.1 - gap.0 >= needed);
        let filled = gaps.next().and_then(|gap| self.fill(gap.0, &[]));
        filled.ok_or(PlanError::Addresses)
    }

    /// A plan after which all bytes of the request are backed from `at` on. Pages go where they can return to; the rest of
    /// the gaps is filled with moved and new ones.
    fn fill(&self, at: Offset, returns: &[Return]) -> Option<Plan> {
        let Self { space, ranges, size, growth, limit, granule, backed, .. } = self;
        let (size, limit, granule, backed) = (*size, *limit, *granule, *backed);
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
        let held = backed.saturating_add(missing);
        let page = growth.page(held, missing, granule);
        let live = space.taken().saturating_add(size);
        let ceiling = growth.ceiling(page, live, space.peak).min(limit);
        let mut room = limit.saturating_sub(backed);
        let instead = growth.instead_of_moves(page, space.moved, backed, space.peak).min(room);
        let moves = growth.moves && held > ceiling;
        let mut to_move = if moves { missing.saturating_sub(instead) } else { 0 };
        let outside = |&(from, size): &(Offset, u64)| from + size <= at || from >= end;
        let donors = (to_move > 0).then(|| self.donors()).into_iter().flatten();
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
            let in_the_way = self.table.kept().overlapping(start, at);
            let clear =
                |(at, end): (Offset, Offset)| Step::Clear { at, size: Bytes::new(end - at) };
            let clears: Vec<Step> = in_the_way.map(clear).collect();
            steps.splice(cleared..cleared, clears);
        }
        Some(Plan { steps, window })
    }
}
