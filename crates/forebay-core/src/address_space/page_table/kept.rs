//! Kept mappings: places where a page was before, and where it is still mapped.
//!
//! ```text
//!   addresses   [ page 1 ][ kept: page 2 ][    gap    ][ page 2 ]
//!                          <------------ returns, without a driver call
//! ```
//!
//! Mapping a page is the most expensive thing a pool asks of the driver. A program that repeats itself moves the same
//! pages between the same places, so the old mapping of a moved page is kept. No work uses it any more. Its addresses
//! count as a gap: the page may return, or the mapping is removed and another page takes its place.
//!
//! Kept mappings overlap neither each other nor pages, and no alias but the claim of a page that is about to return.

use std::collections::{BTreeMap, BTreeSet};

use super::PageMapping;
use crate::Bytes;
use crate::address_space::Offset;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Each mapping, and when it was kept.
    by_address: BTreeMap<Offset, (PageMapping, u64)>,
    by_page: BTreeSet<(u64, Offset)>,
    by_age: BTreeMap<u64, Offset>,
    next: u64,
}

impl Kept {
    pub(super) fn insert(&mut self, mapping: PageMapping) {
        self.by_address.insert(mapping.at, (mapping, self.next));
        self.by_page.insert((mapping.page, mapping.at));
        self.by_age.insert(self.next, mapping.at);
        self.next += 1;
    }

    /// Removes the mapping that begins at `at`.
    pub(super) fn remove(&mut self, at: Offset) -> Option<PageMapping> {
        let (mapping, age) = self.by_address.remove(&at)?;
        self.by_page.remove(&(mapping.page, at));
        self.by_age.remove(&age);
        Some(mapping)
    }

    /// The mapping that begins at `at`.
    pub fn get(&self, at: Offset) -> Option<PageMapping> {
        self.by_address.get(&at).map(|kept| kept.0)
    }

    /// The mappings that overlap `start..end`, lowest first.
    pub(in crate::address_space) fn overlapping(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = PageMapping> {
        let below = self.by_address.range(..start).next_back();
        let inside = self.by_address.range(start..end.max(start));
        let mappings = below.into_iter().chain(inside).map(|(_, kept)| kept.0);
        mappings.filter(move |mapping| mapping.span().1 > start)
    }

    /// Every mapping by address.
    pub(in crate::address_space) fn each(&self) -> impl Iterator<Item = PageMapping> {
        self.by_address.values().map(|kept| kept.0)
    }

    /// Every mapping, oldest first: address and size.
    pub fn oldest_first(&self) -> impl Iterator<Item = (Offset, Bytes)> {
        self.by_age.values().filter_map(|&at| self.get(at)).map(|kept| (kept.at, kept.size))
    }

    /// How many mappings there are.
    pub fn count(&self) -> usize {
        self.by_address.len()
    }

    /// The other places where `page` is still mapped.
    pub fn of(&self, page: u64) -> impl Iterator<Item = Offset> {
        self.by_page.range((page, 0)..=(page, Offset::MAX)).map(|&(_, at)| at)
    }
}
