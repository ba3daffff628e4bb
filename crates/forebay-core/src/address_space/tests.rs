//! The address space against a model that knows every cell by itself.

mod asked;
mod claims;
mod differential;
mod events;
mod model;
mod plans;
mod reference;
mod steps;

use proptest::prelude::*;

use super::holes::tests::listed;
use super::*;
use asked::Asked;
use events::{Event, cells, events, growths};
use model::{CELL, GRANULE, Model, SPACE};

const A: Streams = Streams::only(0);
const B: Streams = Streams::only(1);
const C: Streams = Streams::only(2);

/// An address space that begins at nothing.
fn space_of(granule: PageSize, size: Bytes) -> AddressSpace {
    let mut space = AddressSpace::new(granule, Boundaries::Joined);
    space.page_table_mut().reserve(0, size).unwrap();
    space
}

/// Whether work of one of `idle` being over means that memory free in the order of `free` is.
fn is_over(free: Streams, idle: Streams) -> bool {
    idle == Streams::ALL || !free.and(idle).is_empty()
}

/// The address space and the model, told the same.
#[derive(Clone, Debug)]
struct Pair {
    space: AddressSpace,
    model: Model,
    pages: u64,
    /// The page that was last at each address.
    pages_before: std::collections::BTreeMap<u64, u64>,
}

fn pick<T: Copy>(list: &[T], number: usize) -> Option<T> {
    list.get(number % list.len().max(1)).copied()
}

impl Pair {
    fn new() -> Self {
        let granule = PageSize::new(GRANULE).unwrap();
        Self {
            space: space_of(granule, Bytes::new(SPACE)),
            model: Model::new(),
            pages: 0,
            pages_before: std::collections::BTreeMap::new(),
        }
    }

    /// Has both do the same. Where the address space refuses, it must be as it was, indices and all.
    fn both<T: core::fmt::Debug + PartialEq>(
        &mut self,
        space: impl FnOnce(&mut AddressSpace) -> Result<T, AddressSpaceError>,
        model: impl FnOnce(&mut Model) -> Result<T, AddressSpaceError>,
    ) -> Option<T> {
        let before = self.space.clone();
        let (said, due) = (space(&mut self.space), model(&mut self.model));
        assert_eq!(said, due);
        if said.is_err() {
            assert_eq!(format!("{before:?}"), format!("{:?}", self.space));
        }
        said.ok()
    }

    fn add_page(&mut self, at: u64, size: u64, streams: Streams) -> Option<()> {
        self.pages += 1;
        let (page, bytes) = (self.pages, Bytes::new(size));
        self.both(|l| l.add_page(at, bytes, page, streams), |m| m.add_page(at, size, page, streams))
    }

    fn allocate(&mut self, size: u64, streams: Streams) -> Option<u64> {
        let (said, due) =
            (self.space.allocate(Bytes::new(size), streams), self.model.allocate(size, streams));
        assert_eq!(said, due);
        said
    }

    fn free(&mut self, at: u64, size: u64, streams: Streams) -> Option<()> {
        self.both(|l| l.free(at, Bytes::new(size), streams), |m| m.free(at, size, streams))
    }

    fn record_wait(&mut self, taker: Streams, owner: Streams) {
        self.space.holes_mut().record_wait(taker, owner);
        self.model.extend(|set| !owner.is_empty() && set.contains(owner), taker);
    }

    fn record_idle(&mut self, streams: Streams) {
        self.space.holes_mut().record_idle(streams);
        self.model.extend(|set| is_over(set, streams), Streams::ALL);
    }

    fn remove_page(&mut self, at: u64) -> Option<(u64, Bytes, Streams)> {
        let remove = |l: &mut AddressSpace| {
            l.remove_page(at).map(|RemovedPage { page, size, streams, .. }| (page, size, streams))
        };
        let removed = self.both(remove, |m| m.remove_page(at));
        self.pages_before.extend(removed.map(|(page, ..)| (at, page)));
        removed
    }

