//! The address space as a plain list of holes, every question answered by looking at all of them. It is what
//! the address space did before it had trees, kept so that placement stays what it was.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::Bytes;
use crate::address_space::{Growth, Step, Streams};

/// A hole: start, end, and in whose order it is free.
pub(super) type Listed = (u64, u64, Streams);

/// See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Reference {
    pub(super) holes: Vec<Listed>,
    pub(super) pages: BTreeMap<u64, (u64, u64)>,
    pub(super) aliases: BTreeMap<u64, u64>,
    pub(super) size: u64,
    pub(super) granule: u64,
    pub(super) peak: u64,
    pub(super) moved: u64,
    /// Whether pages are islands.
    pub(super) apart: bool,
}

fn joins(one: Streams, two: Streams) -> bool {
    one == two || !one.and(two).is_empty()
}

fn serves(free: Streams, taker: Streams) -> bool {
    if taker.is_empty() { free == Streams::ALL } else { free.contains(taker) }
}

impl Reference {
    pub(super) fn free_bytes(&self) -> u64 {
        self.holes.iter().map(|hole| hole.1 - hole.0).sum()
    }

    pub(super) fn backed(&self) -> u64 {
        self.pages.values().map(|page| page.0).sum()
    }

    fn is_island(&self, at: u64) -> bool {
        self.apart && self.pages.contains_key(&at)
    }

    pub(super) fn allocate(&mut self, size: u64, taker: Streams) -> Option<u64> {
        let fits = |hole: &&mut Listed| hole.1 - hole.0 >= size && serves(hole.2, taker);
        let hole = self.holes.iter_mut().find(fits)?;
        let at = hole.0;
        hole.0 += size;
        self.holes.retain(|hole| hole.0 < hole.1);
        self.peak = self.peak.max(self.backed() - self.free_bytes());
        Some(at)
    }

    /// Whether `at..end` lies in one run of pages.
    fn is_backed(&self, at: u64, end: u64) -> bool {
        let mut reached = at;
        for (&start, &(size, _)) in &self.pages {
            if start <= reached && reached < start + size {
                reached = start + size;
                if self.apart {
                    break;
                }
            }
        }
        reached >= end
    }

    /// Whether `at..end` is taken, all of it, and in one run of pages.
    fn is_taken(&self, at: u64, end: u64) -> bool {
        self.is_backed(at, end) && !self.holes.iter().any(|hole| hole.0 < end && at < hole.1)
    }

    /// Takes `at..end` out of the holes there, if they are all of it.
    pub(super) fn allocate_at(&mut self, at: u64, size: u64) -> bool {
        let end = at + size;
        let inside = self.holes.iter().map(|hole| hole.1.min(end).saturating_sub(hole.0.max(at)));
        if size == 0 || inside.sum::<u64>() < size || !self.is_backed(at, end) {
            return false;
        }
        let holes = core::mem::take(&mut self.holes).into_iter();
        let parts = holes.flat_map(|(from, to, set)| {
            [(from, to.min(at.max(from)), set), (from.max(end.min(to)), to, set)]
        });
        self.holes = parts.filter(|hole| hole.0 < hole.1).collect();
        self.peak = self.peak.max(self.backed() - self.free_bytes());
        true
    }

    pub(super) fn free(&mut self, at: u64, size: u64, streams: Streams) -> bool {
        let end = at.checked_add(size).filter(|&end| size > 0 && self.is_taken(at, end));
        end.map(|end| self.add(at, end, streams)).is_some()
    }

    /// One with the neighbour below, then with the one above.
    pub(super) fn add(&mut self, start: u64, end: u64, streams: Streams) {
        let index = self.holes.partition_point(|hole| hole.0 < start);
        self.holes.insert(index, (start, end, streams));
        for lower in [index.checked_sub(1), Some(index)].into_iter().flatten() {
            // Where it was one with the one below, the one above has moved down by one.
            let lower = if lower == index && self.holes.get(index).is_none_or(|h| h.0 != start) {
                index - 1
            } else {
                lower
            };
            self.join(lower);
        }
    }

    fn join(&mut self, lower: usize) -> bool {
        let (Some(&low), Some(&high)) = (self.holes.get(lower), self.holes.get(lower + 1)) else {
            return false;
        };
        if low.1 != high.0 || self.is_island(high.0) || !joins(low.2, high.2) {
            return false;
        }
        self.holes[lower] = (low.0, high.1, low.2.and(high.2));
        self.holes.remove(lower + 1);
        true
    }

