//! Random programs, told to the address space and to the list of holes it was before it had trees.

use proptest::prelude::*;

use super::asked::Asked;
use super::reference::{Listed, Reference};
use super::{A, B, config};
use crate::address_space::holes::tests::{check, listed};
use crate::address_space::{
    AddressSpace, AddressSpaceError, Boundaries, Growth, Plan, PlanError, Step, Streams,
};
use crate::{Bytes, PageSize, Random};

const CELL: u64 = 512;
const GRANULE: u64 = 4096;
/// Where the address space begins: far up, as addresses do.
const BASE: u64 = (1 << 56) + 6 * GRANULE;

/// The address space and the list, told the same.
struct Twins {
    space: AddressSpace,
    list: Reference,
    live: Vec<(u64, u64)>,
    random: Random,
    streams: u64,
    granules: u64,
    pages: u64,
}

impl Twins {
    fn new(seed: u64, granules: u64, streams: u64, boundaries: Boundaries) -> Self {
        let mut space = AddressSpace::new(PageSize::new(GRANULE).unwrap(), boundaries);
        let apart = boundaries == Boundaries::Apart;
        if !apart {
            space.page_table_mut().reserve(BASE, Bytes::new(granules * GRANULE)).unwrap();
            assert_eq!(space.page_table().reserved_bytes().get(), granules * GRANULE);
        }
        let size = BASE + granules * GRANULE;
        let mut list = Reference { size, granule: GRANULE, apart, ..Reference::default() };
        // What lies below the address space is no gap.
        list.aliases.insert(0, BASE);
        let (random, live) = (Random::new(seed), Vec::new());
        Self { space, list, live, random, streams, granules, pages: 0 }
    }

    fn stream(&mut self) -> Streams {
        let number = u32::try_from(self.random.below(self.streams)).unwrap();
        // Some in the highest word of a set.
        Streams::only(if number % 3 == 2 { Streams::MAX - number } else { number })
    }

    fn set(&mut self) -> Streams {
        match self.random.below(20) {
            0 => Streams::ALL,
            1 => Streams::NONE,
            2 | 3 => self.stream().or(self.stream()),
            4 => self.stream().or(self.stream()).or(self.stream()),
            _ => self.stream(),
        }
    }

    fn add_page(&mut self) {
        let at = BASE + self.random.below(self.granules) * GRANULE;
        let (size, streams) = ((1 + self.random.below(4)) * GRANULE, self.set());
        self.place_at(at, size, streams);
    }

    fn place_at(&mut self, at: u64, size: u64, streams: Streams) {
        self.pages += 1;
        let placed = self.space.add_page(at, Bytes::new(size), self.pages, streams);
        let end = at + size;
        let hits = |from: u64, length: u64| from < end && at < from + length;
        let pages = self.list.pages.iter().any(|(&from, page)| hits(from, page.0));
        let fits = self.list.apart || end <= self.list.size;
        if !fits {
            assert_eq!(placed, Err(AddressSpaceError::Malformed { at, size }));
        } else if pages || self.list.aliases.iter().any(|(&from, &length)| hits(from, length)) {
            assert_eq!(placed, Err(AddressSpaceError::Occupied { at }));
        } else {
            assert_eq!(placed, Ok(()));
            self.list.pages.insert(at, (size, self.pages));
            self.list.add(at, end, streams);
        }
    }

    fn allocate(&mut self, most: u64) {
        // One stream, or none that can be told apart.
        let taker = if self.random.chance(1, 20) { Streams::NONE } else { self.stream() };
        let size = (1 + self.random.below(most)) * CELL;
        let worth = self.space.better_owner(Bytes::new(size), taker);
        assert_eq!(worth, self.list.better_owner(size, taker));
        let at = self.space.allocate(Bytes::new(size), taker);
        assert_eq!(at, self.list.allocate(size, taker), "{size} B for {taker:?}");
        self.live.extend(at.map(|at| (at, size)));
    }

    /// In the middle of a hole, across holes of several streams, or where something is not free.
    fn allocate_at(&mut self) {
        let at = match self.random.index(self.list.holes.len()) {
            Some(index) if self.random.chance(3, 4) => {
                let hole = self.list.holes[index];
                hole.0 + self.random.below((hole.1 - hole.0) / CELL) * CELL
            }
            _ => BASE + self.random.below(self.granules * GRANULE / CELL) * CELL,
        };
        let size = self.random.below(20) * CELL;
        let around = self.list.holes.iter().find(|hole| hole.0 <= at && at < hole.1);
        assert_eq!(self.space.holes().around(at).map(|hole| hole.1), around.map(|hole| hole.1));
        let taken = self.space.allocate_at(at, Bytes::new(size));
        assert_eq!(taken.is_ok(), self.list.allocate_at(at, size), "{size} B at {at:#x}");
        self.live.extend(taken.ok().map(|()| (at, size)));
    }

