//! What an address space could hold if more memory were free.
//!
//! ```text
//!   page      [ free | block | free | block | free ]
//!   outline   [ free |        taken         | free ]      what lies between blocks of a page serves no larger request
//! ```
//!
//! A request that is larger than a page fits if its window misses no more bytes than could be backed: pages are made as
//! small as the gaps of a window, and entirely free ones move or are released. So it takes no plan to know. An outline
//! looks up two holes for each page, by their addresses, whatever the number of holes.

use super::plan::window::{FreeRange, openings, window};
use super::{AddressSpace, Holes, Offset};
use crate::Bytes;

/// Ranges of addresses, lowest first.
type Ranges = [(Offset, Offset)];

/// The free ranges of an address space as they would be.
#[derive(Debug)]
pub struct Outline {
    granule: u64,
    /// By address: gaps, and what pages begin and end with.
    ranges: Vec<FreeRange>,
    /// Bytes of all pages.
    backed: u64,
    /// Bytes of pages that are entirely free, and could be elsewhere.
    movable: u64,
    largest_page: u64,
}

impl Outline {
    /// The address space with `returned` free as well, no old mappings, and everything free for all streams. `returned` is
    /// sorted by address. Without `moves`, entirely free pages stay where they are.
    pub fn new(space: &AddressSpace, returned: &Ranges, moves: bool) -> Self {
        let table = space.page_table();
        let mut outline = Self {
            granule: table.granule().bytes().get(),
            ranges: table.gaps.each().map(FreeRange::gap).collect(),
            backed: table.backed_bytes().get(),
            movable: 0,
            largest_page: 0,
        };
        let aliases = table.aliases.iter().map(|(&at, size)| FreeRange::gap((at, at + size)));
        outline.ranges.extend(aliases);
        for (at, _, size) in table.pages() {
            let (size, end) = (size.get(), at + size.get());
            outline.largest_page = outline.largest_page.max(size);
            let head = free_up_to(space.holes(), at, end, returned);
            if moves && head == end {
                outline.movable += size;
                outline.ranges.push(FreeRange::gap((at, end)));
                continue;
            }
            let tail = free_down_to(space.holes(), end, head, returned);
            let ends = [(at, head), (tail, end)].into_iter().filter(|range| range.0 < range.1);
            outline.ranges.extend(ends.map(FreeRange::hole));
        }
        outline.ranges.sort_unstable_by_key(|range| range.start);
        outline
    }

    /// The bytes of all pages.
    pub fn backed_bytes(&self) -> Bytes {
        Bytes::new(self.backed)
    }

    /// The bytes of entirely free pages; none if pages stay where they are.
    pub fn movable_bytes(&self) -> Bytes {
        Bytes::new(self.movable)
    }

    /// The size of the largest page.
    pub fn largest_page(&self) -> Bytes {
        Bytes::new(self.largest_page)
    }

    /// The bytes that could be backed wherever they are needed.
    fn room(&self, limit: Bytes) -> u64 {
        limit.get().saturating_sub(self.backed - self.movable)
    }

    /// Whether `size` bytes in one piece could be had in a new segment, if the pages may add up to `limit` bytes.
    pub fn could_add(&self, size: Bytes, limit: Bytes) -> bool {
        let room = self.room(limit);
        size.get().checked_next_multiple_of(self.granule).is_some_and(|whole| whole <= room)
    }

    /// Whether `size` bytes in one piece could be had between and beside the pages, if they may add up to `limit` bytes. A
    /// lack of addresses does not count: more can be reserved.
    pub fn could_fit(&self, size: Bytes, limit: Bytes) -> bool {
        // Moving pages takes nothing from the device.
        let limit = if self.movable > 0 { limit.max(self.backed_bytes()) } else { limit };
        let room = self.room(limit);
        let mut windows =
            openings(&self.ranges).filter_map(|opening| window(self.granule, opening, size.get()));
        self.could_add(size, limit) || windows.any(|window| window.missing <= room)
    }
}

/// Where the memory that is or becomes free from `at` on ends, at most `end`.
fn free_up_to(holes: &Holes, mut at: Offset, end: Offset, returned: &Ranges) -> Offset {
    while at < end {
        let next = [holes.around(at), around(at, returned)].into_iter().flatten();
        let Some(next) = next.map(|range| range.1).max() else { return at };
        at = next;
    }
    end
}

/// Where the memory that is or becomes free up to `end` begins, at least `start`.
fn free_down_to(holes: &Holes, mut end: Offset, start: Offset, returned: &Ranges) -> Offset {
    while end > start {
        let next = [holes.around(end - 1), around(end - 1, returned)].into_iter().flatten();
        let Some(next) = next.map(|range| range.0).min() else { return end };
        end = next;
    }
    start
}

/// The range around `at`.
fn around(at: Offset, ranges: &Ranges) -> Option<(Offset, Offset)> {
    let above = ranges.partition_point(|range| range.0 <= at);
    let range = ranges.get(above.checked_sub(1)?)?;
    (at < range.1).then_some(*range)
}
