//! What tests ask of an address space beside what programs do.

use crate::Bytes;
use crate::address_space::holes::tests::listed;
use crate::address_space::{AddressSpace, Offset, Streams};

/// Questions and requests as tests ask them.
pub(super) trait Asked {
    /// Allocates for `taker`, which is one stream or none that can be told apart.
    fn allocate(&mut self, size: Bytes, taker: Streams) -> Option<Offset>;

    /// The streams that `taker` should wait for.
    fn better_owner(&mut self, size: Bytes, taker: Streams) -> Option<Streams>;

    /// Every stream in whose order something is free.
    fn owners(&self) -> Streams;

    /// The bytes of all pages that are entirely free.
    fn free_whole_pages(&self) -> Bytes;
}

impl Asked for AddressSpace {
    fn allocate(&mut self, size: Bytes, taker: Streams) -> Option<Offset> {
        self.allocate_for(size, number(taker))
    }

    fn better_owner(&mut self, size: Bytes, taker: Streams) -> Option<Streams> {
        self.better_owner_for(size, number(taker))
    }

    fn owners(&self) -> Streams {
        listed(&self.holes).into_iter().fold(Streams::NONE, |all, hole| all.or(hole.2))
    }

    fn free_whole_pages(&self) -> Bytes {
        Bytes::new(self.free_pages().map(|page| page.1.get()).sum())
    }
}

/// The number of a stream; of one that cannot be told apart, a number that no other has.
fn number(taker: Streams) -> u32 {
    assert!(taker.numbers().count() < 2, "{taker:?} is not one stream");
    taker.numbers().next().unwrap_or(Streams::MAX)
}