    /// Changes the sets of holes, then joins from the low end.
    pub(super) fn relabel(&mut self, change: impl Fn(Streams) -> Streams) {
        for hole in &mut self.holes {
            hole.2 = change(hole.2);
        }
        let mut lower = 0;
        while lower < self.holes.len() {
            if !self.join(lower) {
                lower += 1;
            }
        }
    }

    pub(super) fn record_wait(&mut self, taker: Streams, owner: Streams) {
        let has = |set: Streams| !owner.is_empty() && set.contains(owner);
        self.relabel(|set| if has(set) { set.or(taker) } else { set });
    }

    pub(super) fn record_wait_any(&mut self, taker: Streams, owners: Streams) {
        let meets = |set: Streams| !set.and(owners).is_empty();
        self.relabel(|set| if meets(set) { set.or(taker) } else { set });
    }

    pub(super) fn record_idle(&mut self, streams: Streams) {
        let over = |set: Streams| streams == Streams::ALL || !set.and(streams).is_empty();
        self.relabel(|set| if over(set) { Streams::ALL } else { set });
    }

    pub(super) fn hand_over(&mut self, from: Streams, to: Streams) {
        let has = |set: Streams| !from.is_empty() && set != Streams::ALL && set.contains(from);
        self.relabel(|set| if has(set) { set.without(from).or(to) } else { set });
    }

    pub(super) fn better_owner(&self, size: u64, taker: Streams) -> Option<Streams> {
        let fits = || self.holes.iter().filter(|hole| hole.1 - hole.0 >= size);
        let own = fits().filter(|hole| serves(hole.2, taker)).map(|hole| hole.1 - hole.0).min();
        let others = fits().filter(|hole| !serves(hole.2, taker) && !hole.2.is_empty());
        let best = others.min_by_key(|hole| (hole.1 - hole.0, hole.0))?;
        let good = own.is_some_and(|own| own - size <= size / 8 || own <= best.1 - best.0);
        (!good).then_some(best.2)
    }

    pub(super) fn owners(&self) -> Streams {
        self.holes.iter().fold(Streams::NONE, |all, hole| all.or(hole.2))
    }

    pub(super) fn remove_page(&mut self, at: u64) -> Option<(u64, Streams)> {
        let &(size, page) = self.pages.get(&at)?;
        let end = at + size;
        let inside: Vec<Listed> =
            self.holes.iter().copied().filter(|hole| hole.0 < end && at < hole.1).collect();
        let covered: u64 = inside.iter().map(|hole| hole.1.min(end) - hole.0.max(at)).sum();
        if covered < size {
            return None;
        }
        let streams = inside.iter().fold(Streams::ALL, |all, hole| all.and(hole.2));
        self.holes.retain(|hole| hole.1 <= at || hole.0 >= end);
        for hole in inside {
            for (start, stop) in [(hole.0, hole.1.min(at)), (hole.0.max(end), hole.1)] {
                if start < stop {
                    let index = self.holes.partition_point(|other| other.0 < start);
                    self.holes.insert(index, (start, stop, hole.2));
                }
            }
        }
        self.pages.remove(&at);
        self.aliases.insert(at, size);
        Some((page, streams))
    }

    /// Where blocks may come to lie: usable holes and gaps, as (start, end, whether it is a gap).
    fn ranges(&self, taker: Streams) -> Vec<(u64, u64, bool)> {
        let mut taken: Vec<(u64, u64)> = self.pages.iter().map(|(&at, p)| (at, at + p.0)).collect();
        taken.extend(self.aliases.iter().map(|(&at, &size)| (at, at + size)));
        taken.push((self.size, self.size));
        taken.sort_unstable();
        let usable = self.holes.iter().filter(|hole| serves(hole.2, taker));
        let mut all: Vec<(u64, u64, bool)> = usable.map(|hole| (hole.0, hole.1, false)).collect();
        let mut reached = 0;
        for (start, end) in taken {
            if start > reached {
                all.push((reached, start, true));
            }
            reached = end;
        }
        all.sort_unstable();
        all
    }

