//! Plans: how a request that no hole holds is to be met.
//!
//! ```text
//!   the window that misses least is chosen, and its gaps are filled:
//!
//!   [ page  ..][ gap ][..  page ]          before: two holes, neither large enough
//!   [ page  ..][ moved or new ][.. page ]  after: one
//! ```
//!
//! Pages that lie free elsewhere are moved before any is made, so that memory is taken from the
//! device only where none is free in whole pages. A program that needs more than ever before is
//! let have a little more than that without moving: it is likely still to grow, and would need the
//! pages in any case.
//!
//! What a driver charges is charged a page, not a byte: few and large pages are fast, many and
//! small ones are tight. So pages grow with what the pool holds, up to a size at which a page is
//! still likely to become wholly free.
//!
//! What is promised: where the pages that are free from end to end in the order of the taker, and
//! what may still be made, come to the request in whole granules, there is a plan, as long as the
//! line has that many addresses, and a page more, left beyond its last page. Bytes of pages that
//! are partly in use cannot be moved, and are promised to nobody but the requests that fit them.

use super::hole::Hole;
use super::{Line, Offset, Streams};
use crate::Bytes;

/// How a pool grows. The reason for each default is beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The largest page. 32 MiB: by the measured costs of an H200 a gibibyte of such pages takes
    /// 1.3 ms to create, map and open, against 4.6 ms of 8 MiB and 0.5 ms of 128 MiB, which are
    /// wholly free less often.
    pub largest_page: Bytes,
    /// A page is at most this part of what is held, so that a small program does not take large
    /// ones: 12 means a twelfth, which leaves less than that unused at the end.
    pub part: u64,
    /// How many pages a program that needs more than ever before may stand above that before pages
    /// are moved.
    pub spare_pages: u64,
    /// And no more than this part of it: 16 means a sixteenth. Of a small program a few pages are
    /// much.
    pub spare_part: u64,
    /// Whether free pages are moved at all. Where what is behind an address must stay there they are
    /// not, and more is made instead.
    pub moves: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Self { largest_page: Bytes::mib(32), part: 12, spare_pages: 8, spare_part: 16, moves: true }
    }
}

impl Growth {
    /// The size of a new page where `held` bytes will be held: a power of two.
    fn page(&self, held: u64, granule: u64) -> u64 {
        let part = (held / self.part.max(1)).max(granule);
        let part = 1_u64 << part.ilog2();
        part.clamp(granule, self.largest_page.get().max(granule))
    }

    /// What the line may hold before pages of `page` bytes are moved, where `live` bytes will be
    /// in blocks and `peak` were at the most.
    fn ceiling(&self, page: u64, live: u64, peak: u64) -> u64 {
        if live <= peak {
            return 0;
        }
        let spare = page.saturating_mul(self.spare_pages).min(live / self.spare_part.max(1));
        live.saturating_add(spare)
    }
}

/// One thing to be done, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Make a page of this size and put it there.
    Create {
        /// Where.
        at: Offset,
        /// How large.
        size: Bytes,
    },
    /// Take the page that lies free at `from` and put it at `to`.
    Move {
        /// Where it is.
        from: Offset,
        /// Where it goes.
        to: Offset,
        /// How large it is.
        size: Bytes,
    },
}

/// How a request that no hole holds is to be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// A stretch of the line that a block may come to lie in: a hole, or a gap.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    start: Offset,
    end: Offset,
    is_gap: bool,
}

/// Where a block could lie once its gaps are filled; the smaller, the better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Window {
    missing: u64,
    /// What of its opening stays free: a small opening that is used up is worth more than a large
    /// one that is cut.
    left: u64,
    at: Offset,
}

