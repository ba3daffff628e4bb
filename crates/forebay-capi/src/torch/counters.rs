//! What pools have counted, under PyTorch's names.

use core::ffi::c_int;
use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay::Pool;
use forebay_sync::lock;

/// A figure as PyTorch has it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Figure {
    /// Now.
    pub current: i64,
    /// The most since the last reset.
    pub peak: i64,
    /// What was added in all.
    pub allocated: i64,
    /// What was taken away in all.
    pub freed: i64,
}

/// A figure of all blocks, of small ones, and of large ones.
type BySide = [Figure; 3];

/// All figures of a GPU under PyTorch's names.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceStatistics {
    /// Blocks.
    pub allocation: BySide,
    /// Pages.
    pub segment: BySide,
    /// Free pieces.
    pub inactive_split: BySide,
    /// Bytes in blocks.
    pub allocated_bytes: BySide,
    /// Bytes taken from the device.
    pub reserved_bytes: BySide,
    /// Bytes in free pieces.
    pub inactive_split_bytes: BySide,
    /// Bytes that were asked for.
    pub requested_bytes: BySide,
    /// Driver allocations that failed; after each the pool tried another way.
    pub alloc_retries: i64,
    /// Waits for the whole device.
    pub sync_all_streams: i64,
    /// Driver calls that took memory.
    pub device_alloc: i64,
    /// Driver calls that gave memory back.
    pub device_free: i64,
}

/// What private pools that are gone had counted.
static GONE: Mutex<BTreeMap<c_int, DeviceStatistics>> = Mutex::new(BTreeMap::new());

/// Keeps what a private pool without blocks has counted, before it is dropped.
pub(super) fn keep_totals(device: c_int, pool: &Pool) {
    let mut last = DeviceStatistics::default();
    last.add(pool);
    // Its pages go with it.
    last.device_free = last.device_alloc;
    for figure in last.by_side().into_iter().flatten() {
        (figure.current, figure.freed) = (0, figure.allocated);
    }
    lock(&GONE).entry(device).or_default().join(&mut last);
}

/// Adds what private pools of a GPU that are gone had counted.
pub(super) fn add_gone(device: c_int, figures: &mut DeviceStatistics) {
    if let Some(gone) = lock(&GONE).get_mut(&device) {
        figures.join(gone);
    }
}

pub(super) fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Figure {
    fn add(&mut self, other: Self) {
        self.current = self.current.saturating_add(other.current);
        self.peak = self.peak.saturating_add(other.peak);
        self.allocated = self.allocated.saturating_add(other.allocated);
        self.freed = self.freed.saturating_add(other.freed);
    }
}

impl DeviceStatistics {
    pub(super) fn by_side(&mut self) -> [&mut BySide; 7] {
        [
            &mut self.allocation,
            &mut self.segment,
            &mut self.inactive_split,
            &mut self.allocated_bytes,
            &mut self.reserved_bytes,
            &mut self.inactive_split_bytes,
            &mut self.requested_bytes,
        ]
    }

    pub(super) fn totals(&mut self) -> [&mut i64; 4] {
        [
            &mut self.alloc_retries,
            &mut self.sync_all_streams,
            &mut self.device_alloc,
            &mut self.device_free,
        ]
    }

    /// Adds the figures of a pool.
    pub(super) fn add(&mut self, pool: &Pool) {
        let told = pool.statistics();
        for (at, side) in [(1, &told.small), (2, &told.large)] {
            let now = |value: u64| Figure { current: number(value), ..Figure::default() };
            let all = |value: u64, allocated: u64, freed: u64| Figure {
                allocated: number(allocated),
                freed: number(freed),
                ..now(value)
            };
            let figures = [
                all(side.blocks, side.allocations, side.frees),
                now(side.pages),
                now(side.pieces),
                all(side.live.get(), side.allocated.get(), side.freed.get()),
                now(side.held.get()),
                now(side.in_holes.get()),
                all(
                    side.requested.get(),
                    side.requested_allocated.get(),
                    side.requested_freed.get(),
                ),
            ];
            for (sum, one) in self.by_side().into_iter().zip(figures) {
                sum[at].add(one);
                sum[0].add(one);
            }
        }
        let calls = |names: [&str; 2]| {
            let entries = told.driver.entries().filter(|(call, ..)| names.contains(&call.name()));
            entries.fold((0_u64, 0_u64), |(calls, bytes), (_, size, count)| {
                (calls + count, bytes.saturating_add(size.get().saturating_mul(count)))
            })
        };
        let (asked, _) = calls(["create_page", "allocate"]);
        let (given_back, bytes_back) = calls(["release_page", "free"]);
        let taken = (told.small.pages + told.large.pages).saturating_add(given_back);
        // The driver's calls are not counted by side.
        let held = told.small.held.get().saturating_add(told.large.held.get());
        for (all, added, removed) in [
            (&mut self.segment[0], taken, given_back),
            (&mut self.reserved_bytes[0], held.saturating_add(bytes_back), bytes_back),
        ] {
            all.allocated = all.allocated.saturating_add(number(added));
            all.freed = all.freed.saturating_add(number(removed));
        }
        // What was asked for and neither is there nor was given back: the driver had none, and the pool tried another
        // way.
        let failed = asked.saturating_sub(taken);
        let counts = [failed, calls(["synchronize_device", ""]).0, taken, given_back];
        for (sum, one) in self.totals().into_iter().zip(counts) {
            *sum = sum.saturating_add(number(one));
        }
    }

    /// Adds other figures.
    fn join(&mut self, other: &mut Self) {
        for (sum, one) in self.by_side().into_iter().zip(other.by_side()) {
            sum.iter_mut().zip(one).for_each(|(sum, one)| sum.add(*one));
        }
        for (sum, one) in self.totals().into_iter().zip(other.totals()) {
            *sum = sum.saturating_add(*one);
        }
    }
}
