//! Kept mappings: places where a page was before, and where it is still mapped.
//!
//! ```text
//!   addresses   [ page 1 ][ kept: page 2 ][    gap    ][ page 2 ]
//!                          <------------ returns, without a driver call
//! ```
//!
//! To map a page costs the driver more than anything else a pool asks of it. A program that repeats itself
//! moves the same pages between the same places, so the old mapping of a moved page is kept. No work uses it
//! any more. Its addresses count as a gap: the page may return, or the mapping is removed and another page
//! takes the place.

use std::collections::{BTreeMap, BTreeSet};

use super::{AddressSpace, AddressSpaceError, Boundaries, Offset, PageMapping, PlacedPage};
use crate::Bytes;

/// The kept mappings of an address space. They overlap neither each other nor pages, and no alias but the claim of a page
/// that is about to return.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    by_address: BTreeMap<Offset, KeptMapping>,
    by_page: BTreeSet<(u64, Offset)>,
    by_age: BTreeMap<u64, Offset>,
    next: u64,
}

/// A kept mapping, and when it was kept.
#[derive(Clone, Copy, Debug)]
struct KeptMapping {
    placed: PlacedPage,
    age: u64,
}

impl Kept {
    fn insert(&mut self, at: Offset, placed: PlacedPage) {
        self.by_address.insert(at, KeptMapping { placed, age: self.next });
        self.by_page.insert((placed.page, at));
        self.by_age.insert(self.next, at);
        self.next += 1;
    }

    /// Removes the mapping that begins at `at`.
    pub(super) fn remove(&mut self, at: Offset) -> Option<PlacedPage> {
        let KeptMapping { placed, age } = self.by_address.remove(&at)?;
        self.by_page.remove(&(placed.page, at));
        self.by_age.remove(&age);
        Some(placed)
    }

    /// The mapping that begins at `at`.
    pub(super) fn get(&self, at: Offset) -> Option<PlacedPage> {
        self.by_address.get(&at).map(|kept| kept.placed)
    }

    /// The mappings that overlap `start..end`: where each begins and ends.
    pub(super) fn overlapping(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (Offset, Offset)> {
        let below = self.by_address.range(..start).next_back();
        let inside = self.by_address.range(start..end.max(start));
        let spans = below.into_iter().chain(inside);
        spans.map(|(&at, kept)| (at, at + kept.placed.size)).filter(move |span| span.1 > start)
    }

    /// Every mapping by address: where it begins and ends.
    pub(super) fn all(&self) -> impl Iterator<Item = (Offset, Offset)> {
        self.each().map(|(at, placed)| (at, at + placed.size))
    }

    /// Every mapping by address: where it begins, and its page.
    pub(super) fn each(&self) -> impl Iterator<Item = (Offset, PlacedPage)> {
        self.by_address.iter().map(|(&at, kept)| (at, kept.placed))
    }

    /// How many mappings there are.
    pub(super) fn len(&self) -> usize {
        self.by_address.len()
    }

    /// Where `page` is still mapped.
    pub(super) fn of(&self, page: u64) -> impl Iterator<Item = Offset> {
        self.by_page.range((page, 0)..=(page, Offset::MAX)).map(|&(_, at)| at)
    }
}

impl AddressSpace {
    /// Records that no work uses the alias at `at` any more, and that its mapping of `page` is kept: its
    /// addresses are a gap again, to which a plan may return the page. Refused unless a page of that number
    /// and size is in the address space.
    pub fn keep_alias(&mut self, at: Offset, page: u64) -> Result<(), AddressSpaceError> {
        let size = *self.aliases.get(&at).ok_or(AddressSpaceError::Absent { at })?;
        let place = self.places.get(&page).and_then(|place| self.pages.get(place));
        let alike = place.is_some_and(|placed| placed.size == size);
        if !alike || self.boundaries == Boundaries::Apart {
            return Err(AddressSpaceError::Absent { at });
        }
        self.clear_alias(at)?;
        self.kept.insert(at, PlacedPage { size, page, growth: self.growths });
        Ok(())
    }

    /// Keeps a mapping again that was about to be removed.
    pub(super) fn keep_again(&mut self, PageMapping { at, page, size }: PageMapping) {
        self.kept.insert(at, PlacedPage { size: size.get(), page, growth: self.growths });
    }

    /// Records that the kept mapping at `at` was removed.
    pub fn clear_kept(&mut self, at: Offset) -> Result<(), AddressSpaceError> {
        self.kept.remove(at).map(drop).ok_or(AddressSpaceError::Absent { at })
    }

    /// The kept mapping at `at`: its page, and its size.
    pub fn kept_at(&self, at: Offset) -> Option<(u64, Bytes)> {
        self.kept.get(at).map(|placed| (placed.page, Bytes::new(placed.size)))
    }

    /// Where `page` is still mapped beside its place.
    pub fn kept_of(&self, page: u64) -> impl Iterator<Item = Offset> {
        self.kept.of(page)
    }

    /// Every kept mapping, the oldest first: address and size.
    pub fn kept(&self) -> impl Iterator<Item = (Offset, Bytes)> {
        let size = |at: Offset| self.kept.get(at).map_or(0, |placed| placed.size);
        self.kept.by_age.values().map(move |&at| (at, Bytes::new(size(at))))
    }

    /// How many kept mappings there are beyond `of_each` for each page.
    pub fn kept_beyond(&self, of_each: usize) -> usize {
        self.kept.len().saturating_sub(self.pages.len().saturating_mul(of_each))
    }
}