impl Plan {
    /// A plan for `size` bytes free in the order of `taker`, one stream, that leaves at most
    /// `limit` bytes on the line, or as many as there are; `None` where the limit or the line
    /// leaves no way, and where `size` is nothing.
    ///
    /// Its pages are to be put on the line in the order of `taker`, new ones too: a page free for
    /// all would become one with a neighbour that the taker may not have.
    pub fn make(
        line: &Line,
        size: Bytes,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
    ) -> Option<Self> {
        if size.is_zero() {
            return None;
        }
        let size = size.get();
        let stretches = line.stretches(taker);
        let least = openings(&stretches)
            .filter_map(|opening| line.window(opening, size))
            .min()
            .and_then(|window| line.fill(&stretches, window.at, size, taker, growth, limit));
        // In a window between blocks a page may be too large for its gap, and pages within it stay
        // where they are. Beyond the end of the line any page fits, and all can go there.
        least.or_else(|| {
            let end = stretches.last().filter(|last| last.is_gap && last.end == line.size)?;
            line.fill(&stretches, end.start, size, taker, growth, limit)
        })
    }
}

impl Plan {
    /// Where the next segment goes, and how large it is, on a device that maps no pages: apart from
    /// all others, since a block cannot lie in two. `None` where the limit leaves no way.
    pub fn segment(
        line: &Line,
        size: Bytes,
        growth: &Growth,
        limit: Bytes,
    ) -> Option<(Offset, Bytes)> {
        let granule = line.granule.bytes().get();
        let least = size.get().checked_next_multiple_of(granule).filter(|&least| least > 0)?;
        let room = limit.get().checked_sub(line.backed)?;
        // Beyond what is being given back as well: it is there until it is gone.
        let page = line.pages.last_key_value().map(|(&start, page)| start + page.size);
        let alias = line.aliases.last_key_value().map(|(&start, &size)| start + size);
        let at = page.max(alias).map_or(Some(0), |top| top.checked_add(granule))?;
        let page = growth.page(line.backed.saturating_add(least), granule);
        let wanted = least.max(page.min(room / granule * granule));
        let fits = least <= room && at.checked_add(wanted).is_some_and(|end| end <= line.size);
        fits.then_some((at, Bytes::new(wanted)))
    }
}

/// The stretches in runs without anything in between.
fn openings(stretches: &[Stretch]) -> impl Iterator<Item = &[Stretch]> {
    stretches.chunk_by(|one, next| one.end == next.start)
}

impl Line {
    /// Where blocks may come to lie, in order: holes that `taker` can use, and gaps.
    fn stretches(&self, taker: Streams) -> Vec<Stretch> {
        let mut holes = self
            .holes
            .each()
            .filter(|(_, hole)| hole.streams.serve(taker))
            .map(|(start, Hole { end, .. })| Stretch { start, end, is_gap: false })
            .peekable();
        let mut pages = self.pages.iter().map(|(&at, page)| (at, at + page.size)).peekable();
        let mut aliases = self.aliases.iter().map(|(&at, &size)| (at, at + size)).peekable();
        let mut stretches = Vec::new();
        let mut reached = 0;
        loop {
            let page_first = match (pages.peek(), aliases.peek()) {
                (Some(page), Some(alias)) => page.0 < alias.0,
                (page, _) => page.is_some(),
            };
            let taken = if page_first { pages.next() } else { aliases.next() };
            let (start, end) = taken.unwrap_or((self.size, self.size));
            while let Some(hole) = holes.next_if(|hole| hole.start < reached) {
                stretches.push(hole);
            }
            if start > reached {
                stretches.push(Stretch { start: reached, end: start, is_gap: true });
            }
            if taken.is_none() {
                return stretches;
            }
            reached = end;
        }
    }