    fn clear_kept(&mut self, at: u64) -> Option<()> {
        self.both(|l| l.page_table_mut().clear_kept(at).map(drop), |m| m.clear_kept(at))
    }

    fn clear_alias(&mut self, at: u64) -> Option<()> {
        self.both(|l| l.page_table_mut().clear_alias(at), |m| m.clear_alias(at))
    }

    fn happen(&mut self, event: &Event) {
        match *event {
            Event::Take { size, streams } => drop(self.allocate(size, streams)),
            Event::Give { block, streams } => {
                if let Some((at, size)) = pick(&self.model.live(), block) {
                    self.free(at, size, streams).unwrap();
                }
            }
            Event::GiveAnything { at, size, streams } => drop(self.free(at, size, streams)),
            Event::Waited { taker, owner } => self.record_wait(taker, owner),
            Event::Idle { streams } => self.record_idle(streams),
            Event::Location { at, size, streams } => drop(self.add_page(at, size, streams)),
            Event::Lift { page } => {
                if let Some((at, _)) = pick(&self.model.free_pages(), page) {
                    self.remove_page(at).unwrap();
                }
            }
            Event::LiftAnything { at } => drop(self.remove_page(at)),
            Event::Clear { alias } => {
                let aliases: Vec<u64> = self.model.aliases.keys().copied().collect();
                if let Some(at) = pick(&aliases, alias) {
                    self.clear_alias(at).unwrap();
                }
            }
            Event::ClearAnything { at } => drop(self.clear_alias(at)),
            Event::Keep { alias } => {
                let aliases: Vec<u64> = self.model.aliases.keys().copied().collect();
                if let Some(at) = pick(&aliases, alias) {
                    let page = self.pages_before[&at];
                    self.both(
                        |l| l.page_table_mut().keep_alias(at, page),
                        |m| m.keep_alias(at, page),
                    );
                }
            }
            Event::ClearKept { kept } => {
                let all: Vec<u64> = self.model.kept.keys().copied().collect();
                if let Some(at) = pick(&all, kept) {
                    self.clear_kept(at).unwrap();
                }
            }
            Event::Plan { size, taker, growth, room, most } => {
                let limit = Bytes::new(self.space.backed_bytes().get() + room);
                self.plan_among(size, Streams::only(taker), &growth, limit, most);
            }
        }
        self.check();
    }

    /// That both say the same of everything.
    fn check(&self) {
        let (space, model) = (&self.space, &self.model);
        let holes = model.holes();
        assert_eq!(listed(&space.holes), holes);
        let sizes = || holes.iter().map(|hole| hole.1 - hole.0);
        assert_eq!(space.holes().bytes().get(), sizes().sum::<u64>());
        assert_eq!(space.holes().largest().get(), sizes().max().unwrap_or(0));
        assert_eq!(space.holes().count(), holes.len());
        let backed = model.pages.values().map(|(size, _)| size).sum::<u64>();
        assert_eq!(space.backed_bytes().get(), backed);
        assert_eq!(space.taken(), model.taken());
        assert!(space.peak >= space.taken());
        let pages = space.page_table().pages().map(|(at, page, size)| (at, (size.get(), page)));
        assert!(pages.eq(model.pages.clone()));
        assert_eq!(space.pages.aliases, model.aliases);
        let mut kept: Vec<_> =
            space.page_table().kept().oldest_first().map(|(at, size)| (at, size.get())).collect();
        kept.sort_unstable();
        assert!(kept.into_iter().eq(model.kept.iter().map(|(&at, kept)| (at, kept.0))));
        for (_, page) in model.pages.values() {
            let due = model.kept.iter().filter(|(_, kept)| kept.1 == *page).map(|(&at, _)| at);
            assert!(space.page_table().kept().of(*page).eq(due));
        }
        let idle: Vec<_> = space.free_pages().map(|(at, size)| (at, size.get())).collect();
        assert_eq!(idle, model.free_pages());
    }
}

