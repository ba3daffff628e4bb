//! Growth plans on address spaces small enough to draw.

use super::asked::Asked;
use super::model::{GRANULE, SPACE};
use super::{A, B, space_of};
use crate::address_space::{AddressSpace, AddressSpaceError, Growth, Plan, Step, Streams};
use crate::{Bytes, PageSize};

#[test]
fn pages_grow_with_what_is_held() {
    let mib = |count: u64| Bytes::mib(count);
    let growth = Growth::default();
    for (held, due) in [(2, 2), (44, 2), (48, 4), (96, 8), (384, 32), (8192, 32)] {
        let mut space = space_of(PageSize::DEVICE, Bytes::gib(64));
        space.add_page(0, mib(held), 1, A).unwrap();
        assert_eq!(space.allocate(mib(held), A), Some(0));
        let plan = Plan::make(&space, mib(1), A, &growth, Bytes::MAX).unwrap();
        let step = Step::Create { at: mib(held).get(), size: mib(due) };
        assert_eq!(plan.steps, [step], "{held} MiB held");
    }
}

#[test]
fn free_pages_are_moved_before_any_is_made_above_the_spare() {
    let mut space = space_of(PageSize::new(GRANULE).unwrap(), Bytes::new(SPACE));
    let page = Bytes::new(GRANULE);
    space.add_page(0, page, 1, A).unwrap();
    space.add_page(2 * GRANULE, Bytes::new(2 * GRANULE), 2, A).unwrap();
    assert_eq!(space.allocate(Bytes::new(2 * GRANULE), A), Some(2 * GRANULE));
    // The free page has a gap of one beside it, so all 3 granules asked for miss at the end: 6
    // will be held, where 5 will be in blocks and the spare may be.
    let steps = |space: &AddressSpace, spare_pages, spare_part, taker| {
        let growth = Growth { spare_pages, spare_part, ..Growth::default() };
        Plan::make(space, Bytes::new(3 * GRANULE), taker, &growth, Bytes::MAX).unwrap().steps
    };
    let create = |granule: u64| Step::Create { at: granule * GRANULE, size: page };
    let created = [create(4), create(5), create(6)];
    let moved = [Step::Move { from: 0, to: 4 * GRANULE, size: page }, create(5), create(6)];
    assert_eq!(steps(&space, 1, 5, A), created);
    assert_eq!(steps(&space, 0, 5, A), moved, "there is no spare");
    assert_eq!(steps(&space, 1, 6, A), moved, "a sixth of 5 pages is too little");
    assert_eq!(steps(&space, 0, 5, B), created, "the page is not B's");
    // Once as much was in blocks before, there is no spare any more.
    space.add_page(10 * GRANULE, Bytes::new(3 * GRANULE), 3, A).unwrap();
    let block = space.allocate(Bytes::new(3 * GRANULE), A).unwrap();
    space.free(block, Bytes::new(3 * GRANULE), A).unwrap();
    space.remove_page(10 * GRANULE).unwrap();
    space.page_table_mut().clear_alias(10 * GRANULE).unwrap();
    assert_eq!(steps(&space, 1, 5, A), moved);
}

/// A program that moves pages step after step may grow by a hundredth of its peak instead, and no further.
#[test]
fn a_program_that_keeps_moving_pages_grows_a_little_instead() {
    let mib = |count: u64| Bytes::mib(count);
    let mut space = space_of(PageSize::DEVICE, Bytes::gib(64));
    for page in 0..200 {
        space.add_page(mib(2 * page).get(), mib(2), page, A).unwrap();
        space.allocate(mib(2), A).unwrap();
    }
    // The peak is 400 MiB. Every other page is free, and none beside another.
    for page in (0..200).step_by(2) {
        space.free(mib(2 * page).get(), mib(2), A).unwrap();
    }
    let growth = Growth { largest_page: mib(2), ..Growth::default() };
    let moves = [true, true, true];
    let moved = |space: &AddressSpace| {
        let plan = Plan::make(space, mib(6), A, &growth, Bytes::MAX).unwrap();
        plan.steps.iter().map(|step| matches!(step, Step::Move { .. })).collect::<Vec<_>>()
    };
    assert_eq!(moved(&space), moves, "nothing was moved before");
    space.record_growth(mib(7), Bytes::ZERO, &growth);
    assert_eq!(moved(&space), moves, "too little was");
    space.record_growth(mib(100), Bytes::ZERO, &growth);
    assert_eq!(moved(&space), [true, false, false], "4 MiB are a hundredth");
    space.record_growth(Bytes::ZERO, mib(26), &growth);
    assert_eq!(moved(&space), moves, "pages that were created count against those that were moved");
    // At a hundredth beyond the peak there is no more. Each of the two new pages is a third of the request.
    space.record_growth(mib(1000), Bytes::ZERO, &growth);
    space.add_page(mib(1000).get(), mib(2), 900, A).unwrap();
    space.add_page(mib(2000).get(), mib(2), 901, A).unwrap();
    assert_eq!(moved(&space), [true, true]);
}

