//! One plan in the making.
//!
//! ```text
//!   ranges    [ gap ][ hole ][ gap ]   [ hole ][ gap          ]      the gaps, and the holes beside them that the taker may use
//!   attempts  1  where pages return to, at the lowest price      2  where the fewest bytes are missing
//!             3  at the end of the last range                    4  the lowest gap in which every page fits
//! ```
//!
//! A planner changes nothing. Of several attempts, the plan that creates the fewest bytes is taken.
//!
//! It looks at a bounded number of gaps, kept mappings and free pages beside those that the plan needs, because a pool
//! plans under its heap lock: at the lowest and the highest gaps, and at the free pages of one group of holes after another.
//! If no place is found among them, a second planner looks at all.

use core::cell::{Cell, OnceCell};
use core::cmp::Reverse;
use std::collections::BTreeSet;

use super::donors::{Donor, FirstFit};
use super::window::{FreeRange, UNMAP_AND_MAP, openings, window};
use super::{Growth, Plan, PlanError, Step};
use crate::Bytes;
use crate::address_space::holes::visit;
use crate::address_space::{AddressSpace, Holes, Offset, PageTable, Streams};

/// How many gaps a plan looks at, and up to how many holes it looks at the pages in all of them: five times as many as any
/// recorded run has on a device that is just large enough for it, and a tenth of a millisecond under the heap lock.
pub(super) const MAX_SEEN: usize = 512;

/// How many free pages and kept mappings a plan looks at for each gap: a recorded run has up to 7,700 mappings.
const PAGES_PER_GAP: usize = 16;

/// How many free pages more than it needs a plan looks at if there are more holes than [`MAX_SEEN`].
const SPARE_DONORS: usize = 64;

/// A kept mapping to which its page can return, because the taker may use all of it where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Return {
    to: Offset,
    size: u64,
    from: Offset,
}

/// See the module.
pub(super) struct Planner<'a> {
    space: &'a AddressSpace,
    table: &'a PageTable,
    holes: &'a Holes,
    size: u64,
    /// The number of the stream that it is for.
    taker: u32,
    growth: &'a Growth,
    limit: u64,
    granule: u64,
    /// The bytes of all pages.
    backed: u64,
    /// How many of each kind to look at.
    most: usize,
    /// Whether there are more.
    has_more: Cell<bool>,
    ranges: Vec<FreeRange>,
    /// The free pages in order of preference. The attempts share them.
    donors: OnceCell<Vec<Donor>>,
}

impl<'a> Planner<'a> {
    /// A planner for `size` bytes in the order of `taker`, which looks at `most` gaps, kept mappings and holes.
    pub(super) fn new(
        space: &'a AddressSpace,
        size: u64,
        taker: &Streams,
        growth: &'a Growth,
        limit: u64,
        most: usize,
    ) -> Self {
        let table = space.page_table();
        Self {
            space,
            table,
            holes: space.holes(),
            size,
            taker: taker.lowest().unwrap_or(Streams::MAX),
            growth,
            limit,
            granule: table.granule().bytes().get(),
            backed: table.backed_bytes().get(),
            most,
            has_more: Cell::new(false),
            ranges: Vec::new(),
            donors: OnceCell::new(),
        }
    }

    /// The plan, or why there is none. Another that looks at more could find one only if the second value is `true`.
    pub(super) fn plan(mut self) -> (Result<Plan, PlanError>, bool) {
        if self.holes.index.can_take(self.size, self.taker) {
            return (Ok(Plan { steps: Vec::new(), window: (0, 0) }), false);
        }
        let room = self.limit.saturating_sub(self.backed);
        if self.size > room.saturating_add(self.holes.bytes().get()) {
            return (Err(PlanError::Limit), false);
        }
        self.ranges = self.ranges();
        let plan = self.best_attempt(room).map_or_else(|| self.fill_elsewhere(room), Ok);
        (plan, self.has_more.get())
    }