/// An interpreter is thousands of times slower, and does not see the environment that could tell
/// it so. Nothing is written beside the sources: every case found has become a named test.
fn config() -> ProptestConfig {
    let default = ProptestConfig::default();
    let cases = if cfg!(miri) { default.cases.min(2) } else { default.cases };
    ProptestConfig { cases, failure_persistence: None, ..default }
}

proptest! {
    #![proptest_config(config())]

    /// Whatever happens, the address space and a model that looks at every cell say the same, what is
    /// refused changes nothing, and a plan that is carried out serves the request it was made for.
    #[test]
    fn the_line_agrees_with_a_model_of_cells(events in events()) {
        let mut pair = Pair::new();
        for event in &events {
            pair.happen(event);
        }
    }

    /// Two lines told the same are the same, to the last offset and index.
    #[test]
    fn the_same_history_gives_the_same_line(events in events()) {
        let mut pairs = [Pair::new(), Pair::new()];
        for pair in &mut pairs {
            for event in &events {
                pair.happen(event);
            }
        }
        let [one, two] = pairs.map(|pair| format!("{:?}", pair.space));
        prop_assert_eq!(one, two);
    }

    /// Once a stream has waited for any one of those the address space names, it has a hole, and a smaller
    /// one than before; where the address space names nobody, it has one that fits well or nobody has any
    /// smaller.
    #[test]
    fn waiting_is_worth_it(events in events(), size in cells(20), taker in 0_u32..4) {
        let mut pair = Pair::new();
        for event in &events {
            pair.happen(event);
        }
        let taker = Streams::only(taker);
        let named = pair.space.better_owner(Bytes::new(size), taker);
        let smallest = |model: &Model, own: bool| {
            let fits = model.holes().into_iter().filter(|hole| hole.1 - hole.0 >= size);
            let whose = fits.filter(|hole| !hole.2.is_empty() && hole.2.contains(taker) == own);
            whose.map(|hole| hole.1 - hole.0).min()
        };
        let (own, other) = (smallest(&pair.model, true), smallest(&pair.model, false));
        if let Some(owners) = named {
            prop_assert!(!owners.is_empty() && pair.space.owners().contains(owners));
            prop_assert!(own.is_none_or(|own| own > size + size / 8));
            for number in owners.numbers() {
                let mut pair = pair.clone();
                pair.record_wait(taker, Streams::only(number));
                pair.check();
                prop_assert!(pair.allocate(size, taker).is_some());
            }
        } else {
            prop_assert!(own.is_some_and(|own| own <= size + size / 8) || own <= other.or(own));
            prop_assert!(own.is_some() || other.is_none());
        }
    }

    /// Room for just what the best place of all misses is enough, whatever the size of new pages.
    #[test]
    fn the_least_that_could_be_missing_is_enough(
        events in events(), size in cells(60), taker in 0_u32..4, growth in growths(),
    ) {
        let mut pair = Pair::new();
        for event in &events {
            pair.happen(event);
        }
        let (backed, taker) = (pair.space.backed_bytes(), Streams::only(taker));
        let Some(missing) = pair.model.least_missing(size, taker) else {
            let plan = Plan::make(&pair.space, Bytes::new(size), taker, &growth, Bytes::MAX);
            prop_assert!(plan.is_err());
            return Ok(());
        };
        let limit = Bytes::new(backed.get() + missing);
        prop_assert!(pair.plan(size, taker, &growth, limit));
    }

    /// Every page that is free counts: with all of them and not a byte of the device's, a request
    /// of their size succeeds, whatever their sizes and wherever they lie.
    #[test]
    fn free_pages_are_as_good_as_memory(
        events in events(), taker in 0_u32..4, growth in growths(),
    ) {
        let mut pair = Pair::new();
        for event in &events {
            pair.happen(event);
        }
        let taker = Streams::only(taker);
        let size = pair.model.movable(taker).min(pair.model.beyond());
        let held = pair.space.backed_bytes();
        prop_assert!(size == 0 || pair.plan(size, taker, &growth, held));
        prop_assert_eq!(pair.space.backed_bytes(), held);
    }

    /// An outline says what a plan could do once everything is free that comes back: move free pages, or release them and
    /// create smaller ones.
    #[test]
    fn an_outline_knows_what_could_be_planned(
        events in events(), returned in any::<u64>(), size in cells(90), limit in 0..30_u64, moves: bool,
    ) {
        let mut pair = Pair::new();
        for event in &events {
            pair.happen(event);
        }
        let mut space = pair.space;
        let comes_back = |number: usize| returned >> (number % 64) & 1 == 1;
        let blocks = pair.model.live().into_iter().enumerate();
        let blocks: Vec<_> = blocks.filter_map(|(at, block)| comes_back(at).then_some(block)).collect();
        let ranges: Vec<_> = blocks.iter().map(|&(at, size)| (at, at + size)).collect();
        let (size, limit) = (Bytes::new(size), Bytes::new(limit * GRANULE));
        let would_fit = space.holes().would_fit(size, &ranges);
        let outline = Outline::new(&space, &ranges, moves);

        for (at, size) in blocks {
            space.free(at, Bytes::new(size), Streams::ALL).unwrap();
        }
        for at in pair.model.aliases.keys() {
            space.page_table_mut().clear_alias(*at).unwrap();
        }
        space.holes_mut().record_idle(Streams::ALL);
        prop_assert_eq!(would_fit, space.holes().largest() >= size);
        let whole = if moves { space.free_whole_pages() } else { Bytes::ZERO };
        prop_assert_eq!(outline.movable_bytes(), whole);
        // A reservation more, so that no plan lacks addresses.
        space.page_table_mut().reserve(2 * SPACE, Bytes::new(4 * SPACE)).unwrap();
        let growth = Growth { largest_page: Bytes::ZERO, moves, ..Growth::default() };
        let can_plan = |space: &AddressSpace| Plan::make(space, size, A, &growth, limit).is_ok();
        let mut can = can_plan(&space);
        if moves {
            let free: Vec<_> = space.free_pages().map(|page| page.0).collect();
            for at in free {
                space.remove_page(at).unwrap();
                space.page_table_mut().clear_alias(at).unwrap();
            }
            can |= can_plan(&space);
        }
        let could = would_fit || outline.could_fit(size, limit);
        prop_assert!(could || !can, "a plan that the outline denies");
        // Pages that move for want of a limit may be too large for the gaps that the outline counts.
        prop_assert!(can || !could || limit < outline.backed_bytes(), "no plan where the outline sees one");
    }

    /// Where nothing may be created, all pages are of one granule and free for the taker, and
    /// there are enough of them, moving finds a way wherever a stretch of the address space is open. One
    /// page more than the request is asked for: a block that begins within a page touches that
    /// many, and those it touches cannot be moved.
    #[test]
    fn free_pages_are_moved_where_none_may_be_created(
        backed in proptest::collection::vec(any::<bool>(), 20),
        blocks in proptest::collection::vec((cells(12), any::<bool>()), 0..12),
        size in cells(60),
    ) {
        let mut pair = Pair::new();
        for (granule, _) in (0..).zip(&backed).filter(|(_, backed)| **backed) {
            pair.add_page(granule * GRANULE, GRANULE, A).unwrap();
        }
        let taken: Vec<_> =
            blocks.iter().map(|&(size, freed)| (pair.allocate(size, A), size, freed)).collect();
        for (at, size, _) in taken.into_iter().filter(|(.., freed)| *freed) {
            at.map(|at| pair.free(at, size, A));
        }
        let held = pair.space.backed_bytes();
        let free = pair.model.free_pages().len();
        let enough = size.div_ceil(GRANULE) + 1;
        let open = pair.model.least_missing(size, A).is_some();
        let growth = Growth::default();
        let planned = pair.plan(size, A, &growth, held);
        prop_assert!(planned || !open || u64::try_from(free).unwrap() < enough);
        prop_assert_eq!(pair.space.backed_bytes(), held);
    }
}

