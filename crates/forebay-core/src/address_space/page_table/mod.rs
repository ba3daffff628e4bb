//! The page table: which addresses are reserved, where pages are mapped, and where they were.
//!
//! ```text
//!   reserved   [                 one range                 ]      [        another        ]
//!   pages      [ page ][ page ]        [ page ]                   [ page ]
//!   aliases                    [ alias ]
//!   gaps                                       [ gap, kept ]              [      gap      ]
//! ```
//!
//! Every reserved address is in exactly one page, alias or gap. An **alias** has no page that blocks may use: its page
//! has moved away while work may still use the old mapping, or is about to be mapped there. A **gap** may have kept
//! mappings, to which pages return. A gap lies within one reserved range, and so does a page: ranges that touch were
//! reserved by separate calls, and a driver maps no page across two.
//!
//! Without page mapping every page is an island, at any address: there are no reserved ranges, gaps or kept mappings.

mod kept;

use std::collections::BTreeMap;

use super::spans::Spans;
use super::{AddressSpaceError, Boundaries, Offset};
use crate::{Bytes, PageSize};
pub use kept::Kept;

/// One past the highest address: no supported machine has 57-bit addresses or more.
const END: Offset = 1 << 57;

/// A page in the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlacedPage {
    size: u64,
    page: u64,
    /// The number of the growth that it came by.
    growth: u64,
}

/// Where a page is mapped that is no longer in the address space there: the old mapping of a moved page, kept or not, or a
/// page that is to be returned to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageMapping {
    /// Where it is.
    pub at: Offset,
    /// The page that is mapped there.
    pub page: u64,
    /// How large it is.
    pub size: Bytes,
}

