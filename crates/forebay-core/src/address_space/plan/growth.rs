//! How a pool grows: the sizes of pages, and when pages are moved instead of created.
//!
//! ```text
//!   held    0 ──────── 48 MiB ── 96 MiB ── 192 MiB ── 384 MiB ──>
//!   page      2 MiB      4 MiB     8 MiB     16 MiB     32 MiB       by default: a twelfth, as a power of two
//! ```

use crate::Bytes;

/// A page is not smaller than this fraction of what one request misses, if the largest page allows.
const REQUEST_PART: u64 = 4;

/// How a pool grows. Each field gives the reason for its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Growth {
    /// The largest page. 32 MiB: by the costs measured on an H200, a gibibyte of such pages takes
    /// 1.3 ms to create, map and open for access. With 8 MiB it takes 4.6 ms, and with 128 MiB 0.5 ms,
    /// but such large pages are entirely free less often.
    pub largest_page: Bytes,
    /// A page is at most this fraction of the memory held, so that a small program does not take large
    /// pages: 12 means a twelfth, so less than a twelfth stays unused at the end.
    pub part: u64,
    /// How many pages a program at a new peak may hold beyond its need before pages are moved.
    pub spare_pages: u64,
    /// The spare pages are also at most this fraction of its need: 16 means a sixteenth. A few pages
    /// are a lot for a small program.
    pub spare_part: u64,
    /// How many bytes of pages are moved before the pool grows by one instead: 4, so that a program
    /// which moves a page once or twice does not grow.
    pub moves_per_growth: u64,
    /// How far a program that moves pages may grow beyond its peak: 100 means by a hundredth.
    pub slack_part: u64,
    /// A page is at most this fraction of the reach, which is the most that the pool could ever hold:
    /// 4096 means that the lost parts of pages stay far below a hundredth of it, and that a pool which
    /// holds all of it does not consist of more pages than a driver creates in half a second.
    pub reach_part: u64,
    /// A pool that holds less than this fraction of the reach may have larger pages, in proportion: 16
    /// means that one which holds a 32nd may have pages twice as large.
    pub early_part: u64,
    /// The smallest segment, on devices without page mapping. 2 MiB, so that small blocks share a call to the driver:
    /// on an H200 pinning 1 MiB takes 0.9 ms, and 64 MiB 31 ms.
    pub least_segment: Bytes,
    /// Whether free pages may be moved at all. If the memory behind an address must stay the same they
    /// may not, and new pages are created instead.
    pub moves: bool,
}

impl Default for Growth {
    fn default() -> Self {
        Self {
            largest_page: Bytes::mib(32),
            part: 12,
            spare_pages: 8,
            spare_part: 16,
            moves_per_growth: 4,
            slack_part: 100,
            reach_part: 4096,
            early_part: 16,
            least_segment: Bytes::mib(2),
            moves: true,
        }
    }
}

impl Growth {
    /// The same for a pool that could hold at most `reach` bytes and holds, or is about to hold, `held` of them:
    /// the scarcer memory is, the smaller the pages.
    ///
    /// ```
    /// use forebay_core::Bytes;
    /// use forebay_core::address_space::Growth;
    ///
    /// let page = |held, reach| Growth::default().within(held, reach).largest_page;
    /// assert_eq!(page(Bytes::gib(12), Bytes::gib(140)), Bytes::mib(32), "plentiful");
    /// assert_eq!(page(Bytes::mib(96), Bytes::gib(12)), Bytes::mib(24), "little is held as yet");
    /// assert_eq!(page(Bytes::gib(6), Bytes::gib(12)), Bytes::mib(3));
    /// ```
    #[must_use]
    pub fn within(mut self, held: Bytes, reach: Bytes) -> Self {
        let whole = u128::from((reach.get() / self.reach_part.max(1)).max(1));
        let many = u128::from(held.get().max(1)) * u128::from(self.early_part.max(1));
        let early = whole * u128::from(reach.get()) / many;
        let most = u64::try_from(whole.max(early)).unwrap_or(u64::MAX);
        self.largest_page = self.largest_page.min(Bytes::new(most));
        self
    }

    /// How many bytes may be created instead of moved, by an address space that has `backed` bytes and a peak of
    /// `peak`, after `moved` bytes were moved: whole pages of `page` bytes.
    pub(in crate::address_space) fn instead_of_moves(
        &self,
        page: u64,
        moved: u64,
        backed: u64,
        peak: u64,
    ) -> u64 {
        let most = peak.saturating_add(peak / self.slack_part.max(1)).saturating_sub(backed);
        most.min(moved / self.moves_per_growth.max(1)) / page.max(1) * page
    }

    /// The size of a new page for a pool that will hold `held` bytes, `missing` of them new: whole granules, and a power
    /// of two below the largest page. One request is not served by many small pages.
    pub(in crate::address_space) fn page(&self, held: u64, missing: u64, granule: u64) -> u64 {
        let part = (held / self.part.max(1)).max(missing / REQUEST_PART).max(granule);
        let part = 1_u64 << part.ilog2();
        part.clamp(granule, (self.largest_page.get() / granule * granule).max(granule))
    }

    /// How many bytes may be backed before pages of `page` bytes are moved, if `live` bytes will be in
    /// blocks and the previous peak was `peak`.
    pub(in crate::address_space) fn ceiling(&self, page: u64, live: u64, peak: u64) -> u64 {
        if live <= peak {
            return 0;
        }
        let spare = page.saturating_mul(self.spare_pages).min(live / self.spare_part.max(1));
        live.saturating_add(spare)
    }
}