#[test]
fn neighbours_merge_only_with_a_stream_in_common() {
    let mut pair = Pair::new();
    for (at, streams) in [(0, A), (1, B), (2, B.or(C)), (3, A)] {
        pair.add_page(at * GRANULE, GRANULE, streams).unwrap();
    }
    pair.check();
    assert_eq!(pair.space.holes().count(), 3);
    assert_eq!(pair.space.holes().largest().get(), 2 * GRANULE);
    assert_eq!(pair.allocate(2 * GRANULE, A), None);
    assert_eq!(
        pair.allocate(2 * GRANULE, C),
        None,
        "the part that only B may have is in that hole"
    );
    assert_eq!(pair.allocate(2 * GRANULE, B), Some(GRANULE));
}

#[test]
fn waiting_merges() {
    let mut pair = Pair::new();
    pair.add_page(0, GRANULE, A).unwrap();
    pair.add_page(GRANULE, GRANULE, B).unwrap();
    assert_eq!(pair.allocate(2 * GRANULE, A), None);
    pair.record_wait(A, B);
    pair.check();
    assert_eq!(pair.space.holes().count(), 1);
    assert_eq!(pair.allocate(2 * GRANULE, B), None, "B has not waited for A");
    assert_eq!(pair.allocate(2 * GRANULE, A), Some(0));
}

