//! Tracks live buffers, with their age and origin, and the shared buffers of this process.

use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use super::statistics::{BufferStatistics, Counters};
use crate::report::Stack;
use crate::sync::fork::ForkGeneration;
use crate::sync::lock;

/// The live buffers of a manager.
#[derive(Debug)]
pub(super) struct Registry {
    /// Unique among the managers of the process.
    pub(super) number: u64,
    fork_generation: ForkGeneration,
    records: Mutex<Records>,
}

/// Whether to capture the stacks of calls that make buffers.
static STACKS: AtomicBool = AtomicBool::new(false);

/// Sets whether new buffers record the call stack that made them, for the whole process. Off by default; takes some
/// microseconds per buffer.
pub fn capture_stacks(captured: bool) {
    STACKS.store(captured, Ordering::Relaxed);
}

/// The stack of the caller, if stacks are captured.
pub(super) fn stack() -> Stack {
    if STACKS.load(Ordering::Relaxed) { Stack::capture() } else { Stack::NONE }
}

/// Statistics of the buffers made by one line of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LineStatistics {
    pub(crate) created_at: &'static Location<'static>,
    pub(crate) made: u64,
    pub(crate) live: u64,
    /// The most live buffers at once.
    pub(crate) most: u64,
    /// The longest lifetime of a dropped one.
    pub(crate) longest: Duration,
}

#[derive(Debug, Default)]
struct Records {
    live: BTreeMap<u64, Record>,
    lines: BTreeMap<&'static Location<'static>, LineStatistics>,
    created: u64,
    /// The copies of dropped buffers.
    gone: BufferStatistics,
    /// Since when each shared buffer lives, and what is listed of it.
    shared: BTreeMap<u64, (Instant, LiveShared)>,
    /// The number of the last shared buffer.
    last_shared: u64,
}

/// The record of a live buffer.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) element: &'static str,
    pub(super) length: usize,
    pub(super) size: u64,
    pub(super) since: Instant,
    pub(super) created_at: &'static Location<'static>,
    pub(super) stack: Stack,
    pub(super) statistics: Arc<Counters>,
}

/// A buffer's entry. Dropping it removes the entry.
#[derive(Debug)]
pub(super) struct Registration {
    registry: Arc<Registry>,
    pub(super) id: u64,
}

/// A shared buffer's entry. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct SharedRegistration {
    registry: Arc<Registry>,
    id: u64,
}

/// A live buffer, as [`BufferManager::live_buffers`](super::BufferManager::live_buffers) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBuffer {
    /// Its number, never reused by the manager.
    pub id: u64,
    /// The type of its elements.
    pub element: &'static str,
    /// The number of elements it was made with.
    pub length: usize,
    /// Their size in bytes.
    pub bytes: u64,
    /// The time since it was made.
    pub age: Duration,
    /// The source location that made it: file, line and column.
    pub created_at: String,
    /// The stack of the call that made it, if [`capture_stacks`](crate::leak::capture_stacks) was on.
    pub stack: Stack,
    /// Its memory and copies.
    pub statistics: BufferStatistics,
}

/// A [shared buffer](crate::named) of this process, as listed by [`BufferManager::live_shared`](super::BufferManager::live_shared).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveShared {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element: String,
    /// The number of elements.
    pub length: u64,
    /// Their size in bytes. The memory exists once, however many processes share it.
    pub bytes: u64,
    /// The time since this process created or opened it.
    pub age: Duration,
    /// The source location of that call: file, line and column.
    pub created_at: String,
    /// The stack of that call, if [`capture_stacks`](crate::leak::capture_stacks) was on.
    pub stack: Stack,
}

/// The totals of a manager's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferTotals {
    /// Live buffers.
    pub buffers: usize,
    /// Buffers made so far.
    pub created: u64,
    /// Memory of live buffers, and copies of all buffers so far.
    pub statistics: BufferStatistics,
    /// Bytes of host memory of dropped buffers that copies still use.
    pub parked_bytes: u64,
    /// Live [shared buffers](crate::named), not included in `buffers`. One that was opened twice counts twice.
    pub shared: usize,
    /// Their total size in bytes.
    pub shared_bytes: u64,
}

