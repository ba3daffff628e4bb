//! What may happen to a pool, in any order.

use proptest::prelude::*;

use super::model::{CELL, GRANULE, SPACE};
use crate::Bytes;
use crate::address_space::{Growth, Streams};

/// Something that happens to a pool. Lists are indexed modulo their length.
#[derive(Clone, Debug)]
// A few thousand in a test: their size does not matter.
#[allow(clippy::large_enum_variant)]
pub(super) enum Event {
    Take { size: u64, streams: Streams },
    Give { block: usize, streams: Streams },
    GiveAnything { at: u64, size: u64, streams: Streams },
    Waited { taker: Streams, owner: Streams },
    Idle { streams: Streams },
    Location { at: u64, size: u64, streams: Streams },
    Lift { page: usize },
    LiftAnything { at: u64 },
    Clear { alias: usize },
    ClearAnything { at: u64 },
    Keep { alias: usize },
    ClearKept { kept: usize },
    Plan { size: u64, taker: u32, growth: Growth, room: u64, most: usize },
}

/// One stream, several, none that can be told apart, or all.
fn sets() -> impl Strategy<Value = Streams> {
    let some = |bits: u32| {
        let numbers = (0..4).filter(move |number| bits >> number & 1 != 0);
        numbers.fold(Streams::NONE, |set, number| set.or(Streams::only(number)))
    };
    prop_oneof![
        8 => (0_u32..4).prop_map(Streams::only),
        2 => (0_u32..16).prop_map(some),
        1 => Just(Streams::only(Streams::MAX)),
        1 => Just(Streams::ALL),
    ]
}

/// One stream, or none that can be told apart.
fn takers() -> impl Strategy<Value = Streams> {
    prop_oneof![
        8 => (0_u32..4).prop_map(Streams::only),
        1 => Just(Streams::only(Streams::MAX)),
    ]
}

pub(super) fn cells(most: u64) -> impl Strategy<Value = u64> {
    (1..=most).prop_map(|count| count * CELL)
}

/// Places in the address space, most of them where a page may begin, some beyond the end or far off.
fn places() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0..SPACE / GRANULE).prop_map(|granule| granule * GRANULE),
        2 => (0..SPACE / CELL + 4).prop_map(|cell| cell * CELL),
        1 => Just(u64::MAX / GRANULE * GRANULE),
    ]
}

/// Sizes of pages, some of which no page may have.
fn page_sizes() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0_u64..5).prop_map(|granules| granules * GRANULE),
        1 => cells(20),
        1 => Just(u64::MAX / GRANULE * GRANULE),
    ]
}

pub(super) fn growths() -> impl Strategy<Value = Growth> {
    (0_u32..3, 1_u64..17, 0_u64..3, 1_u64..5).prop_map(|(shift, part, spare_pages, spare_part)| {
        let largest_page = Bytes::new(GRANULE << shift);
        Growth { largest_page, part, spare_pages, spare_part, ..Growth::default() }
    })
}

fn plans() -> impl Strategy<Value = Event> {
    let room = (0..10 * GRANULE / CELL).prop_map(|cell| cell * CELL);
    let most = prop_oneof![0_usize..8, Just(usize::MAX)];
    (cells(60), 0_u32..4, growths(), room, most).prop_map(|(size, taker, growth, room, most)| {
        Event::Plan { size, taker, growth, room, most }
    })
}

pub(super) fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        8 => (cells(20), takers()).prop_map(|(size, streams)| Event::Take { size, streams }),
        6 => (0_usize..64, sets()).prop_map(|(block, streams)| Event::Give { block, streams }),
        1 => (places(), page_sizes(), sets())
            .prop_map(|(at, size, streams)| Event::GiveAnything { at, size, streams }),
        2 => (sets(), sets()).prop_map(|(taker, owner)| Event::Waited { taker, owner }),
        1 => sets().prop_map(|streams| Event::Idle { streams }),
        4 => (places(), page_sizes(), sets())
            .prop_map(|(at, size, streams)| Event::Location { at, size, streams }),
        1 => (0_usize..64).prop_map(|page| Event::Lift { page }),
        1 => places().prop_map(|at| Event::LiftAnything { at }),
        2 => (0_usize..64).prop_map(|alias| Event::Clear { alias }),
        1 => places().prop_map(|at| Event::ClearAnything { at }),
        4 => (0_usize..64).prop_map(|alias| Event::Keep { alias }),
        1 => (0_usize..64).prop_map(|kept| Event::ClearKept { kept }),
        4 => plans(),
    ];
    proptest::collection::vec(event, 1..if cfg!(miri) { 6 } else { 80 })
}