    fn free(&mut self) {
        let Some(index) = self.random.index(self.live.len()) else { return };
        let (mut at, mut size) = self.live.swap_remove(index);
        let streams = self.set();
        if size > CELL && self.random.chance(1, 4) {
            // In two parts.
            self.live.push((at, CELL));
            (at, size) = (at + CELL, size - CELL);
        }
        assert_eq!(self.space.free(at, Bytes::new(size), streams), Ok(()));
        assert!(self.list.free(at, size, streams));
        assert!(self.space.free(at, Bytes::new(CELL), streams).is_err(), "freed twice");
    }

    fn give_anything(&mut self) {
        let at = BASE + self.random.below(self.granules * GRANULE / CELL) * CELL;
        let (size, streams) = (self.random.below(20) * CELL, self.set());
        let whole = self.live.iter().any(|&(from, length)| from < at + size && at < from + length);
        if whole {
            // Part of what is live would stay in the list of live blocks.
            return;
        }
        let given = self.space.free(at, Bytes::new(size), streams).is_ok();
        assert_eq!(given, self.list.free(at, size, streams));
    }

    fn remove_page(&mut self) {
        let pages: Vec<u64> = self.list.pages.keys().copied().collect();
        let Some(index) = self.random.index(pages.len()) else { return };
        let lifted = self.space.remove_page(pages[index]).map(|it| (it.page, it.streams));
        assert_eq!(lifted.ok(), self.list.remove_page(pages[index]));
    }

    fn clear_alias(&mut self) {
        let aliases: Vec<u64> = self.list.aliases.keys().copied().filter(|&at| at > 0).collect();
        let Some(index) = self.random.index(aliases.len()) else { return };
        assert_eq!(self.space.page_table_mut().clear_alias(aliases[index]), Ok(()));
        self.list.aliases.remove(&aliases[index]);
    }

    fn plan(&mut self) {
        let (size, taker) = ((1 + self.random.below(80)) * CELL, self.stream());
        let growth = Growth {
            largest_page: Bytes::new(GRANULE << self.random.below(3)),
            part: 1 + self.random.below(16),
            spare_pages: self.random.below(3),
            spare_part: 1 + self.random.below(4),
            moves: self.random.chance(3, 4),
            moves_per_growth: 1 + self.random.below(4),
            slack_part: 1 + self.random.below(100),
            ..Growth::default()
        };
        // As if earlier plans had been carried out.
        let (moved, made) = (self.random.below(20) * GRANULE, self.random.below(4) * GRANULE);
        self.space.record_growth(Bytes::new(moved), Bytes::new(made), &growth);
        self.list.moved = (self.list.moved + moved).saturating_sub(made * growth.moves_per_growth);
        let limit = self.list.backed() + self.random.below(10 * GRANULE / CELL) * CELL;
        let plan = Plan::make(&self.space, Bytes::new(size), taker, &growth, Bytes::new(limit));
        match (self.list.plan(size, taker, &growth, limit), plan) {
            (Some(due), Ok(plan)) => {
                assert_eq!(plan.steps, due);
                let made = due.iter().map(|step| match step {
                    Step::Create { size, .. } => size.get(),
                    _ => 0,
                });
                assert_eq!(plan.created().get(), made.sum::<u64>());
            }
            (None, Ok(plan)) => assert!(!plan.steps.is_empty(), "in a gap below the last page"),
            (None, Err(lack)) => self.check_lack(lack, size, taker, &growth, limit),
            (Some(due), Err(lack)) => panic!("{lack}, where {due:?} would do"),
        }
    }

    /// With another range there is a plan exactly where addresses were lacking.
    fn check_lack(&self, lack: PlanError, size: u64, taker: Streams, growth: &Growth, limit: u64) {
        let mut space = self.space.clone();
        space.page_table_mut().reserve(BASE - (1 << 40), Bytes::new(1 << 30)).unwrap();
        let again = Plan::make(&space, Bytes::new(size), taker, growth, Bytes::new(limit));
        assert_eq!(again.is_ok(), lack == PlanError::Addresses, "{lack:?}, then {again:?}");
    }

