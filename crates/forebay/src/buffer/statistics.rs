//! Statistics of one buffer: its memory, and its copies with their speed and last use.
//!
//! Reads the clock only when a copy is issued. The device measures how long copies take: see `host_use.rs`.

use core::time::Duration;
use std::sync::Mutex;
use std::time::Instant;

use forebay_core::Replica;

use crate::sync::lock;

/// The statistics of a buffer, shared with its manager.
#[derive(Debug, Default)]
pub(super) struct Counters(Mutex<BufferStatistics>);

/// Bytes per second; `None` if `time` is zero.
fn bandwidth(bytes: u64, time: Duration) -> Option<u64> {
    let per_second = u128::from(bytes).saturating_mul(1_000_000_000);
    Some(u64::try_from(per_second.checked_div(time.as_nanos())?).unwrap_or(u64::MAX))
}

impl Counters {
    pub(super) fn read(&self) -> BufferStatistics {
        *lock(&self.0)
    }

    pub(super) fn set_host(&self, bytes: u64) {
        lock(&self.0).host_bytes = bytes;
    }

    pub(super) fn set_device(&self, bytes: u64) {
        lock(&self.0).device_bytes = bytes;
    }

    /// Counts a copy that was issued just now.
    pub(super) fn count_copy(&self, to: Replica, bytes: u64) {
        let last = Some(Instant::now());
        lock(&self.0).copies(to).add(CopyStatistics {
            copies: 1,
            bytes,
            last,
            ..Default::default()
        });
    }

    /// Adds the duration of a copy that is known to have ended.
    pub(super) fn count_time(&self, to: Replica, bytes: u64, time: Duration) {
        // If the device's clock could not resolve the copy, it is not timed.
        let Some(fastest) = bandwidth(bytes, time) else { return };
        let timed = CopyStatistics { timed_bytes: bytes, time, fastest, ..Default::default() };
        lock(&self.0).copies(to).add(timed);
    }
}

/// Copies in one direction.
///
/// Copies of 64 KiB and more are timed with device events before and after the copy. So the time includes neither
/// earlier work of the stream nor any delay in noticing the end. It is counted once the end is noticed: by the next
/// copy or host access that waits, or when the buffer is dropped. Smaller copies are counted but not timed: two events
/// would add noticeably to their cost.
///
/// ```
/// use forebay::StreamHandle;
/// use forebay::buffer::BufferManager;
///
/// let memory = BufferManager::host()?;
/// let mut wrapped = memory.wrap(vec![1.0_f32; 1 << 20])?; // has two replicas, on the host too
/// let _ = wrapped.on_device(StreamHandle::DEFAULT)?;
/// wrapped.host_mut()?.fill(2.0); // waits for the copy, and so sees its end
/// let copies = wrapped.statistics().to_device;
/// assert_eq!((copies.copies, copies.timed_bytes), (1, 4 << 20));
/// let limit = memory.totals().statistics.to_device.fastest;
/// println!("{:?} B/s, {:?} of the limit seen so far", copies.bandwidth(), copies.utilization(limit));
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyStatistics {
    /// Number of copies.
    pub copies: u64,
    /// Total bytes copied.
    pub bytes: u64,
    /// Bytes in timed copies.
    pub timed_bytes: u64,
    /// Total device time of the timed copies.
    pub time: Duration,
    /// The bandwidth of the fastest timed copy, in bytes per second; 0 if none was timed. In the
    /// [totals](super::BufferTotals) of a manager this is the measured limit of the direction: the best observed, not
    /// the hardware's peak.
    pub fastest: u64,
    /// When the last copy was issued: `last.map(|last| last.elapsed())` is how long the direction has been idle.
    pub last: Option<Instant>,
}

/// Memory and copies of a buffer, or of all buffers of a manager.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BufferStatistics {
    /// Current bytes of host memory.
    pub host_bytes: u64,
    /// Current bytes of device memory.
    pub device_bytes: u64,
    /// Copies from the device to the host.
    pub to_host: CopyStatistics,
    /// Copies from the host to the device.
    pub to_device: CopyStatistics,
}

impl BufferStatistics {
    /// When the last copy was issued, in either direction. A use without a copy is not recorded: recording it would
    /// cost more than the use.
    pub fn last_copy(&self) -> Option<Instant> {
        self.to_host.last.max(self.to_device.last)
    }

    fn copies(&mut self, to: Replica) -> &mut CopyStatistics {
        match to {
            Replica::Host => &mut self.to_host,
            Replica::Device => &mut self.to_device,
        }
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.host_bytes = self.host_bytes.saturating_add(other.host_bytes);
        self.device_bytes = self.device_bytes.saturating_add(other.device_bytes);
        self.to_host.add(other.to_host);
        self.to_device.add(other.to_device);
    }
}

impl CopyStatistics {
    /// The average bandwidth of the timed copies, in bytes per second; `None` if none was timed.
    pub fn bandwidth(&self) -> Option<u64> {
        bandwidth(self.timed_bytes, self.time)
    }

    /// The bandwidth as a fraction of a limit in bytes per second, such as the manager's [`fastest`](Self::fastest)
    /// copy; `None` if no copy was timed or the limit is 0.
    pub fn utilization(&self, limit: u64) -> Option<f64> {
        let bandwidth = self.bandwidth().filter(|_| limit != 0)?;
        Some(bandwidth as f64 / limit as f64)
    }

    fn add(&mut self, other: Self) {
        self.copies = self.copies.saturating_add(other.copies);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.timed_bytes = self.timed_bytes.saturating_add(other.timed_bytes);
        self.time = self.time.saturating_add(other.time);
        self.fastest = self.fastest.max(other.fastest);
        self.last = self.last.max(other.last);
    }
}
