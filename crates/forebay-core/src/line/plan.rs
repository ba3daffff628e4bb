//! Plans: how a request that no hole holds is to be met.
//!
//! ```text
//!   the window that misses least is chosen, and its gaps are filled:
//!
//!   [ page  ..][ gap ][..  page ]          before: two holes, neither large enough
//!   [ page  ..][ new or moved ][.. page ]  after: one
//! ```
//!
//! What a driver charges is charged a page, not a byte: few and large pages are fast, many and small
//! ones are tight. So pages grow with what the pool holds, up to a size at which a page is still
//! likely to become wholly free and can be moved. Moving leaves gaps behind, so a pool is let stand
//! a few pages above what the program has needed before it moves any.

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
    /// ones: 16 means a sixteenth.
    pub part: u64,
    /// How many pages the pool may stand above the most bytes ever live before it moves pages.
    pub spare_pages: u64,
    /// And no more than this part of them: 16 means a sixteenth. Of a small program a few pages are
    /// much.
    pub spare_part: u64,
}

impl Default for Growth {
    fn default() -> Self {
        Self { largest_page: Bytes::mib(32), part: 16, spare_pages: 8, spare_part: 16 }
    }
}

impl Growth {
    /// The size of a new page where `held` bytes will be held: a power of two.
    fn page(&self, held: u64, granule: u64) -> u64 {
        let part = (held / self.part.max(1)).max(granule);
        let part = 1_u64 << part.ilog2();
        part.clamp(granule, self.largest_page.get().max(granule))
    }

    /// What the line may hold before pages are moved.
    ///
    /// A program that needs more than ever before may have a little more than that; one that does
    /// not has been given enough already, and lives on what there is.
    fn ceiling(&self, page: u64, standing: Standing) -> u64 {
        if standing.live <= standing.peak {
            return 0;
        }
        let live = standing.live.get();
        let spare = page.saturating_mul(self.spare_pages).min(live / self.spare_part.max(1));
        live.saturating_add(spare).min(standing.limit.get())
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

/// What the pool knows of itself when it plans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The bytes live now, the request at hand counted.
    pub live: Bytes,
    /// The most bytes ever live before it.
    pub peak: Bytes,
    /// The most bytes the line may hold.
    pub limit: Bytes,
}

/// How a request that no hole holds is to be met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What to do, in order.
    pub steps: Vec<Step>,
}

/// A stretch of the line that a block may come to lie in.
#[derive(Clone, Copy, Debug)]
enum Stretch {
    /// Free and backed.
    Hole(Offset, Offset),
    /// Not backed.
    Gap(Offset, Offset),
}

impl Stretch {
    const fn ends(self) -> (Offset, Offset) {
        match self {
            Self::Hole(start, end) | Self::Gap(start, end) => (start, end),
        }
    }
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
    /// A plan for `size` bytes free in the order of `taker`, one stream; `None` where the limit or
    /// the line leaves no way, and where `size` is nothing.
    ///
    /// Its pages are to be put on the line in the order of `taker`, new ones too: a page free for
    /// all would become one with a neighbour that the taker may not have.
    pub fn make(
        line: &Line,
        size: Bytes,
        taker: Streams,
        growth: &Growth,
        standing: Standing,
    ) -> Option<Self> {
        if size.is_zero() {
            return None;
        }
        let size = size.get();
        let openings = line.openings(taker);
        let window = openings.iter().filter_map(|opening| line.window(opening, size)).min()?;
        let end = window.at.checked_add(size)?;
        let granule = line.granule.bytes().get();
        let page = growth.page(line.backed.saturating_add(window.missing), granule);
        let ceiling = growth.ceiling(page, standing);
        let mut donors = if line.backed.saturating_add(window.missing) > ceiling {
            line.donors(window.at, end, taker)
        } else {
            Vec::new()
        };
        let mut room = standing.limit.get().saturating_sub(line.backed);
        let mut steps = Vec::new();
        for (start, stop) in line.gaps_of(&openings, window.at, end) {
            let mut at = start;
            // The gap may go on beyond what is needed; a page may reach into it.
            let gap_end = line.next_occupied(at);
            while at < stop {
                let fits = donors.iter().position(|&(_, size)| size <= gap_end - at);
                if let Some((from, size)) = fits.map(|index| donors.remove(index)) {
                    steps.push(Step::Move { from, to: at, size: Bytes::new(size) });
                    at += size;
                    continue;
                }
                let wanted = page.min(gap_end - at).min(room) / granule * granule;
                if wanted == 0 {
                    return None;
                }
                steps.push(Step::Create { at, size: Bytes::new(wanted) });
                room -= wanted;
                at += wanted;
            }
        }
        Some(Self { steps })
    }
}

