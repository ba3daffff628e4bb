//! The outline of an address space: what it would be if more memory were free, reduced to what a plan reads.
//!
//! ```text
//!   page      [ free | block | free | block | free ]
//!   outline   [ free |        taken         | free ]      what lies between blocks of a page serves no larger request
//! ```
//!
//! A copy of all holes takes time in proportion to their number. An outline has at most two holes for each page, which it
//! finds by their addresses.

use super::hole::Holes;
use super::kept::Kept;
use super::{AddressSpace, NO_RUNS, Offset, Streams};
use crate::Bytes;

/// Ranges of addresses, the lowest first.
type Ranges = [(Offset, Offset)];

impl AddressSpace {
    /// The address space with `returned` free as well, everything free for all streams, and only such holes as a page
    /// begins or ends with. `returned` is sorted by address. Plans for it move pages wherever they can.
    #[must_use]
    pub fn outline(&self, returned: &Ranges) -> Self {
        let mut outline = Self {
            granule: self.granule,
            boundaries: self.boundaries,
            reserved: self.reserved.clone(),
            gaps: self.gaps.clone(),
            pages: self.pages.clone(),
            places: self.places.clone(),
            aliases: self.aliases.clone(),
            // What a page costs at a place does not decide whether there is one.
            kept: Kept::default(),
            holes: Holes::default(),
            runs: self.runs.clone(),
            recent: NO_RUNS,
            backed: self.backed,
            // Below its peak a program moves pages rather than taking new ones.
            peak: u64::MAX,
            moved: 0,
            growths: self.growths,
            page_changes: self.page_changes,
        };
        for (&at, placed) in &self.pages {
            let end = at + placed.size;
            let head = self.free_up_to(at, end, returned);
            let tail = self.free_down_to(end, head, returned);
            for (start, end) in [(at, head), (tail, end)] {
                if start < end {
                    let freed = outline.free(start, Bytes::new(end - start), Streams::ALL);
                    debug_assert!(freed.is_ok(), "a page overlaps another: {freed:?}");
                }
            }
        }
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
