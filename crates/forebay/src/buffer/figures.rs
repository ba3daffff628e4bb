//! What is counted of one buffer: its memory, and what was copied.

use std::sync::atomic::{AtomicU64, Ordering};

/// The counters of a buffer, which its manager reads too.
#[derive(Debug, Default)]
pub(super) struct Figures {
    host: AtomicU64,
    device: AtomicU64,
    to_host: Direction,
    to_device: Direction,
}

#[derive(Debug, Default)]
struct Direction {
    copies: AtomicU64,
    bytes: AtomicU64,
}

impl Direction {
    fn count(&self, bytes: u64) {
        self.copies.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> CopyFigures {
        let (copies, bytes) =
            (self.copies.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        CopyFigures { copies, bytes }
    }
}

impl Figures {
    pub(super) fn set_host(&self, bytes: u64) {
        self.host.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn set_device(&self, bytes: u64) {
        self.device.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_to_host(&self, bytes: u64) {
        self.to_host.count(bytes);
    }

    pub(super) fn count_to_device(&self, bytes: u64) {
        self.to_device.count(bytes);
    }

    pub(super) fn read(&self) -> BufferFigures {
        BufferFigures {
            host_bytes: self.host.load(Ordering::Relaxed),
            device_bytes: self.device.load(Ordering::Relaxed),
            to_host: self.to_host.read(),
            to_device: self.to_device.read(),
        }
    }
}

/// Copies in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyFigures {
    /// How many copies.
    pub copies: u64,
    /// How many bytes in all.
    pub bytes: u64,
}

/// The memory and the copies of a buffer, or of all buffers of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferFigures {
    /// Bytes of host memory now.
    pub host_bytes: u64,
    /// Bytes of device memory now.
    pub device_bytes: u64,
    /// Copies from the device to the host.
    pub to_host: CopyFigures,
    /// Copies from the host to the device.
    pub to_device: CopyFigures,
}

impl BufferFigures {
    pub(super) fn add(&mut self, other: &Self) {
        self.host_bytes = self.host_bytes.saturating_add(other.host_bytes);
        self.device_bytes = self.device_bytes.saturating_add(other.device_bytes);
        self.to_host.add(other.to_host);
        self.to_device.add(other.to_device);
    }
}

impl CopyFigures {
    fn add(&mut self, other: Self) {
        self.copies = self.copies.saturating_add(other.copies);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}