    /// The steps the address space planned before it had more than one range.
    pub(super) fn plan(
        &self,
        size: u64,
        taker: Streams,
        growth: &Growth,
        limit: u64,
    ) -> Option<Vec<Step>> {
        let ranges = self.ranges(taker);
        let openings = ranges.chunk_by(|one, next| one.1 == next.0);
        let windows = openings.flat_map(|opening| {
            let (start, end) = (opening[0].0, opening[opening.len() - 1].1);
            let starts = opening.iter().map(|it| Some(it.0));
            let ends = opening.iter().filter(|it| !it.2).map(|it| it.1.checked_sub(size));
            let places = starts.chain(ends).flatten();
            let fits = places.filter(move |&at| at >= start && at + size <= end);
            let left = (end - start).saturating_sub(size);
            fits.map(move |at| (self.missing(opening, at, at + size), left, at))
        });
        let least = windows.min();
        let least = least.and_then(|least| self.fill(&ranges, least.2, size, taker, growth, limit));
        let live = self.backed() - self.free_bytes() + size;
        let created = |steps: &Vec<Step>| -> u64 {
            steps
                .iter()
                .map(|step| if let Step::Create { size, .. } = step { size.get() } else { 0 })
                .sum()
        };
        let below_peak = growth.moves && live <= self.peak;
        if least.as_ref().is_some_and(|steps| !below_peak || created(steps) == 0) {
            return least;
        }
        let end = ranges.last().filter(|last| last.2 && last.1 == self.size);
        let end = end.filter(|end| end.0 + size <= self.size);
        let other = end.and_then(|end| self.fill(&ranges, end.0, size, taker, growth, limit));
        least.into_iter().chain(other).min_by_key(created)
    }

    /// What the gaps have of a window, in whole granules.
    fn missing(&self, opening: &[(u64, u64, bool)], at: u64, end: u64) -> u64 {
        let granule = self.granule;
        let (from, to) = (at / granule * granule, end.next_multiple_of(granule));
        let gaps = opening.iter().filter(|it| it.2 && it.0 < end && at < it.1);
        gaps.map(|gap| gap.1.min(to) - gap.0.max(from)).sum()
    }

    fn fill(
        &self,
        ranges: &[(u64, u64, bool)],
        at: u64,
        size: u64,
        taker: Streams,
        growth: &Growth,
        limit: u64,
    ) -> Option<Vec<Step>> {
        let (granule, end) = (self.granule, at + size);
        let inside = ranges.iter().filter(|it| it.2 && it.1 > at && it.0 < end);
        let gaps: Vec<_> = inside
            .map(|gap| {
                let to = end.next_multiple_of(granule).min(gap.1);
                (gap.0.max(at / granule * granule), to, gap.1)
            })
            .collect();
        let held = self.backed() + gaps.iter().map(|gap| gap.1 - gap.0).sum::<u64>();
        let page = growth.page(held, held - self.backed(), granule);
        let live = self.backed() - self.free_bytes() + size;
        let ceiling = growth.ceiling(page, live, self.peak).min(limit);
        let mut donors: Vec<(u64, Reverse<u64>, u64)> = Vec::new();
        for hole in self.holes.iter().filter(|hole| serves(hole.2, taker)) {
            for (&from, &(size, _)) in self.pages.range(hole.0..hole.1) {
                if from + size <= hole.1 && (from + size <= at || from >= end) {
                    donors.push((hole.1 - hole.0, Reverse(size), from));
                }
            }
        }
        donors.sort_unstable();
        let (mut room, mut steps) = (limit.saturating_sub(self.backed()), Vec::new());
        let slack = (self.peak + self.peak / growth.slack_part).saturating_sub(self.backed());
        let instead = slack.min(self.moved / growth.moves_per_growth) / page * page;
        let mut to_move = (held - self.backed()).saturating_sub(instead.min(room));
        if !growth.moves || held <= ceiling {
            to_move = 0;
        }
        for (mut at, to, gap_end) in gaps {
            donors.retain(|&(_, Reverse(size), from)| {
                let goes = at < to && size <= gap_end - at && to_move > 0;
                if goes {
                    steps.push(Step::Move { from, to: at, size: Bytes::new(size) });
                    at += size;
                    to_move = to_move.saturating_sub(size);
                }
                !goes
            });
            while at < to {
                let size = page.min(gap_end - at).min(room) / granule * granule;
                if size == 0 {
                    return None;
                }
                steps.push(Step::Create { at, size: Bytes::new(size) });
                room -= size;
                at += size;
            }
        }
        Some(steps)
    }
}
