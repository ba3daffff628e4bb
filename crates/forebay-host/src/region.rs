//! A reserved range of addresses and the pages mapped in it.

use std::collections::BTreeMap;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Access, PageHandle};

use crate::mapping::AddressRange;
use crate::space::Use;

/// A reserved range. Dropping it gives the addresses back.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) range: AddressRange,
    /// By first address; no two overlap.
    mappings: BTreeMap<Address, Mapping>,
}

/// A page behind addresses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapping {
    pub(crate) span: Span,
    pub(crate) page: PageHandle,
    pub(crate) access: Access,
}

impl Region {
    pub(crate) fn new(range: AddressRange) -> Self {
        Self { range, mappings: BTreeMap::new() }
    }

    /// How far into the region `address` lies.
    pub(crate) fn offset(&self, address: Address) -> Bytes {
        address.offset_from(self.range.span().start()).unwrap_or_default()
    }

    /// How many mappings.
    pub(crate) fn mapping_count(&self) -> usize {
        self.mappings.len()
    }

    /// The mapping `address` lies in.
    pub(crate) fn mapping_at(&self, address: Address) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..=address).next_back()?;
        mapping.span.contains(address).then_some(mapping)
    }

    /// A mapping that shares a byte with `span`.
    pub(crate) fn overlapping(&self, span: Span) -> Option<&Mapping> {
        let (_, mapping) = self.mappings.range(..span.end()).next_back()?;
        mapping.span.overlaps(span).then_some(mapping)
    }

    /// The mappings that cover `span` exactly, side by side; or the first address where they do
    /// not.
    pub(crate) fn tiling(&self, span: Span) -> Result<Vec<Mapping>, Address> {
        let mut tiles = Vec::new();
        let mut next = span.start();
        while next < span.end() {
            match self.mappings.get(&next) {
                Some(mapping) if mapping.span.end() <= span.end() => {
                    tiles.push(*mapping);
                    next = mapping.span.end();
                }
                _ => return Err(next),
            }
        }
        Ok(tiles)
    }

    /// The first address of `span` that does not allow `usage`; `None` where all do.
    pub(crate) fn first_unusable(&self, span: Span, usage: Use) -> Option<Address> {
        let mut next = span.start();
        while next < span.end() {
            match self.mapping_at(next) {
                Some(mapping) if usage.allowed_by(mapping.access) => next = mapping.span.end(),
                _ => return Some(next),
            }
        }
        None
    }

    pub(crate) fn insert(&mut self, mapping: Mapping) {
        self.mappings.insert(mapping.span.start(), mapping);
    }

    pub(crate) fn remove(&mut self, mapping: &Mapping) {
        self.mappings.remove(&mapping.span.start());
    }
}
