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
//! what may still be made, come to the request in whole granules, there is a plan, as long as some
//! gap has that many addresses and a page more; where none has, the plan lacks addresses and no
//! memory. Bytes of pages that are partly in use cannot be moved, and are promised to nobody but the
//! requests that fit them.

use super::window::{Stretch, openings};
use super::{AddressSpace, Offset, Streams};
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
    pub(super) fn page(&self, held: u64, granule: u64) -> u64 {
        let part = (held / self.part.max(1)).max(granule);
        let part = 1_u64 << part.ilog2();
        part.clamp(granule, self.largest_page.get().max(granule))
    }

    /// What the address space may hold before pages of `page` bytes are moved, where `live` bytes will be
    /// in blocks and `peak` were at the most.
    pub(super) fn ceiling(&self, page: u64, live: u64, peak: u64) -> u64 {
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

/// What is missing for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Lack {
    /// Nothing was asked for.
    Nothing,
    /// Memory: the limit leaves no way.
    Limit,
    /// Addresses: once enough are reserved there is a plan.
    Addresses,
}

impl core::fmt::Display for Lack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Nothing => "a request for no bytes needs no plan",
            Self::Limit => "the limit leaves no room for the request",
            Self::Addresses => "no reserved range has room for the request; reserve another",
        })
    }
}

impl core::error::Error for Lack {}

/// What a plan is made for.
#[derive(Clone, Copy, Debug)]
struct Request<'a> {
    size: u64,
    taker: &'a Streams,
    growth: &'a Growth,
    limit: u64,
}

impl Plan {
    /// A plan for `size` bytes free in the order of `taker`, one stream, that leaves at most
    /// `limit` bytes in the address space, or as many as there are.
    ///
    /// Its pages are to be put in the address space in the order of `taker`, new ones too: a page free for
    /// all would become one with a neighbour that the taker may not have.
    pub fn make(
        space: &AddressSpace,
        size: Bytes,
        taker: Streams,
        growth: &Growth,
        limit: Bytes,
    ) -> Result<Self, Lack> {
        if size.is_zero() {
            return Err(Lack::Nothing);
        }
        let request = Request { size: size.get(), taker: &taker, growth, limit: limit.get() };
        if space.has_hole(&request) {
            return Ok(Self { steps: Vec::new() });
        }
        let stretches = space.stretches(&taker);
        let windows = openings(&stretches).filter_map(|opening| space.window(opening, size.get()));
        let least = windows.min().and_then(|window| space.fill(&stretches, window.at, &request));
        // In a window between blocks a page may be too large for its gap, and pages within it stay
        // where they are. In a large gap any page fits, and all can go there.
        let plan = least.or_else(|| {
            let end = space.last_gap().filter(|gap| gap.1 - gap.0 >= request.size)?;
            space.fill(&stretches, end.0, &request)
        });
        plan.map_or_else(|| space.fill_elsewhere(&stretches, &request), Ok)
    }

    /// How large the next segment is for a request of `size`, on a device that maps no pages: a block
    /// cannot lie in two. `None` where the limit leaves no way.
    pub fn segment(
        space: &AddressSpace,
        size: Bytes,
        growth: &Growth,
        limit: Bytes,
    ) -> Option<Bytes> {
        let granule = space.granule.bytes().get();
        let least = size.get().checked_next_multiple_of(granule).filter(|&least| least > 0)?;
        let room = limit.get().checked_sub(space.backed).filter(|&room| least <= room)?;
        let page = growth.page(space.backed.saturating_add(least), granule);
        Some(Bytes::new(least.max(page.min(room / granule * granule))))
    }

    /// The bytes of all pages that are to be made.
    pub fn created(&self) -> Bytes {
        self.steps.iter().fold(Bytes::ZERO, |sum, step| match step {
            Step::Create { size, .. } => sum.saturating_add(*size),
            Step::Move { .. } => sum,
        })
    }
}

impl AddressSpace {
    /// Whether a hole holds the request already.
    fn has_hole(&self, request: &Request<'_>) -> bool {
        self.holes.can_take(request.size, request.taker)
    }

    /// The gap at the end of the range where the last page lies, or of the last range.
    fn last_gap(&self) -> Option<(Offset, Offset)> {
        let page = self.pages.last_key_value().map(|(&at, placed)| (at, at + placed.size));
        let range = page.and_then(|(start, end)| self.reserved.around(start, end));
        let (_, end) = range.or_else(|| self.reserved.last())?;
        self.gaps.around(end.checked_sub(1)?, end)
    }

    /// The steps that fill the lowest gap in which any page fits; or what is lacking.
    fn fill_elsewhere(&self, stretches: &[Stretch], request: &Request<'_>) -> Result<Plan, Lack> {
        let granule = self.granule.bytes().get();
        let whole = request.size.checked_next_multiple_of(granule).ok_or(Lack::Limit)?;
        let donors = self.donors(0, 0, request.taker);
        let pages = donors.iter().filter(|_| request.growth.moves).map(|donor| donor.1);
        let (movable, largest) =
            pages.fold((0_u64, 0), |(sum, most), page| (sum.saturating_add(page), page.max(most)));
        let room = request.limit.saturating_sub(self.backed) / granule * granule;
        if whole > room.saturating_add(movable) {
            return Err(Lack::Limit);
        }
        let needed = whole.saturating_add(largest);
        let mut gaps = self.gaps.each().filter(|gap| gap.1 - gap.0 >= needed);
        let filled = gaps.next().and_then(|gap| self.fill(stretches, gap.0, request));
        filled.ok_or(Lack::Addresses)
    }

    /// The steps that leave `size` bytes from `at` backed.
    fn fill(&self, stretches: &[Stretch], at: Offset, request: &Request<'_>) -> Option<Plan> {
        let Request { size, taker, growth, limit } = *request;
        let granule = self.granule.bytes().get();
        let end = at.checked_add(size)?;
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
        let ceiling = growth.ceiling(page, live, self.peak).min(limit);
        let moves = growth.moves && held > ceiling;
        let mut donors = if moves { self.donors(at, end, taker) } else { Vec::new() };
        let mut room = limit.saturating_sub(self.backed);
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
    fn donors(&self, at: Offset, end: Offset, taker: &Streams) -> Vec<(Offset, u64)> {
        let granule = self.granule.bytes().get();
        // Neighbouring holes that both serve the taker are one, so a page is free for it only
        // within one hole.
        let mut pages: Vec<(u64, core::cmp::Reverse<u64>, Offset)> = Vec::new();
        for hole in self.holes.holes_for(taker, granule) {
            for (&from, placed) in self.pages.range(hole.start..hole.end) {
                let outside = from + placed.size <= at || from >= end;
                if from + placed.size <= hole.end && outside {
                    pages.push((hole.size(), core::cmp::Reverse(placed.size), from));
                }
            }
        }
        pages.sort_unstable();
        pages.into_iter().map(|(_, size, from)| (from, size.0)).collect()
    }
}