    /// The best window for `size` in an opening: from the start of one of its stretches, or up to
    /// the end of one of its holes.
    ///
    /// Both ends of a window only ever go up, so all windows are measured in one pass.
    fn window(&self, opening: &[Stretch], size: u64) -> Option<Window> {
        let granule = self.granule.bytes().get();
        let (start, end) = (opening.first()?.start, opening.last()?.end);
        let left = (end - start).checked_sub(size)?;
        let lengths = opening.iter().map(|it| if it.is_gap { it.end - it.start } else { 0 });
        // What is missing below each stretch, and below the end of the opening.
        let mut below = vec![0];
        below.extend(lengths.scan(0_u64, |sum, length| {
            *sum += length;
            Some(*sum)
        }));
        // What of the gaps lies below `at`, which is in the stretch with this number: granules
        // that a window from `at` shares count as above, those that a window up to it shares as
        // below.
        let under = |number: usize, at: Offset, up: bool| -> u64 {
            let sum = below.get(number).copied().unwrap_or(0);
            match opening.get(number) {
                Some(it) if it.is_gap => {
                    let edge = if up { at.div_ceil(granule) } else { at / granule };
                    sum + (edge * granule).clamp(it.start, it.end) - it.start
                }
                _ => sum,
            }
        };
        let mut best: Option<Window> = None;
        let mut offer = |at: Offset, missing: u64| {
            let window = Window { missing, left, at };
            best = Some(best.map_or(window, |best| best.min(window)));
        };
        let mut upper = 0;
        for (number, it) in opening.iter().enumerate() {
            let Some(stop) = it.start.checked_add(size).filter(|&stop| stop <= end) else { break };
            while opening.get(upper).is_some_and(|it| it.end < stop) {
                upper += 1;
            }
            offer(it.start, under(upper, stop, true) - under(number, it.start, false));
        }
        let mut lower = 0;
        for (number, it) in opening.iter().enumerate().filter(|(_, it)| !it.is_gap) {
            let Some(at) = it.end.checked_sub(size).filter(|&at| at >= start) else { continue };
            while opening.get(lower).is_some_and(|it| it.end <= at) {
                lower += 1;
            }
            offer(at, under(number, it.end, true) - under(lower, at, false));
        }
        best
    }

    /// The steps that leave `size` bytes from `at` backed.
    fn fill(
        &self,
        stretches: &[Stretch],
        at: Offset,
        size: u64,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
    ) -> Option<Plan> {
        let granule = self.granule.bytes().get();
        let end = at.checked_add(size).filter(|&end| end <= self.size)?;
        let first = stretches.partition_point(|it| it.end <= at);
        let inside = stretches.get(first..)?.iter().take_while(|it| it.start < end);
        let gaps = inside.filter(|it| it.is_gap).map(|gap| {
            let from = gap.start.max(at / granule * granule);
            let to = end.next_multiple_of(granule).min(gap.end);
            (from, to, gap.end)
        });
        let gaps: Vec<(Offset, Offset, Offset)> = gaps.collect();
        let missing: u64 = gaps.iter().map(|(from, to, _)| to - from).sum();
        let held = self.backed.saturating_add(missing);
        let page = growth.page(held, granule);
        let live = self.taken().saturating_add(size);
        let ceiling = growth.ceiling(page, live, self.peak).min(limit.get());
        let moves = growth.moves && held > ceiling;
        let mut donors = if moves { self.donors(at, end, taker) } else { Vec::new() };
        let mut room = limit.get().saturating_sub(self.backed);
        let mut steps = Vec::new();
        for (mut at, to, gap_end) in gaps {
            // The gap may go on beyond what is needed; a page may reach into it.
            donors.retain(|&(from, size)| {
                let goes = at < to && size <= gap_end - at;
                if goes {
                    steps.push(Step::Move { from, to: at, size: Bytes::new(size) });
                    at += size;
                }
                !goes
            });
            while at < to {
                let size = page.min(gap_end - at).min(room) / granule * granule;
                if size == 0 {
                    return None;
                }
                steps.push(Step::Create { at, size: Bytes::new(size) });
                room -= size;
                at += size;
            }
        }
        Some(Plan { steps })
    }

    /// Pages outside `at..end` that are free in the order of `taker`, those of the smallest holes
    /// first: they are the least likely to be asked for.
    fn donors(&self, at: Offset, end: Offset, taker: Streams) -> Vec<(Offset, u64)> {
        // Neighbouring holes that both serve the taker are one, so a page is free for it only
        // within one hole.
        let holes = self.holes.each().filter(|(_, hole)| hole.streams.serve(taker));
        let mut pages: Vec<(u64, core::cmp::Reverse<u64>, Offset)> = Vec::new();
        for (start, hole) in holes {
            for (&from, placed) in self.pages.range(start..hole.end) {
                let outside = from + placed.size <= at || from >= end;
                if from + placed.size <= hole.end && outside {
                    pages.push((hole.end - start, core::cmp::Reverse(placed.size), from));
                }
            }
        }
        pages.sort_unstable();
        pages.into_iter().map(|(_, size, from)| (from, size.0)).collect()
    }
}
