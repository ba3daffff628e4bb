//! Hazard records: each thread publishes the handle of the object that it is using.
//!
//! A record is written by its thread alone and read by threads that close handles. Records are never freed: the
//! record of a thread that ended serves the next thread, so reading one is always safe.

use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use forebay_sync::lock;

use super::barrier;

/// The handle that a thread protects, or 0. On cache lines of its own, since its thread writes it with every
/// call.
#[repr(align(128))]
pub(super) struct HazardRecord {
    protected: AtomicU64,
}

/// All records, and those whose threads have ended.
struct Records {
    all: Vec<&'static HazardRecord>,
    free: Vec<&'static HazardRecord>,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { all: Vec::new(), free: Vec::new() });

fn records() -> MutexGuard<'static, Records> {
    lock(&RECORDS)
}

thread_local! {
    /// Without a destructor, so that reading it is one load.
    static CURRENT: Cell<Option<&'static HazardRecord>> = const { Cell::new(None) };
    /// Returns the record when the thread ends.
    static LEASE: Lease = Lease::take();
}

struct Lease(&'static HazardRecord);

impl Lease {
    fn take() -> Self {
        let mut records = records();
        if let Some(record) = records.free.pop() {
            return Self(record);
        }
        // There are as many records as there ever were threads at once.
        let record: &'static HazardRecord =
            Box::leak(Box::new(HazardRecord { protected: AtomicU64::new(0) }));
        records.all.push(record);
        Self(record)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Thread-local destructors that run after this one take the slow path.
        let _ = CURRENT.try_with(|current| current.set(None));
        records().free.push(self.0);
    }
}

/// This thread's record, where it has one and protects nothing yet.
#[inline(always)]
pub(super) fn current() -> Option<&'static HazardRecord> {
    let record = CURRENT.try_with(Cell::get).ok().flatten()?;
    // Written by this thread alone.
    (record.protected.load(Ordering::Relaxed) == 0).then_some(record)
}

/// Gives this thread a record for its next call, where one-sided barriers are available.
pub(super) fn register_thread() {
    if barrier::available()
        && CURRENT.try_with(Cell::get) == Ok(None)
        && let Ok(record) = LEASE.try_with(|lease| lease.0)
    {
        let _ = CURRENT.try_with(|current| current.set(Some(record)));
    }
}

impl PartialEq for &'static HazardRecord {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(*self, *other)
    }
}

/// Protects a handle until it is dropped, by a panic too.
pub(super) struct HazardGuard(&'static HazardRecord);

impl HazardRecord {
    /// Publishes that the thread uses `id`, before anything that it reads from here on. Threads have records
    /// only where barriers are one-sided, so a light one is enough.
    #[inline(always)]
    pub(super) fn protect(&'static self, id: u64) -> HazardGuard {
        self.protected.store(id, Ordering::Relaxed);
        barrier::light();
        HazardGuard(self)
    }
}

impl Drop for HazardGuard {
    /// The caller reclaims retired objects next, where there are any: this thread may have been the last that kept one.
    #[inline(always)]
    fn drop(&mut self) {
        // Release: a thread that sees this store and drops the object sees all that was done with it.
        self.0.protected.store(0, Ordering::Release);
        barrier::light();
    }
}

/// Whether any thread protects `id`. Exact for a handle that was closed before the last heavy barrier.
pub(super) fn is_protected(id: u64) -> bool {
    records().all.iter().any(|record| record.protected.load(Ordering::Acquire) == id)
}
