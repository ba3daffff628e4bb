//! What it costs: nodes visited, not time, so that an address space that looks at every hole is found out on
//! any machine.

use super::A;
use crate::address_space::tree::check::visits;
use crate::address_space::{AddressSpace, Boundaries, Streams};
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
    space.reserve(0, Bytes::gib(4)).unwrap();
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
                space.record_wait(taker, owner);
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