    fn step(&mut self) {
        match self.random.below(35) {
            0..=9 => self.allocate(20),
            32..=34 => self.allocate_at(),
            10..=18 => self.free(),
            19 => self.give_anything(),
            20 => {
                let (taker, owner) = (self.set(), self.set());
                self.space.holes_mut().record_wait(taker, owner);
                self.list.record_wait(taker, owner);
            }
            21 => {
                let (taker, owners) = (self.set(), self.set().or(self.set()));
                self.space.holes_mut().record_wait_any(taker, owners);
                self.list.record_wait_any(taker, owners);
            }
            22 => {
                let streams = self.set();
                if self.random.chance(1, 3) {
                    self.space.holes_mut().record_idle(streams);
                    self.list.record_idle(streams);
                }
            }
            23 => {
                let (from, to) = (self.stream(), self.set());
                self.space.holes_mut().hand_over(from, to);
                self.list.hand_over(from, to);
                let has = |hole: &Listed| hole.2 != Streams::ALL && hole.2.contains(from);
                assert_eq!(self.space.holes().owns_nothing(from), !self.list.holes.iter().any(has));
            }
            24..=27 => self.add_page(),
            28 => self.remove_page(),
            29 => self.clear_alias(),
            _ if !self.list.apart => self.plan(),
            _ => {}
        }
    }

    fn check(&self) {
        let (space, list) = (&self.space, &self.list);
        check(&space.holes);
        let holes = listed(&space.holes);
        assert_eq!(holes, list.holes);
        assert_eq!(space.owners(), list.owners());
        assert_eq!(
            (space.holes().count(), space.holes().bytes().get()),
            (holes.len(), list.free_bytes())
        );
        assert_eq!(space.backed_bytes().get(), list.backed());
        let largest = holes.iter().map(|hole| hole.1 - hole.0).max().unwrap_or(0);
        assert_eq!(space.holes().largest().get(), largest);
        let free = |at: u64, end: u64| {
            let inside = holes.iter().map(|hole| hole.1.min(end).saturating_sub(hole.0.max(at)));
            inside.sum::<u64>() == end - at
        };
        let whole = list.pages.iter().filter(|&(&at, page)| free(at, at + page.0));
        let whole: u64 = whole.map(|(_, page)| page.0).sum();
        assert_eq!(space.free_whole_pages().get(), whole);
    }
}

