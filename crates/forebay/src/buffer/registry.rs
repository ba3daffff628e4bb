//! Which buffers are live, since when, and from where.

use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::figures::{BufferFigures, Figures};
use crate::sync::fork::Birth;
use crate::sync::lock;

/// The live buffers of a manager.
#[derive(Debug)]
pub(super) struct Registry {
    birth: Birth,
    records: Mutex<Records>,
}

#[derive(Debug, Default)]
struct Records {
    live: BTreeMap<u64, Record>,
    created: u64,
    /// The copies of buffers that are gone.
    gone: BufferFigures,
}

/// What is known of a live buffer.
#[derive(Debug)]
pub(super) struct Record {
    pub(super) element: &'static str,
    pub(super) length: usize,
    pub(super) size: u64,
    pub(super) since: Instant,
    pub(super) created_at: &'static Location<'static>,
    pub(super) figures: Arc<Figures>,
}

/// A buffer's entry, which is removed with it.
#[derive(Debug)]
pub(super) struct Registration {
    registry: Arc<Registry>,
    pub(super) id: u64,
}

/// A live buffer, as [`Memory::live_buffers`](super::Memory::live_buffers) lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBuffer {
    /// Its number. No other buffer of the manager ever has it.
    pub id: u64,
    /// The type of its elements.
    pub element: &'static str,
    /// How many elements it had when it was made.
    pub length: usize,
    /// How many bytes that is.
    pub bytes: u64,
    /// How long ago it was made.
    pub age: Duration,
    /// Where in the program it was made: file, line and column.
    pub created_at: String,
    /// Its memory and copies.
    pub figures: BufferFigures,
}

/// What the buffers of a manager add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryTotals {
    /// Live buffers.
    pub buffers: usize,
    /// Buffers made so far.
    pub created: u64,
    /// Memory of live buffers, and copies of all buffers so far.
    pub figures: BufferFigures,
    /// Bytes of host memory of dropped buffers that copies still use.
    pub parked_bytes: u64,
}

impl Registry {
    pub(super) fn new() -> Self {
        Self { birth: Birth::here(), records: Mutex::default() }
    }

    /// Enters a buffer.
    pub(super) fn enter(self: &Arc<Self>, record: Record) -> Registration {
        let mut records = lock(&self.records);
        records.created += 1;
        let id = records.created;
        records.live.insert(id, record);
        Registration { registry: Arc::clone(self), id }
    }

    /// The live buffers, the oldest first. None in a forked child: a thread that is not there may hold the lock.
    pub(super) fn live(&self) -> Vec<LiveBuffer> {
        if self.birth.is_elsewhere() {
            return Vec::new();
        }
        let records = lock(&self.records);
        let live = records.live.iter().map(|(&id, record)| LiveBuffer {
            id,
            element: record.element,
            length: record.length,
            bytes: record.size,
            age: record.since.elapsed(),
            created_at: record.created_at.to_string(),
            figures: record.figures.read(),
        });
        live.collect()
    }

    /// The sums, with so many bytes parked.
    pub(super) fn totals(&self, parked_bytes: u64) -> MemoryTotals {
        if self.birth.is_elsewhere() {
            return MemoryTotals::default();
        }
        let records = lock(&self.records);
        let mut figures = records.gone;
        records.live.values().for_each(|record| figures.add(&record.figures.read()));
        let (buffers, created) = (records.live.len(), records.created);
        MemoryTotals { buffers, created, figures, parked_bytes }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        if self.registry.birth.is_elsewhere() {
            return;
        }
        let mut records = lock(&self.registry.records);
        if let Some(record) = records.live.remove(&self.id) {
            let mut last = record.figures.read();
            (last.host_bytes, last.device_bytes) = (0, 0);
            records.gone.add(&last);
        }
    }
}
