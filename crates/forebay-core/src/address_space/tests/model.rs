//! The address space a cell of 512 B at a time, as its documentation tells it.

use std::collections::BTreeMap;

use super::super::{AddressSpaceError, Streams};
use crate::Bytes;

pub(super) const CELL: u64 = 512;
pub(super) const GRANULE: u64 = 4096;
pub(super) const SPACE: u64 = 20 * GRANULE;

/// What a cell is.
#[allow(clippy::large_enum_variant, reason = "there are few, and copying is what they are for")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cell {
    /// Nothing is mapped.
    Gap,
    /// A page was lifted and its mapping still stands.
    Alias,
    /// In the block with this number.
    Taken(u32),
    Free {
        /// In whose order it truly is free, whatever hole it is in.
        truth: Streams,
        /// In whose order its hole is.
        hole: Streams,
        /// Whether its hole begins here.
        first: bool,
    },
}

/// The address space as its documentation tells it, a cell at a time.
#[derive(Clone, Debug)]
pub(super) struct Model {
    cells: Vec<Cell>,
    pub(super) pages: BTreeMap<u64, (u64, u64)>,
    pub(super) aliases: BTreeMap<u64, u64>,
    /// Old mappings that pages may return to, with their sizes and pages.
    pub(super) kept: BTreeMap<u64, (u64, u64)>,
    blocks: u32,
}

fn index(offset: u64) -> usize {
    usize::try_from(offset / CELL).unwrap()
}

/// Where each cell begins.
fn offsets() -> impl Iterator<Item = u64> {
    (0..SPACE / CELL).map(|cell| cell * CELL)
}

impl Model {
    pub(super) fn new() -> Self {
        let cells = vec![Cell::Gap; index(SPACE)];
        Self {
            cells,
            pages: BTreeMap::new(),
            aliases: BTreeMap::new(),
            kept: BTreeMap::new(),
            blocks: 0,
        }
    }

    fn set(&mut self, at: u64, end: u64, cell: Cell) {
        self.cells[index(at)..index(end)].fill(cell);
    }

    fn all(&self, at: u64, end: u64, is: impl Fn(&Cell) -> bool) -> bool {
        end <= SPACE && self.cells[index(at)..index(end)].iter().all(is)
    }

    /// Every hole as (start, end, streams).
    pub(super) fn holes(&self) -> Vec<(u64, u64, Streams)> {
        let mut holes: Vec<(u64, u64, Streams)> = Vec::new();
        for (at, cell) in offsets().zip(&self.cells) {
            if let Cell::Free { truth, hole, first } = *cell {
                assert!(truth.contains(hole), "{at:#x} is said to be free too early");
                match holes.last_mut() {
                    Some(last) if !first => {
                        assert_eq!((last.1, last.2), (at, hole));
                        last.1 = at + CELL;
                    }
                    _ => holes.push((at, at + CELL, hole)),
                }
            }
        }
        holes
    }

    /// Makes a new hole one with its neighbours, the left one first.
    fn set_free(&mut self, at: u64, end: u64, streams: Streams) {
        let joins = |one: Streams, two: Streams| one == two || !one.and(two).is_empty();
        self.set(at, end, Cell::Free { truth: streams, hole: streams, first: false });
        let (mut start, mut stop, mut common) = (at, end, streams);
        let others: Vec<_> = self.holes_around(at, end);
        for (from, to, other) in others {
            if joins(common, other) {
                (start, stop, common) = (start.min(from), stop.max(to), common.and(other));
            }
        }
        self.brand(start, stop, common);
    }

    /// The holes that touch `at..end` from outside.
    fn holes_around(&mut self, at: u64, end: u64) -> Vec<(u64, u64, Streams)> {
        let inside = self.cells[index(at)..index(end)].to_vec();
        self.set(at, end, Cell::Gap);
        let around = self.holes().into_iter().filter(|hole| hole.1 == at || hole.0 == end);
        let around = around.collect();
        self.cells[index(at)..index(end)].copy_from_slice(&inside);
        around
    }

    /// Makes the free cells of `at..end` one hole.
    fn brand(&mut self, at: u64, end: u64, streams: Streams) {
        for cell in &mut self.cells[index(at)..index(end)] {
            if let Cell::Free { hole, first, .. } = cell {
                (*hole, *first) = (streams, false);
            }
        }
        self.begin_hole(at);
    }