fn run(seed: u64, steps: u64, granules: u64, streams: u64, boundaries: Boundaries) {
    let mut twins = Twins::new(seed, granules, streams, boundaries);
    for _ in 0..if cfg!(miri) { 5 } else { steps } {
        twins.step();
        twins.check();
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_line_agrees_with_a_list_of_holes(seed in any::<u64>(), streams in 1_u64..8) {
        run(seed, 150, 24, streams, Boundaries::Joined);
    }

    #[test]
    fn a_line_of_islands_agrees_with_a_list_of_holes(seed in any::<u64>(), streams in 1_u64..5) {
        run(seed, 150, 24, streams, Boundaries::Apart);
    }
}

/// Thousands of holes, so that every tree grows and shrinks by levels.
#[test]
fn a_long_line_agrees_with_a_list_of_holes() {
    for (seed, streams) in [(1, 1), (2, 4), (3, 40)] {
        let mut twins = Twins::new(seed, 4096, streams, Boundaries::Joined);
        for page in 0..512 {
            twins.place_at(BASE + page * 8 * GRANULE, 8 * GRANULE, A);
        }
        for step in 0..if cfg!(miri) { 20 } else { 9000_u64 } {
            // Long spells of taking and of freeing.
            match (step / 3000 % 3, twins.random.chance(4, 5)) {
                (0, true) | (1 | 2, false) if step % 8 == 0 => twins.allocate_at(),
                (0, true) | (1 | 2, false) => twins.allocate(3),
                _ => twins.free(),
            }
            match twins.random.below(200) {
                0 => twins.step(),
                1 => twins.check(),
                _ => {}
            }
        }
        twins.check();
        twins.space.holes_mut().record_idle(Streams::ALL);
        twins.list.record_idle(Streams::ALL);
        twins.check();
    }
}

#[test]
fn what_is_free_for_all_stays_so_when_a_number_is_handed_over() {
    let mut space = AddressSpace::new(PageSize::new(GRANULE).unwrap(), Boundaries::Apart);
    let page = Bytes::new(GRANULE);
    space.add_page(0, page, 1, Streams::ALL).unwrap();
    space.add_page(2 * GRANULE, page, 2, A).unwrap();
    space.add_page(4 * GRANULE, page, 3, A.or(B)).unwrap();
    assert!(!space.holes().owns_nothing(A));
    space.holes_mut().hand_over(A, Streams::NONE);
    assert!(space.holes().owns_nothing(A) && !space.holes().owns_nothing(B));
    assert_eq!(space.allocate(page, Streams::NONE), Some(0), "it is still everybody's");
    assert_eq!(
        space.allocate(page, A),
        None,
        "the next stream with this number did not free these"
    );
    assert_eq!(space.allocate(page, B), Some(4 * GRANULE));
    assert_eq!(space.allocate(page, Streams::only(Streams::MAX)), None);
    space.holes_mut().record_idle(Streams::ALL);
    assert_eq!(space.allocate(page, A), Some(2 * GRANULE), "nobody's until the device was idle");
}

#[test]
fn a_set_of_all_numbers_is_not_all_streams() {
    let every = (0..Streams::MAX).map(Streams::only).fold(Streams::NONE, Streams::or);
    assert!(every != Streams::ALL && Streams::ALL.contains(every));
    assert_eq!(every.numbers().count(), Streams::MAX as usize);
    assert_eq!(every.without(B).numbers().count(), Streams::MAX as usize - 1);
    assert_eq!(Streams::ALL.and(every), every);
}

#[test]
fn ranges_may_touch_and_not_overlap() {
    let granule = PageSize::new(GRANULE).unwrap();
    let mut space = AddressSpace::new(granule, Boundaries::Joined);
    let (size, page) = (Bytes::new(4 * GRANULE), Bytes::new(GRANULE));
    assert_eq!(
        space.add_page(BASE, page, 1, A),
        Err(AddressSpaceError::Malformed { at: BASE, size: GRANULE })
    );
    let plan = |space: &AddressSpace| Plan::make(space, size, A, &Growth::default(), Bytes::MAX);
    assert_eq!(plan(&space), Err(PlanError::Addresses));
    space.page_table_mut().reserve(BASE, size).unwrap();
    assert!(plan(&space).is_ok());
    let inside = BASE + 3 * GRANULE;
    assert_eq!(
        space.page_table_mut().reserve(inside, size),
        Err(AddressSpaceError::Occupied { at: inside })
    );
    assert!(
        space.page_table_mut().reserve(BASE + 1, size).is_err()
            && space.page_table_mut().reserve(1 << 57, size).is_err()
    );
    space.page_table_mut().reserve(BASE + size.get(), size).unwrap();
    assert_eq!(space.page_table().reserved_bytes(), Bytes::new(8 * GRANULE));
    // A block may lie across the two, a page may not.
    let across = space.add_page(inside, Bytes::new(2 * GRANULE), 1, A);
    assert_eq!(across, Err(AddressSpaceError::Malformed { at: inside, size: 2 * GRANULE }));
    space.add_page(inside, page, 1, A).unwrap();
    space.add_page(BASE + size.get(), page, 2, A).unwrap();
    assert_eq!(space.allocate(Bytes::new(2 * GRANULE), A), Some(inside));
    let pages: Vec<u64> =
        space.page_table().pages_in(inside + 1, inside + 2).map(|page| page.0).collect();
    assert_eq!(pages, [inside]);
    assert_eq!(space.page_table().pages_in(inside, BASE + size.get() + 1).count(), 2);
    assert_eq!(space.page_table().pages_in(BASE, inside).count(), 0);
}

#[test]
fn segments_are_islands() {
    let mut space = AddressSpace::new(PageSize::new(GRANULE).unwrap(), Boundaries::Apart);
    let page = Bytes::new(GRANULE);
    space.add_page(BASE, page, 1, A).unwrap();
    space.add_page(BASE + GRANULE, page, 2, A).unwrap();
    assert_eq!(space.add_page(BASE, page, 3, A), Err(AddressSpaceError::Occupied { at: BASE }));
    assert_eq!(space.holes().count(), 2);
    assert_eq!(space.allocate(Bytes::new(2 * GRANULE), A), None);
    assert_eq!(space.allocate(page, A), Some(BASE));
    assert_eq!(space.allocate(page, A), Some(BASE + GRANULE));
    let both = space.free(BASE, Bytes::new(2 * GRANULE), A);
    assert_eq!(both, Err(AddressSpaceError::InUse { at: BASE }), "no block lies in both");
    space.free(BASE + GRANULE, page, A).unwrap();
    space.free(BASE, page, A).unwrap();
    assert_eq!((space.holes().count(), space.holes().largest()), (2, page));
    let wanted = |limit| Plan::segment(&space, page, &Growth::default(), Bytes::new(limit));
    assert_eq!(wanted(2 * GRANULE), None);
    assert_eq!(wanted(3 * GRANULE), Some(page));
}