impl Plan {
    /// Where the next segment goes, and how large it is, on a device that maps no pages: apart from
    /// all others, since a block cannot lie in two. `None` where the limit leaves no way.
    pub fn segment(
        line: &Line,
        size: Bytes,
        growth: &Growth,
        standing: Standing,
    ) -> Option<(Offset, Bytes)> {
        let granule = line.granule.bytes().get();
        let least = size.get().checked_next_multiple_of(granule).filter(|&least| least > 0)?;
        let room = standing.limit.get().checked_sub(line.backed)?;
        let at = if line.pages.is_empty() { 0 } else { line.top().checked_add(granule)? };
        let page = growth.page(line.backed.saturating_add(least), granule);
        let wanted = least.max(page.min(room / granule * granule));
        let fits = least <= room && at.checked_add(wanted).is_some_and(|end| end <= line.size);
        fits.then_some((at, Bytes::new(wanted)))
    }
}

impl Line {
    /// Where blocks may come to lie: runs of holes that `taker` can use and of gaps.
    fn openings(&self, taker: Streams) -> Vec<Vec<Stretch>> {
        let usable = |hole: &Hole| hole.streams.serve(taker);
        let holes = self.holes.each().filter(|(_, hole)| usable(hole));
        let mut stretches: Vec<Stretch> =
            holes.map(|(start, hole)| Stretch::Hole(start, hole.end)).collect();
        let pages = self.pages.iter().map(|(&start, page)| (start, start + page.size));
        let aliases = self.aliases.iter().map(|(&start, &size)| (start, start + size));
        let mut taken: Vec<(Offset, Offset)> = pages.chain(aliases).collect();
        taken.sort_unstable();
        let mut reached = 0;
        for (start, end) in taken {
            if start > reached {
                stretches.push(Stretch::Gap(reached, start));
            }
            reached = end;
        }
        if reached < self.size {
            stretches.push(Stretch::Gap(reached, self.size));
        }
        stretches.sort_unstable_by_key(|stretch| stretch.ends());
        let mut openings: Vec<Vec<Stretch>> = Vec::new();
        for stretch in stretches {
            match openings.last_mut() {
                Some(last) if last.last().is_some_and(|s| s.ends().1 == stretch.ends().0) => {
                    last.push(stretch);
                }
                _ => openings.push(vec![stretch]),
            }
        }
        openings
    }

    /// The best window for `size` in an opening: from the start of one of its stretches, or up to
    /// the end of one of its holes.
    fn window(&self, opening: &[Stretch], size: u64) -> Option<Window> {
        let granule = self.granule.bytes().get();
        let (start, _) = opening.first()?.ends();
        let (_, end) = opening.last()?.ends();
        let from_starts = opening.iter().map(|stretch| stretch.ends().0);
        let to_ends = opening.iter().filter_map(|stretch| match *stretch {
            Stretch::Hole(_, end) => end.checked_sub(size),
            Stretch::Gap(..) => None,
        });
        from_starts
            .chain(to_ends)
            .filter(|&at| at >= start && at.checked_add(size).is_some_and(|stop| stop <= end))
            .map(|at| {
                let stop = at + size;
                let gaps =
                    opening.iter().filter_map(|stretch| gap_part(*stretch, at, stop, granule));
                let missing = gaps.map(|(from, to)| to - from).sum();
                Window { missing, left: end - start - size, at }
            })
            .min()
    }

    /// The parts of gaps that a block at `at..end` needs backed, in order.
    fn gaps_of(&self, openings: &[Vec<Stretch>], at: Offset, end: Offset) -> Vec<(Offset, Offset)> {
        let granule = self.granule.bytes().get();
        let stretches = openings.iter().flatten();
        stretches.filter_map(|stretch| gap_part(*stretch, at, end, granule)).collect()
    }

    /// Pages outside `at..end` that are free in the order of `taker`, those of the smallest holes
    /// first: they are the least likely to be asked for.
    fn donors(&self, at: Offset, end: Offset, taker: Streams) -> Vec<(Offset, u64)> {
        let mut pages = self.free_pages();
        let free_for_taker = |start: Offset, size: u64| {
            let streams = self.holes.covering(start, start + size);
            streams.is_some_and(|streams| streams.serve(taker))
        };
        pages.retain(|&(start, size, _)| {
            (start + size <= at || start >= end) && free_for_taker(start, size)
        });
        pages.sort_unstable_by_key(|&(start, size, hole)| (hole, core::cmp::Reverse(size), start));
        pages.into_iter().map(|(start, size, _)| (start, size)).collect()
    }
}

/// The part of a gap that `at..end` needs backed, in whole granules.
fn gap_part(stretch: Stretch, at: Offset, end: Offset, granule: u64) -> Option<(Offset, Offset)> {
    let Stretch::Gap(start, stop) = stretch else { return None };
    let from = start.max(at / granule * granule);
    let to = stop.min(end.checked_next_multiple_of(granule)?);
    (from < to).then_some((from, to))
}