    /// Of the plans for several places, the one that creates the fewest bytes.
    fn best_attempt(&self, room: u64) -> Option<Plan> {
        let (space, growth) = (self.space, self.growth);
        let below_peak = growth.moves && space.taken().saturating_add(self.size) <= space.peak;
        let is_scarce = growth.moves && room < self.size;
        // A program at a new peak with room to grow gets new pages: it will need them anyway.
        let returning = || {
            let may_return = (below_peak || is_scarce) && self.table.kept().count() > 0;
            let returns = may_return.then(|| self.returns()).filter(|all| !all.is_empty())?;
            self.fill(self.cheapest(&self.priced_ranges(&returns))?, &returns)
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
        plan
    }

    /// The lowest and the highest gaps, and the holes beside them that the taker can use, in order.
    fn ranges(&self) -> Vec<FreeRange> {
        let gaps = &self.table.gaps;
        self.has_more.set(gaps.count() > self.most);
        let high = gaps.count().min(self.most) / 2;
        let mut above: Vec<_> = gaps.each().rev().take(high).collect();
        above.reverse();
        let below = gaps.each().take(gaps.count().min(self.most) - high);
        let mut ranges: Vec<FreeRange> = Vec::new();
        for gap in below.chain(above) {
            visit();
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
        let (table, kept) = (self.table, self.table.kept());
        let pages = self.holes.bytes().get() / self.granule;
        if kept.count() as u64 <= pages && kept.count() <= self.max_pages() {
            let returns = kept.each().filter_map(|kept| {
                visit();
                let (from, size) = (table.place_of(kept.page)?, kept.size.get());
                let hole = self.holes.index.usable_around(from, self.taker)?;
                (from + size <= hole.1).then_some(Return { to: kept.at, size, from })
            });
            return returns.collect();
        }
        let mut returns: Vec<Return> = Vec::new();
        for &(from, size) in self.donors() {
            let page = table.page(from).map(|page| page.0);
            let kept = page.into_iter().flat_map(|page| kept.of(page));
            returns.extend(kept.map(|to| Return { to, size, from }));
        }
        returns.sort_unstable();
        returns
    }

    /// The ranges with their gaps split at kept mappings, so that a window can be measured by what it costs.
    fn priced_ranges(&self, returns: &[Return]) -> Vec<FreeRange> {
        let (mut parts, mut seen) = (Vec::new(), 0);
        for range in &self.ranges {
            let (mut start, limit) = (range.start, if range.is_gap { range.end } else { 0 });
            for kept in self.table.kept().overlapping(start, limit) {
                visit();
                seen += 1;
                if seen > self.max_pages() {
                    self.has_more.set(true);
                    break;
                }
                let (at, end) = kept.span();
                parts.extend((start < at).then_some(FreeRange { start, end: at, ..*range }));
                let can_return = returns.binary_search_by_key(&at, |it| it.to).is_ok();
                let price = if can_return { 0 } else { UNMAP_AND_MAP };
                parts.push(FreeRange { start: at, end, is_gap: true, price });
                start = end;
            }
            parts.extend((start < range.end).then_some(FreeRange { start, ..*range }));
        }
        parts
    }

    /// How many pages and kept mappings to look at, each of which costs a fraction of a gap.
    fn max_pages(&self) -> usize {
        self.most.saturating_mul(PAGES_PER_GAP)
    }

    /// The pages that are free in the order of the taker, in order of preference: all, or with very many some more than the
    /// plan needs.
    fn donors(&self) -> &[Donor] {
        self.donors.get_or_init(|| {
            let spare =
                if self.holes.count() > self.most { SPARE_DONORS } else { self.max_pages() };
            // As many as are needed may lie in the window itself.
            let needed = usize::try_from(self.size / self.granule).unwrap_or(usize::MAX);
            let enough = needed.saturating_mul(2).saturating_add(spare);
            // Neighbouring holes that the taker may use are merged, so a page that is free for it lies within one hole.
            let mut pages: Vec<(u64, Reverse<u64>, Offset)> = Vec::new();
            let mut without = 0_usize;
            self.holes.index.each_for(self.taker, self.granule, |start, end| {
                visit();
                let before = pages.len();
                let inside = self.table.pages_from(start, end).map(|page| (page.0, page.2.get()));
                let inside = inside.filter(|(from, size)| from + size <= end);
                let inside = inside.take(enough.saturating_sub(before));
                pages.extend(inside.map(|(from, size)| (end - start, Reverse(size), from)));
                without += usize::from(pages.len() == before);
                let is_enough = pages.len() >= enough || without > self.most;
                self.has_more.set(self.has_more.get() || is_enough);
                is_enough
            });
            pages.sort_unstable();
            pages.into_iter().map(|(_, size, from)| (from, size.0)).collect()
        })
    }

    /// Where the request would lie at the lowest price.
    fn cheapest(&self, ranges: &[FreeRange]) -> Option<Offset> {
        let windows = openings(ranges).filter_map(|it| window(self.granule, it, self.size));
        windows.min().map(|window| window.at)
    }

    /// A plan that fills the lowest gap in which every page fits, or why there is none.
    fn fill_elsewhere(&self, room: u64) -> Result<Plan, PlanError> {
        let whole = self.size.checked_next_multiple_of(self.granule).ok_or(PlanError::Limit)?;
        let pages = if self.growth.moves { self.donors() } else { &[] };
        let movable = pages.iter().fold(0_u64, |sum, page| sum.saturating_add(page.1));
        let largest = pages.iter().map(|page| page.1).max().unwrap_or(0);
        if whole > (room / self.granule * self.granule).saturating_add(movable) {
            return Err(PlanError::Limit);
        }
        let needed = whole.saturating_add(largest);
        let mut gaps = self.ranges.iter().filter(|it| it.is_gap && it.end - it.start >= needed);
        let filled = gaps.next().and_then(|gap| self.fill(gap.start, &[]));
        filled.ok_or(PlanError::Addresses)
    }

    /// A plan after which all bytes of the request are backed from `at` on. Pages go where they can return to; the rest of
    /// the gaps is filled with moved and new ones.
    fn fill(&self, at: Offset, returns: &[Return]) -> Option<Plan> {
        let Self { space, table, size, growth, limit, granule, backed, .. } = *self;
        let end = at.checked_add(size)?;
        let window = (at, end);
        let gaps = table.gaps.overlapping(at, end).map(|(start, gap_end)| {
            let to = end.next_multiple_of(granule).min(gap_end);
            (start.max(at / granule * granule), to, gap_end)
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
        let donors = if to_move > 0 { self.donors() } else { &[] };
        let donors = donors.iter().copied().filter(outside);
        let mut donors = FirstFit::new(donors.filter(|donor| !gone.contains(&donor.0)).collect());
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
            let in_the_way = table.kept().overlapping(start, at);
            let clears = in_the_way.map(|kept| Step::Clear { at: kept.at, size: kept.size });
            steps.splice(cleared..cleared, clears);
        }
        Some(Plan { steps, window })
    }
}