    /// If the cell at `at` is free, its hole begins there.
    fn begin_hole(&mut self, at: u64) {
        if let Some(Cell::Free { first, .. }) = self.cells.get_mut(index(at)) {
            *first = true;
        }
    }

    pub(super) fn allocate(&mut self, size: u64, streams: Streams) -> Option<u64> {
        let mut holes = self.holes().into_iter();
        let (at, ..) = holes.find(|hole| hole.1 - hole.0 >= size && serves(hole.2, streams))?;
        let free =
            |cell: &Cell| matches!(cell, Cell::Free { truth, .. } if serves(*truth, streams));
        assert!(self.all(at, at + size, free));
        self.blocks += 1;
        self.set(at, at + size, Cell::Taken(self.blocks));
        self.begin_hole(at + size);
        Some(at)
    }

    pub(super) fn free(
        &mut self,
        at: u64,
        size: u64,
        streams: Streams,
    ) -> Result<(), AddressSpaceError> {
        let end = at.checked_add(size).filter(|_| size > 0);
        let end = end.ok_or(AddressSpaceError::Malformed { at, size })?;
        if !self.all(at, end, |cell| matches!(cell, Cell::Taken(_))) {
            return Err(AddressSpaceError::InUse { at });
        }
        self.set_free(at, end, streams);
        Ok(())
    }

    pub(super) fn add_page(
        &mut self,
        at: u64,
        size: u64,
        page: u64,
        free: Streams,
    ) -> Result<(), AddressSpaceError> {
        let end = at.checked_add(size).filter(|&end| end <= SPACE);
        let whole = size > 0 && at.is_multiple_of(GRANULE) && size.is_multiple_of(GRANULE);
        let end = end.filter(|_| whole).ok_or(AddressSpaceError::Malformed { at, size })?;
        if !self.all(at, end, |cell| *cell == Cell::Gap) {
            return Err(AddressSpaceError::Occupied { at });
        }
        let mut kept =
            self.kept.iter().filter(|(start, kept)| **start < end && *start + kept.0 > at);
        if !kept.all(|(&start, &kept)| (start, kept) == (at, (size, page))) {
            return Err(AddressSpaceError::Occupied { at });
        }
        self.kept.remove(&at);
        self.pages.insert(at, (size, page));
        self.set_free(at, end, free);
        Ok(())
    }

    pub(super) fn remove_page(
        &mut self,
        at: u64,
    ) -> Result<(u64, Bytes, Streams), AddressSpaceError> {
        let (size, page) = *self.pages.get(&at).ok_or(AddressSpaceError::Absent { at })?;
        let mut streams = Streams::ALL;
        for cell in &self.cells[index(at)..index(at + size)] {
            let Cell::Free { hole, .. } = cell else { return Err(AddressSpaceError::InUse { at }) };
            streams = streams.and(*hole);
        }
        self.set(at, at + size, Cell::Alias);
        self.begin_hole(at + size);
        self.pages.remove(&at);
        self.aliases.insert(at, size);
        Ok((page, Bytes::new(size), streams))
    }

    pub(super) fn clear_alias(&mut self, at: u64) -> Result<(), AddressSpaceError> {
        let size = self.aliases.remove(&at).ok_or(AddressSpaceError::Absent { at })?;
        self.set(at, at + size, Cell::Gap);
        Ok(())
    }

    pub(super) fn keep_alias(&mut self, at: u64, page: u64) -> Result<(), AddressSpaceError> {
        let size = *self.aliases.get(&at).ok_or(AddressSpaceError::Absent { at })?;
        if !self.pages.values().any(|&placed| placed == (size, page)) {
            return Err(AddressSpaceError::Absent { at });
        }
        self.clear_alias(at)?;
        self.kept.insert(at, (size, page));
        Ok(())
    }

    pub(super) fn clear_kept(&mut self, at: u64) -> Result<(), AddressSpaceError> {
        self.kept.remove(&at).map(drop).ok_or(AddressSpaceError::Absent { at })
    }