#[test]
fn the_lowest_hole_is_taken_however_large() {
    let mut pair = Pair::new();
    pair.add_page(0, 4 * GRANULE, A).unwrap();
    pair.add_page(5 * GRANULE, GRANULE, A).unwrap();
    assert_eq!(pair.allocate(CELL, A), Some(0));
    assert_eq!(pair.allocate(4 * GRANULE, A), None);
    assert_eq!(pair.allocate(4 * GRANULE - CELL, A), Some(CELL));
    assert_eq!(pair.allocate(CELL, A), Some(5 * GRANULE), "there is no other");
}

#[test]
fn a_stream_waits_rather_than_cut_a_large_hole() {
    let mut pair = Pair::new();
    let worth = |pair: &mut Pair, cells| pair.space.better_owner(Bytes::new(cells * CELL), A);
    assert_eq!(worth(&mut pair, 1), None, "nobody has anything");
    pair.add_page(0, 4 * GRANULE, A).unwrap();
    assert_eq!(worth(&mut pair, 1), None, "nobody else has");
    pair.add_page(5 * GRANULE, 2 * GRANULE, B).unwrap();
    assert_eq!(worth(&mut pair, 1), Some(B));
    assert_eq!(worth(&mut pair, 17), None, "B has none that large");
    assert_eq!(worth(&mut pair, 33), None, "nor has anyone");
    pair.add_page(8 * GRANULE, GRANULE, A).unwrap();
    assert_eq!(worth(&mut pair, 8), None, "its own fits exactly");
    assert_eq!(worth(&mut pair, 7), None, "what is left is less than B's would leave");
    assert_eq!(worth(&mut pair, 9), Some(B));
    // B frees exactly 15 cells, A has 16: one in fifteen is left over, and that is well enough.
    assert_eq!(pair.allocate(CELL, B), Some(5 * GRANULE));
    pair.add_page(12 * GRANULE, 2 * GRANULE, A).unwrap();
    assert_eq!(worth(&mut pair, 15), None, "its own fits well");
    assert_eq!(worth(&mut pair, 14), Some(B), "an eighth of 14 cells is less than two");
    pair.add_page(10 * GRANULE, GRANULE, Streams::NONE).unwrap();
    assert_eq!(pair.space.better_owner(Bytes::new(CELL), C), Some(A), "nobody's is not had");
}

#[test]
fn a_hole_that_another_made_its_own_is_waited_for() {
    let mut pair = Pair::new();
    pair.add_page(0, GRANULE, A.or(B)).unwrap();
    assert_eq!(pair.space.better_owner(Bytes::new(GRANULE), A), None);
    pair.add_page(GRANULE, GRANULE, B).unwrap();
    assert_eq!(pair.space.better_owner(Bytes::new(GRANULE), A), Some(B));
}