impl PageMapping {
    /// Where it begins and ends.
    pub(super) fn span(&self) -> (Offset, Offset) {
        (self.at, self.at + self.size.get())
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct PageTable {
    granule: PageSize,
    boundaries: Boundaries,
    pub(super) reserved: Spans,
    /// Reserved addresses without a page or an alias. They may have kept mappings.
    pub(super) gaps: Spans,
    pages: BTreeMap<Offset, PlacedPage>,
    /// Where each page is, by its number.
    places: BTreeMap<u64, Offset>,
    pub(super) aliases: BTreeMap<Offset, u64>,
    kept: Kept,
    backed: u64,
    /// How many growths were recorded.
    pub(super) growths: u64,
    changes: u64,
}

impl PageTable {
    /// An empty page table.
    pub(super) fn new(granule: PageSize, boundaries: Boundaries) -> Self {
        Self {
            granule,
            boundaries,
            reserved: Spans::default(),
            gaps: Spans::default(),
            pages: BTreeMap::new(),
            places: BTreeMap::new(),
            aliases: BTreeMap::new(),
            kept: Kept::default(),
            backed: 0,
            growths: 0,
            changes: 0,
        }
    }

    /// Adds a range of addresses in which pages may be placed. It may touch other ranges, but a page
    /// lies within one. An address space with [`Boundaries::Apart`] needs no ranges and refuses them.
    pub fn reserve(&mut self, at: Offset, size: Bytes) -> Result<(), AddressSpaceError> {
        let end = self.whole_granules(at, size)?;
        if !self.is_joined() {
            return Err(AddressSpaceError::Malformed { at, size: size.get() });
        }
        if self.reserved.meets(at, end) {
            return Err(AddressSpaceError::Occupied { at });
        }
        self.reserved.add(at, end);
        self.gaps.add(at, end);
        Ok(())
    }

    /// The bytes of all reserved ranges.
    pub fn reserved_bytes(&self) -> Bytes {
        Bytes::new(self.reserved.each().map(|(start, end)| end - start).sum())
    }

    /// The granularity: every page size is a multiple of it.
    pub fn granule(&self) -> PageSize {
        self.granule
    }

    /// The bytes of all pages.
    #[inline]
    pub fn backed_bytes(&self) -> Bytes {
        Bytes::new(self.backed)
    }

    /// Whether adjacent pages are contiguous.
    pub(super) fn is_joined(&self) -> bool {
        self.boundaries == Boundaries::Joined
    }

    /// Adds page `page` at `at`; returns where it ends.
    pub(super) fn add(
        &mut self,
        at: Offset,
        size: Bytes,
        page: u64,
    ) -> Result<Offset, AddressSpaceError> {
        let end = self.vacant(at, size)?;
        // Another page may be mapped there still.
        if self.kept.get(at).is_some_and(|kept| kept.page != page) {
            return Err(AddressSpaceError::Occupied { at });
        }
        self.changes += 1;
        self.pages.insert(at, PlacedPage { size: size.get(), page, growth: self.growths });
        self.places.insert(page, at);
        self.kept.remove(at);
        self.gaps.cut(at, end);
        self.backed += size.get();
        Ok(end)
    }

    /// Removes the page at `at`; its addresses become an alias.
    pub(super) fn remove(&mut self, at: Offset) {
        if let Some(placed) = self.pages.remove(&at) {
            self.changes += 1;
            self.places.remove(&placed.page);
            self.aliases.insert(at, placed.size);
            self.backed -= placed.size;
        }
    }

    /// Claims unused addresses for a page that is about to be mapped there. Like an alias, no plan uses
    /// them until [`clear_alias`](Self::clear_alias).
    pub fn claim_gap(&mut self, at: Offset, size: Bytes) -> Result<(), AddressSpaceError> {
        let end = self.vacant(at, size)?;
        self.gaps.cut(at, end);
        self.aliases.insert(at, end - at);
        Ok(())
    }

    /// Records that the old mapping of an alias is gone, or that a claim has ended: its addresses are a
    /// gap again. See also [`keep_alias`](Self::keep_alias).
    pub fn clear_alias(&mut self, at: Offset) -> Result<(), AddressSpaceError> {
        let size = self.aliases.remove(&at).ok_or(AddressSpaceError::Absent { at })?;
        if self.is_joined() {
            let end = at + size;
            let (below, above) = (!self.reserved.begins_at(at), !self.reserved.begins_at(end));
            self.gaps.add_joined(at, end, below, above);
        }
        Ok(())
    }

    /// Records that no work uses the alias at `at` any more, and that its mapping of `page` is kept: its
    /// addresses are a gap again, to which a plan may return the page. Refused unless a page of that number
    /// and size is in the address space.
    pub fn keep_alias(&mut self, at: Offset, page: u64) -> Result<(), AddressSpaceError> {
        let size = self.aliases.get(&at).map(|&size| Bytes::new(size));
        let placed = self.place_of(page).and_then(|place| self.page(place));
        let alike = size.filter(|&size| placed == Some((page, size)) && self.is_joined());
        let size = alike.ok_or(AddressSpaceError::Absent { at })?;
        self.clear_alias(at)?;
        self.keep(PageMapping { at, page, size });
        Ok(())
    }

    /// Keeps a mapping in a gap.
    pub(super) fn keep(&mut self, mapping: PageMapping) {
        self.kept.insert(mapping);
    }

    /// Records that the kept mapping at `at` was removed.
    pub fn clear_kept(&mut self, at: Offset) -> Result<PageMapping, AddressSpaceError> {
        self.kept.remove(at).ok_or(AddressSpaceError::Absent { at })
    }

    /// The kept mappings.
    pub fn kept(&self) -> &Kept {
        &self.kept
    }

    /// The page that begins at `at`, and its size.
    pub fn page(&self, at: Offset) -> Option<(u64, Bytes)> {
        self.pages.get(&at).map(|placed| (placed.page, Bytes::new(placed.size)))
    }

    /// Where a page is, by its number.
    pub(super) fn place_of(&self, page: u64) -> Option<Offset> {
        self.places.get(&page).copied()
    }

    /// Every page: address, page, size.
    pub fn pages(&self) -> impl DoubleEndedIterator<Item = (Offset, u64, Bytes)> {
        self.pages.iter().map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Every page that begins in `start..end`: address, page, size.
    pub(super) fn pages_from(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        let inside = self.pages.range(start..end.max(start));
        inside.map(|(&at, placed)| (at, placed.page, Bytes::new(placed.size)))
    }

    /// Every page that overlaps `start..end`: address, page, size.
    pub fn pages_in(
        &self,
        start: Offset,
        end: Offset,
    ) -> impl Iterator<Item = (Offset, u64, Bytes)> {
        let below = self.pages.range(..start).next_back().map(|(&at, _)| at);
        let pages = self.pages_from(below.unwrap_or(start), end);
        pages.filter(move |&(at, _, size)| at + size.get() > start && start < end)
    }

    /// How many pages there are.
    pub fn page_count(&self) -> usize {
        self.pages.len()
    }

    /// How often a page was added or removed.
    pub fn page_changes(&self) -> u64 {
        self.changes
    }

    /// Adjacent pages that came by one growth, as address and size, lowest first: what was taken from the device
    /// for one request, as far as it is still there. Pages that are islands are one each.
    pub fn segments(&self) -> Vec<(Offset, Bytes)> {
        let mut segments: Vec<(Offset, Offset, u64)> = Vec::new();
        for (&at, placed) in &self.pages {
            let end = at + placed.size;
            match segments.last_mut() {
                Some(last) if (last.1, last.2) == (at, placed.growth) && self.is_joined() => {
                    last.1 = end;
                }
                _ => segments.push((at, end, placed.growth)),
            }
        }
        segments.into_iter().map(|(at, end, _)| (at, Bytes::new(end - at))).collect()
    }

    /// The gap at the end of the range where the last page lies, or of the last range.
    pub(super) fn last_gap(&self) -> Option<(Offset, Offset)> {
        let page = self.pages().next_back().map(|(at, _, size)| (at, at + size.get()));
        let range = page.and_then(|(start, end)| self.reserved.around(start, end));
        let (_, end) = range.or_else(|| self.reserved.each().next_back())?;
        self.gaps.around(end.checked_sub(1)?, end)
    }

    /// Checks that `size` bytes from `at` are whole granules within the address space; returns their end.
    fn whole_granules(&self, at: Offset, size: Bytes) -> Result<Offset, AddressSpaceError> {
        let (granule, size) = (self.granule.bytes().get(), size.get());
        let whole = size > 0 && at.is_multiple_of(granule) && size.is_multiple_of(granule);
        let end = at.checked_add(size).filter(|&end| whole && end <= END);
        end.ok_or(AddressSpaceError::Malformed { at, size })
    }

    /// Checks that `size` bytes from `at` can take a page or an alias; returns their end.
    fn vacant(&self, at: Offset, size: Bytes) -> Result<Offset, AddressSpaceError> {
        let end = self.whole_granules(at, size)?;
        let is_free = match self.boundaries {
            Boundaries::Joined if self.reserved.around(at, end).is_none() => {
                return Err(AddressSpaceError::Malformed { at, size: size.get() });
            }
            // A page may return to where it is still mapped, and no page may lie across such a mapping.
            Boundaries::Joined => {
                self.gaps.around(at, end).is_some()
                    && self.kept.overlapping(at, end).all(|kept| kept.span() == (at, end))
            }
            Boundaries::Apart => {
                let alias = self.aliases.range(..end).next_back();
                self.pages_in(at, end).next().is_none()
                    && alias.is_none_or(|(&start, &size)| start + size <= at)
            }
        };
        if is_free { Ok(end) } else { Err(AddressSpaceError::Occupied { at }) }
    }
}
