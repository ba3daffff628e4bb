//! What it costs: nodes visited, not time, so that an address space that looks at every hole is found out on
//! any machine.

use super::A;
use super::asked::Asked;
use crate::address_space::holes::tests::visits;
use crate::address_space::{AddressSpace, Boundaries, Growth, Plan, Streams};
use crate::{Bytes, PageSize, Random};

const CELL: u64 = 512;

/// An address space with `holes` holes or so, of `streams` streams, and its live blocks.
fn space(
    holes: u64,
    streams: u64,
    random: &mut Random,
) -> (AddressSpace, Vec<(u64, u64, Streams)>) {
    let mut space = AddressSpace::new(PageSize::DEVICE, Boundaries::Joined);
    let page = Bytes::mib(2);
    space.page_table_mut().reserve(0, Bytes::gib(4)).unwrap();
    let mut blocks = Vec::new();
    for number in 0_u64.. {
        if blocks.len() as u64 >= 2 * holes {
            break;
        }
        space.add_page(number * page.get(), page, number, A).unwrap();
        while let Some(at) = space.allocate(Bytes::new(4 * CELL), A) {
            let stream = u32::try_from(random.below(streams)).unwrap();
            blocks.push((at, 4 * CELL, Streams::only(stream)));
        }
    }
    let mut live = Vec::new();
    for (number, block) in blocks.into_iter().enumerate() {
        if number % 2 == 0 {
            space.free(block.0, Bytes::new(block.1), block.2).unwrap();
        } else {
            live.push(block);
        }
    }
    (space, live)
}

/// The nodes that a request, the wait it may need, and a block that comes back visit.
fn visits_per_step(holes: u64, streams: u64) -> f64 {
    let mut random = Random::new(5);
    let (mut space, mut live) = space(holes, streams, &mut random);
    let (steps, mut visited) = (500_u32, 0);
    for _ in 0..steps {
        let block = live.swap_remove(random.index(live.len()).unwrap());
        let size = (1 + random.below(8)) * CELL;
        let taker = Streams::only(u32::try_from(random.below(streams)).unwrap());
        let before = visits();
        space.free(block.0, Bytes::new(block.1), block.2).unwrap();
        if let Some(owners) = space.better_owner(Bytes::new(size), taker) {
            let owner = Streams::only(owners.numbers().next().unwrap());
            // Joining is paid for by the blocks that came back before.
            if random.chance(1, 50) {
                space.holes_mut().record_wait(taker, owner);
            }
        }
        let at = space.allocate(Bytes::new(size), taker);
        visited += visits() - before;
        live.extend(at.map(|at| (at, size, taker)));
    }
    f64::from(u32::try_from(visited).unwrap()) / f64::from(steps)
}

#[test]
fn what_is_visited_grows_with_the_depth_and_not_with_the_holes() {
    if cfg!(miri) {
        return;
    }
    for streams in [1, 4] {
        let (few, many) = (visits_per_step(500, streams), visits_per_step(50_000, streams));
        assert!(many < 3.0 * few + 20.0, "{streams} streams: {few} nodes, then {many}");
    }
}

/// A request looks at the groups of its own stream, however many other streams there are.
#[test]
fn a_thousand_streams_cost_a_request_what_a_few_do() {
    if cfg!(miri) {
        return;
    }
    let (mut space, _) = space(4000, 1024, &mut Random::new(9));
    space.add_page(1 << 31, Bytes::mib(2), 0, A).unwrap();
    let before = visits();
    for _ in 0..100 {
        space.allocate(Bytes::new(CELL), A).unwrap();
    }
    let visited = visits() - before;
    assert!(visited < 100 * 40, "{visited} nodes for 100 requests");
}