/// The holes' index splits, fills up and empties again. The address space of the model is too short to have
/// that many holes, so this one is held against a list.
#[test]
fn a_line_of_many_holes_finds_the_lowest() {
    let granule = PageSize::new(GRANULE).unwrap();
    let mut space = space_of(granule, Bytes::mib(16));
    let page = Bytes::mib(4);
    space.add_page(0, page, 1, A).unwrap();
    let cell = Bytes::new(CELL);
    let all: Vec<u64> = (0..page.get() / CELL).map(|_| space.allocate(cell, A).unwrap()).collect();
    assert_eq!((space.allocate(cell, A), space.holes().count()), (None, 0));
    let mut random = crate::Random::new(7);
    let mut live: std::collections::BTreeSet<u64> = all.into_iter().collect();
    let mut free: std::collections::BTreeSet<u64> = std::collections::BTreeSet::new();
    for step in 0..if cfg!(miri) { 300 } else { 60_000 } {
        // Long spells of freeing and of taking, so that there are few holes and thousands.
        if random.chance(if step / 5000 % 2 == 0 { 3 } else { 1 }, 4) {
            let Some(&at) = live.iter().nth(random.index(live.len().max(1)).unwrap_or(0)) else {
                continue;
            };
            live.remove(&at);
            free.insert(at);
            space.free(at, cell, A).unwrap();
            assert!(space.free(at, cell, A).is_err(), "freed twice");
        } else {
            let size = 1 + random.below(3);
            let run = |at: u64| (1..size).all(|next| free.contains(&(at + next * CELL)));
            let due = free.iter().copied().find(|&at| run(at));
            assert_eq!(space.allocate(Bytes::new(size * CELL), A), due);
            for at in due.into_iter().flat_map(|at| (0..size).map(move |next| at + next * CELL)) {
                free.remove(&at);
                live.insert(at);
            }
        }
        assert_eq!(space.holes().bytes().get(), u64::try_from(free.len()).unwrap() * CELL);
    }
}

#[test]
fn streams_that_cannot_be_told_apart_have_nothing_in_common() {
    let nameless = Streams::only(Streams::MAX);
    let mut pair = Pair::new();
    pair.add_page(0, GRANULE, B).unwrap();
    assert_eq!(pair.allocate(CELL, nameless), None, "B may still be using it");
    pair.record_wait(A, nameless);
    assert_eq!(pair.allocate(CELL, A), None, "A has not waited for B");
    pair.record_idle(nameless);
    assert_eq!(pair.allocate(CELL, A), None, "B is not idle");
    pair.check();
    pair.add_page(2 * GRANULE, GRANULE, nameless).unwrap();
    assert_eq!(pair.allocate(CELL, nameless), None, "one nameless stream is not another");
    pair.record_idle(Streams::ALL);
    assert_eq!(pair.allocate(CELL, nameless), Some(0));
    pair.check();
}

#[test]
fn streams_that_are_idle_together_are_idle_each() {
    let mut pair = Pair::new();
    pair.add_page(0, GRANULE, A).unwrap();
    pair.add_page(GRANULE, GRANULE, B).unwrap();
    pair.record_idle(A.or(B));
    pair.check();
    assert_eq!(pair.allocate(2 * GRANULE, C), Some(0));
}

#[test]
fn nothing_is_not_a_block() {
    let mut space = space_of(PageSize::new(GRANULE).unwrap(), Bytes::new(SPACE));
    space.add_page(0, Bytes::new(GRANULE), 1, A).unwrap();
    assert_eq!(space.allocate(Bytes::ZERO, A), None);
    let plan = Plan::make(&space, Bytes::ZERO, A, &Growth::default(), Bytes::MAX);
    assert_eq!(plan, Err(PlanError::NoBytes));
}