    /// Gives `more` to every hole that `which` is true of, then joins each with its neighbours.
    pub(super) fn extend(&mut self, which: impl Fn(Streams) -> bool, more: Streams) {
        for cell in &mut self.cells {
            if let Cell::Free { truth, .. } = cell
                && which(*truth)
            {
                *truth = truth.or(more);
            }
        }
        let holes = self.holes();
        let changed = holes.iter().filter(|hole| which(hole.2) && !hole.2.contains(more));
        for &(at, end, streams) in changed.clone() {
            self.brand(at, end, streams.or(more));
        }
        for &(at, end, _) in changed {
            let own = self.cells[index(at)..index(end)].to_vec();
            let Cell::Free { hole, .. } = own[0] else { panic!("{at:#x} is no hole") };
            // Joins, and puts back what `free` cannot know: the truth of each cell.
            self.set_free(at, end, hole);
            for (cell, was) in self.cells[index(at)..index(end)].iter_mut().zip(own) {
                if let (Cell::Free { truth, .. }, Cell::Free { truth: old, .. }) = (cell, was) {
                    *truth = old;
                }
            }
        }
    }

    /// The least that a block of `size` for `taker` could miss, of all places it could have.
    pub(super) fn least_missing(&self, size: u64, taker: Streams) -> Option<u64> {
        let open = |cell: &Cell| match *cell {
            Cell::Gap => true,
            Cell::Free { hole, .. } => serves(hole, taker),
            Cell::Alias | Cell::Taken(_) => false,
        };
        let places = offsets().filter(|&at| self.all(at, at + size, open));
        let missing = |at: u64| {
            let granules = at / GRANULE..(at + size).div_ceil(GRANULE);
            granules.filter(|&granule| self.cells[index(granule * GRANULE)] == Cell::Gap).count()
        };
        places.map(missing).min().map(|count| u64::try_from(count).unwrap() * GRANULE)
    }

    /// The pages that are free from end to end.
    pub(super) fn free_pages(&self) -> Vec<(u64, u64)> {
        let pages = self.pages.iter().map(|(&at, &(size, _))| (at, size));
        let free = |cell: &Cell| matches!(cell, Cell::Free { .. });
        pages.filter(|&(at, size)| self.all(at, at + size, free)).collect()
    }

    /// The bytes in blocks.
    pub(super) fn taken(&self) -> u64 {
        let taken = self.cells.iter().filter(|cell| matches!(cell, Cell::Taken(_)));
        u64::try_from(taken.count()).unwrap() * CELL
    }

    /// The bytes of pages that are free from end to end for `taker`.
    pub(super) fn movable(&self, taker: Streams) -> u64 {
        let free = |cell: &Cell| matches!(cell, Cell::Free { hole, .. } if serves(*hole, taker));
        let pages = self.pages.iter().map(|(&at, &(size, _))| (at, size));
        pages.filter(|&(at, size)| self.all(at, at + size, free)).map(|(_, size)| size).sum()
    }

    /// How much can surely go beyond the last page and alias: one page less than there are
    /// addresses, since the last page that goes there may be longer than what is still missing.
    pub(super) fn beyond(&self) -> u64 {
        let last = self.cells.iter().rposition(|cell| *cell != Cell::Gap);
        let reach = last.map_or(0, |last| u64::try_from(last + 1).unwrap() * CELL);
        let page = self.pages.values().map(|(size, _)| *size).max().unwrap_or(0);
        (SPACE - reach).saturating_sub(page)
    }

    /// The blocks as (start, size); one freed in part is what is left of it.
    pub(super) fn live(&self) -> Vec<(u64, u64)> {
        let mut live: Vec<(u32, u64, u64)> = Vec::new();
        for (at, cell) in offsets().zip(&self.cells) {
            let Cell::Taken(block) = *cell else { continue };
            match live.last_mut() {
                Some(last) if last.0 == block && last.1 + last.2 == at => last.2 += CELL,
                _ => live.push((block, at, CELL)),
            }
        }
        live.into_iter().map(|(_, at, size)| (at, size)).collect()
    }
}

/// Whether memory free in the order of `free` may go to `taker`. A taker that is no stream the
/// space can tell apart may only have what is free for all.
fn serves(free: Streams, taker: Streams) -> bool {
    if taker.is_empty() { free == Streams::ALL } else { free.contains(taker) }
}
