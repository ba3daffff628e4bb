//! What an address space could hold if more memory were free.
//!
//! ```text
//!   page      [ free | block | free | block | free ]
//!   outline   [ free |        taken         | free ]      what lies between blocks of a page serves no larger request
//! ```
//!
//! A request that is larger than a page fits if its window misses no more bytes than could be backed: pages are made as
//! small as the gaps of a window, and entirely free ones move or are released. So no plan is needed to know. An outline
//! looks up two holes for each page, by their addresses, whatever the number of holes.

use super::window::{FreeRange, MAP, openings, window};
use super::{AddressSpace, Offset};
use crate::Bytes;

/// Ranges of addresses, the lowest first.
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

impl AddressSpace {
    /// The address space with `returned` free as well, no old mappings, and everything free for all streams. `returned` is
    /// sorted by address. Without `moves`, entirely free pages stay where they are.
    pub fn outline(&self, returned: &Ranges, moves: bool) -> Outline {
        let gap = |(start, end)| FreeRange { start, end, is_gap: true, price: MAP };
        let hole = |start, end| FreeRange { start, end, is_gap: false, price: 0 };
        let mut outline = Outline {
            granule: self.granule.bytes().get(),
            ranges: self.gaps.each().map(gap).collect(),
            backed: self.backed,
            movable: 0,
            largest_page: 0,
        };
        let aliases = self.aliases.iter().map(|(&at, size)| gap((at, at + size)));
        outline.ranges.extend(aliases);
        for (&at, placed) in &self.pages {
            let end = at + placed.size;
            outline.largest_page = outline.largest_page.max(placed.size);
            let head = self.free_up_to(at, end, returned);
            if moves && head == end {
                outline.movable += placed.size;
                outline.ranges.push(gap((at, end)));
                continue;
            }
            let tail = self.free_down_to(end, head, returned);
            let ends = [hole(at, head), hole(tail, end)];
            outline.ranges.extend(ends.into_iter().filter(|range| range.start < range.end));
        }
        outline.ranges.sort_unstable_by_key(|range| range.start);
        outline
    }

    /// Whether `size` bytes in one piece would be free with `returned` free as well, which is sorted by address.
    pub fn would_fit(&self, size: Bytes, returned: &Ranges) -> bool {
        let size = size.get();
        if self.holes.largest() >= size {
            return true;
        }
        let mut returned = returned.iter().copied().peekable();
        let mut holes = self.holes.each().map(|hole| (hole.start, hole.end)).peekable();
        let mut run: (Offset, Offset) = (0, 0);
        loop {
            let next = match (holes.peek(), returned.peek()) {
                (Some(hole), Some(other)) if other < hole => returned.next(),
                (Some(_), _) => holes.next(),
                (None, _) => returned.next(),
            };
            let Some((start, end)) = next else { return false };
            // Islands may touch, and no block crosses from one to the next.
            let goes_on = start <= run.1 && self.runs.around(run.0, start + 1).is_some();
            run = if goes_on { (run.0, run.1.max(end)) } else { (start, end) };
            if run.1 - run.0 >= size {
                return true;
            }
        }
    }

    /// Where the memory that is or becomes free from `at` on ends, at most `end`.
    fn free_up_to(&self, mut at: Offset, end: Offset, returned: &Ranges) -> Offset {
        while at < end {
            let hole = self.holes.around(at).map(|hole| hole.end);
            let back = returned_around(at, returned).map(|range| range.1);
            match hole.max(back) {
                Some(next) => at = next,
                None => return at,
            }
        }
        end
    }

    /// Where the memory that is or becomes free up to `end` begins, at least `start`.
    fn free_down_to(&self, mut end: Offset, start: Offset, returned: &Ranges) -> Offset {
        while end > start {
            let hole = self.holes.around(end - 1).map(|hole| hole.start);
            let back = returned_around(end - 1, returned).map(|range| range.0);
            match hole.into_iter().chain(back).min() {
                Some(next) => end = next,
                None => return end,
            }
        }
        start
    }
}

/// The range around `at`.
fn returned_around(at: Offset, returned: &Ranges) -> Option<(Offset, Offset)> {
    let above = returned.partition_point(|range| range.0 <= at);
    let range = returned.get(above.checked_sub(1)?)?;
    (at < range.1).then_some(*range)
}