/// An address space of `count` free pages of 2 MiB with a gap after each, and as many free pages of 4 MiB between blocks.
fn gaps_and_donors(count: u64) -> AddressSpace {
    let mib = |count: u64| Bytes::mib(count).get();
    let mut space = AddressSpace::new(PageSize::DEVICE, Boundaries::Joined);
    space.page_table_mut().reserve(0, Bytes::gib(4096)).unwrap();
    for page in 0..count {
        space.add_page(page * mib(4), Bytes::mib(2), page, A).unwrap();
    }
    let mut at = count * mib(4);
    for page in (count..).take(2 * usize::try_from(count).unwrap() + 1) {
        let (is_block, size) = ((page - count).is_multiple_of(2), 2 + 2 * ((page - count) % 2));
        space.add_page(at, Bytes::mib(size), page, A).unwrap();
        if is_block {
            space.allocate_at(at, Bytes::mib(size)).unwrap();
        }
        at += mib(size);
    }
    space
}

/// Each gap finds its donors by a logarithm, although all donors before are too large for it.
#[test]
fn a_plan_for_ten_times_the_gaps_costs_little_more_than_ten_times_as_much() {
    if cfg!(miri) {
        return;
    }
    let visited = |count: u64| {
        let space = gaps_and_donors(count);
        let (size, limit) = (Bytes::mib(4 * count - 2), space.backed_bytes());
        let before = visits();
        Plan::make(&space, size, A, &Growth::default(), limit).unwrap();
        visits() - before
    };
    let (few, many, most) = (visited(100), visited(1_000), visited(10_000));
    assert!(many < 20 * few && most < 20 * many, "{few} nodes, {many}, then {most}");
}

/// What is looked at to plan a request of 6 MiB at the limit.
fn visits_of_small_plan(space: &AddressSpace) -> u64 {
    let before = visits();
    let limit = space.backed_bytes();
    let plan = Plan::make(space, Bytes::mib(6), A, &Growth::default(), limit).unwrap();
    assert_eq!((plan.steps.len(), plan.created()), (3, Bytes::ZERO));
    visits() - before
}

/// Every second of `count` pages is free, and none beside another.
fn every_second_page(count: u64) -> AddressSpace {
    let mut space = AddressSpace::new(PageSize::DEVICE, Boundaries::Joined);
    space.page_table_mut().reserve(0, Bytes::gib(4096)).unwrap();
    for page in 0..count {
        space.add_page(Bytes::mib(2 * page).get(), Bytes::mib(2), page, A).unwrap();
        space.allocate(Bytes::mib(2), A).unwrap();
    }
    for page in (0..count).step_by(2) {
        space.free(Bytes::mib(2 * page).get(), Bytes::mib(2), A).unwrap();
    }
    space
}

/// A request that needs three pages looks at no more of very many than of many.
#[test]
fn a_small_plan_among_very_many_pages_is_bounded() {
    if cfg!(miri) {
        return;
    }
    let visited = |count| visits_of_small_plan(&every_second_page(count));
    let (few, many, most) = (visited(1_000), visited(20_000), visited(160_000));
    assert!(few < 1_000 && many < few && most < many + 100, "{few} nodes, {many}, then {most}");
}

/// The same for gaps that are too small for it, and for mappings that are kept in them.
#[test]
fn a_small_plan_among_very_many_gaps_is_bounded() {
    if cfg!(miri) {
        return;
    }
    let visited = |count: u64, keep: bool| {
        let mut space = every_second_page(2 * count);
        let mut end = Bytes::mib(4 * count).get();
        for page in (0..2 * count - 6).step_by(2) {
            let at = Bytes::mib(2 * page).get();
            space.remove_page(at).unwrap();
            if keep {
                space.add_page(end, Bytes::mib(2), page, A).unwrap();
                space.allocate_at(end, Bytes::mib(2)).unwrap();
                space.page_table_mut().keep_alias(at, page).unwrap();
                end += Bytes::mib(2).get();
            } else {
                space.page_table_mut().clear_alias(at).unwrap();
            }
        }
        visits_of_small_plan(&space)
    };
    for keep in [false, true] {
        let (few, most) = (visited(1_000, keep), visited(80_000, keep));
        assert!(most < 2 * few && most < 10_000, "{few} nodes, then {most}");
    }
}