/// Between blocks a page may be too large for the gap that misses least; then the request goes
/// beyond the end, where any page fits.
#[test]
fn a_page_too_large_for_its_gap_goes_to_the_end() {
    let mut space = space_of(PageSize::new(GRANULE).unwrap(), Bytes::new(SPACE));
    let (one, two) = (Bytes::new(GRANULE), Bytes::new(2 * GRANULE));
    space.add_page(3 * GRANULE, one, 3, A).unwrap();
    assert_eq!(space.allocate(one, A), Some(3 * GRANULE));
    space.add_page(0, two, 1, A).unwrap();
    space.add_page(5 * GRANULE, two, 2, A).unwrap();
    let (size, held) = (Bytes::new(3 * GRANULE), space.backed_bytes());
    let plan = Plan::make(&space, size, A, &Growth::default(), held).unwrap();
    let shift =
        |from: u64, to: u64| Step::Move { from: from * GRANULE, to: to * GRANULE, size: two };
    assert_eq!(plan.steps, [shift(0, 7), shift(5, 9)]);
    let limit = Bytes::new(held.get() + GRANULE);
    let plan = Plan::make(&space, size, A, &Growth::default(), limit).unwrap();
    assert_eq!(plan.steps, [Step::Create { at: 2 * GRANULE, size: one }]);
}

/// Why a plan's pages are to be put in the address space in the taker's order: one that is free for all
/// becomes one with whatever it touches, and then it may be the taker's no longer.
#[test]
fn a_page_for_all_goes_to_the_hole_beside_it() {
    let mut space = space_of(PageSize::new(GRANULE).unwrap(), Bytes::new(SPACE));
    let page = Bytes::new(GRANULE);
    space.add_page(0, page, 1, B).unwrap();
    let plan = Plan::make(&space, page, A, &Growth::default(), Bytes::MAX).unwrap();
    assert_eq!(plan.steps, [Step::Create { at: GRANULE, size: page }]);
    let mut other = space.clone();
    other.add_page(GRANULE, page, 2, Streams::ALL).unwrap();
    assert_eq!(other.allocate(page, A), None);
    space.add_page(GRANULE, page, 2, A).unwrap();
    assert_eq!(space.allocate(page, A), Some(GRANULE));
}

/// A program that repeats itself: a large block takes pages from between blocks, which then want them back.
#[test]
fn a_page_returns_for_nothing_to_where_it_is_mapped_still() {
    let granule = PageSize::new(GRANULE).unwrap();
    let mut space = space_of(granule, Bytes::new(20 * GRANULE));
    let (page, growth) = (Bytes::new(GRANULE), Growth::default());
    for number in 0..4 {
        space.add_page(number * GRANULE, page, number, A).unwrap();
    }
    let blocks: Vec<u64> = (0..4).map(|_| space.allocate(page, A).unwrap()).collect();
    space.free(blocks[0], page, A).unwrap();
    space.free(blocks[2], page, A).unwrap();
    let two = Bytes::new(2 * GRANULE);
    let plan = Plan::make(&space, two, A, &growth, Bytes::new(4 * GRANULE)).unwrap();
    let moved = |from, to| Step::Move { from: from * GRANULE, to: to * GRANULE, size: page };
    assert_eq!(plan.steps, [moved(0, 4), moved(2, 5)]);
    for (from, to) in [(0, 4), (2, 5)] {
        let number = space.remove_page(from * GRANULE).unwrap().page;
        space.add_page(to * GRANULE, page, number, A).unwrap();
        space.page_table_mut().keep_alias(from * GRANULE, number).unwrap();
    }
    // Another page may not take a place that is still mapped.
    let other = space.add_page(0, page, 9, A);
    assert_eq!(other, Err(AddressSpaceError::Occupied { at: 0 }));
    assert_eq!(space.add_page(0, two, 0, A), Err(AddressSpaceError::Occupied { at: 0 }));
    // The large block has been and gone, and block 1 too: three pages in a row are wanted below.
    space.free(blocks[1], page, A).unwrap();
    let three = Bytes::new(3 * GRANULE);
    let plan = Plan::make(&space, three, A, &growth, Bytes::new(4 * GRANULE)).unwrap();
    let back = |from, to| Step::Return { from: from * GRANULE, to: to * GRANULE, size: page };
    assert_eq!(plan.steps, [back(4, 0), back(5, 2)]);
    // If only one of them is free, another takes the place of the other, whose mapping is removed first.
    assert_eq!(space.allocate(page, A), Some(GRANULE));
    assert_eq!(space.allocate(page, A), Some(4 * GRANULE));
    space.free(GRANULE, page, A).unwrap();
    space.add_page(10 * GRANULE, page, 7, A).unwrap();
    let plan = Plan::make(&space, three, A, &growth, Bytes::new(5 * GRANULE)).unwrap();
    let clear = Step::Clear { at: 0, size: page };
    assert_eq!(plan.steps, [back(5, 2), clear, moved(10, 0)]);
}