impl Registry {
    pub(super) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        Self { number, fork_generation: ForkGeneration::here(), records: Mutex::default() }
    }

    /// Registers a buffer.
    pub(super) fn enter(self: &Arc<Self>, record: Record) -> Registration {
        let mut records = lock(&self.records);
        records.created += 1;
        let (id, created_at) = (records.created, record.created_at);
        records.live.insert(id, record);
        let new = LineStatistics { created_at, made: 0, live: 0, most: 0, longest: Duration::ZERO };
        let line = records.lines.entry(created_at).or_insert(new);
        line.made += 1;
        line.live += 1;
        line.most = line.most.max(line.live);
        Registration { registry: Arc::clone(self), id }
    }

    /// Whether this process made it.
    pub(super) fn is_ours(&self) -> bool {
        !self.fork_generation.is_stale()
    }

    /// The records. `None` in a forked child: a thread of the parent may have held the lock.
    fn records(&self) -> Option<MutexGuard<'_, Records>> {
        self.is_ours().then(|| lock(&self.records))
    }

    /// The live buffers, oldest first. Empty in a forked child.
    pub(super) fn live(&self) -> Vec<LiveBuffer> {
        let Some(records) = self.records() else { return Vec::new() };
        let live = records.live.iter().map(|(&id, record)| LiveBuffer {
            id,
            element: record.element,
            length: record.length,
            bytes: record.size,
            age: record.since.elapsed(),
            created_at: record.created_at.to_string(),
            stack: record.stack,
            statistics: record.statistics.read(),
        });
        live.collect()
    }

    /// Registers a shared buffer that was just created or opened.
    pub(super) fn enter_shared(
        self: &Arc<Self>,
        (name, element): (&str, &str),
        (length, bytes): (u64, u64),
        created_at: &'static Location<'static>,
    ) -> SharedRegistration {
        let record = LiveShared {
            name: name.to_owned(),
            element: element.to_owned(),
            length,
            bytes,
            age: Duration::ZERO,
            created_at: created_at.to_string(),
            stack: stack(),
        };
        let mut records = lock(&self.records);
        records.last_shared += 1;
        let id = records.last_shared;
        records.shared.insert(id, (Instant::now(), record));
        SharedRegistration { registry: Arc::clone(self), id }
    }

    /// The shared buffers of this process, oldest first. Empty in a forked child.
    pub(super) fn live_shared(&self) -> Vec<LiveShared> {
        let Some(records) = self.records() else { return Vec::new() };
        let live = records.shared.values();
        live.map(|(since, record)| LiveShared { age: since.elapsed(), ..record.clone() }).collect()
    }

    /// Statistics per line of the program. Empty in a forked child.
    pub(super) fn lines(&self) -> Vec<LineStatistics> {
        self.records().map_or_else(Vec::new, |records| records.lines.values().copied().collect())
    }

    /// The totals. The caller supplies the parked bytes.
    pub(super) fn totals(&self, parked_bytes: u64) -> BufferTotals {
        let Some(records) = self.records() else { return BufferTotals::default() };
        let mut statistics = records.gone;
        records.live.values().for_each(|record| statistics.add(&record.statistics.read()));
        let (buffers, created) = (records.live.len(), records.created);
        let shared_bytes = records.shared.values().map(|(_, record)| record.bytes);
        let shared_bytes = shared_bytes.fold(0, u64::saturating_add);
        let shared = records.shared.len();
        BufferTotals { buffers, created, statistics, parked_bytes, shared, shared_bytes }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let Some(mut records) = self.registry.records() else { return };
        if let Some(record) = records.live.remove(&self.id) {
            let mut last = record.statistics.read();
            (last.host_bytes, last.device_bytes) = (0, 0);
            records.gone.add(&last);
            if let Some(line) = records.lines.get_mut(record.created_at) {
                line.live = line.live.saturating_sub(1);
                line.longest = line.longest.max(record.since.elapsed());
            }
        }
    }
}

impl Drop for SharedRegistration {
    fn drop(&mut self) {
        if let Some(mut records) = self.registry.records() {
            records.shared.remove(&self.id);
        }
    }
}
