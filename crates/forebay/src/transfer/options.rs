//! Options of an engine.

use core::time::Duration;
use std::num::NonZeroUsize;

use forebay_core::Bytes;
use forebay_core::transfer::{Backoff, Pace};

/// The default number of threads, if the machine has that many. One thread copies ordinary memory at about a seventh of
/// the speed of PCI Express 5, less with more threads; spare threads sleep.
const MAX_THREADS: usize = 12;

/// The smallest piece, unless the transfer itself is smaller. A thread copies 256 KiB in some 30 us, and the driver
/// calls for a piece take about 5.
const LEAST_PIECE: u64 = 256 << 10;

/// From this size on, pieces of downloads bypass the caches by default. On an H200's host of 16 processors this took
/// four threads from 30 to 48 GB/s with pieces of 4 MiB, and was slower with pieces of 1 MiB.
const PAST_CACHES: u64 = 2 << 20;

/// Options of a [`TransferEngine`](super::TransferEngine).
///
/// ```
/// use forebay::transfer::TransferOptions;
/// use forebay::{Bytes, HostDevice};
///
/// let engine = TransferOptions::new().chunk(Bytes::mib(1)).slots(4).threads(2).build(&HostDevice::open()?)?;
/// assert_eq!(engine.options().max_pinned(), Bytes::mib(8)); // four slots for each direction
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransferOptions {
    pub(super) chunk: Bytes,
    pub(super) slots: Option<usize>,
    pub(super) threads: usize,
    pub(super) at_once: usize,
    pub(super) backoff: Backoff,
    pub(super) fill_zeros: bool,
    pub(super) past_caches: Option<bool>,
    pub(super) history: usize,
    /// How long an idle thread waits for work before it exits.
    pub(super) linger: Duration,
    /// How a retry sleeps. Tests count calls instead.
    pub(super) sleep: fn(Duration),
}

impl Default for TransferOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = processors.clamp(1, MAX_THREADS);
        Self {
            chunk: Bytes::mib(4),
            slots: None,
            threads,
            at_once: 4,
            backoff: Backoff::default(),
            fill_zeros: true,
            past_caches: None,
            history: 0,
            linger: Duration::from_millis(200),
            sleep: std::thread::sleep,
        }
    }
}

impl TransferOptions {
    /// The defaults: pieces of up to 4 MiB, one thread per processor up to twelve, two slots per thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the largest piece and of slots; at least 4 KiB. A transfer starts and ends with smaller ones.
    pub fn chunk(mut self, chunk: Bytes) -> Self {
        self.chunk = chunk.max(Bytes::kib(4));
        self
    }

    /// Sets the slots per direction; at least one. By default two per thread, and at least four.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots.max(1));
        self
    }

    pub(super) fn slots_in_use(&self) -> usize {
        self.slots.unwrap_or_else(|| self.threads.saturating_mul(2).max(4))
    }

    /// Sets the number of threads that copy on the host; at least one.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// Sets how many transfers of one priority and direction take turns; at least one. Others wait.
    pub fn at_once(mut self, at_once: usize) -> Self {
        self.at_once = at_once.max(1);
        self
    }

    /// Sets how often, and after which delays, transient errors of device calls are retried.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sets whether runs of 64 KiB of zeros and more in contiguous memory are filled on the device rather than copied;
    /// on by default. Probes memory once per 32 KiB, and examines it in blocks of 4 KiB only where 64 bytes are zero.
    pub fn fill_zeros(mut self, fill_zeros: bool) -> Self {
        self.fill_zeros = fill_zeros;
        self
    }

    /// Sets whether threads bypass the processor's caches, with non-temporal stores (x86-64). By default, downloads do
    /// so in pieces of 2 MiB and more: downloaded data is rarely read at once, while the device best reads a freshly
    /// filled slot from the caches.
    pub fn past_caches(mut self, past_caches: bool) -> Self {
        self.past_caches = Some(past_caches);
        self
    }

    /// Sets how many transfers the engine remembers, for a timeline; none by default.
    pub fn history(mut self, transfers: usize) -> Self {
        self.history = transfers;
        self
    }

    /// Whether to bypass the caches when writing this much memory: a slot, or what a slot is emptied into.
    pub(super) fn goes_past_caches(&self, into_slot: bool, size: u64) -> bool {
        self.past_caches.unwrap_or(!into_slot && size >= PAST_CACHES)
    }

    /// The smallest piece.
    pub(super) fn least_piece(&self) -> u64 {
        LEAST_PIECE.min(self.chunk.get()).max(1)
    }

    /// The sizes of a transfer's pieces.
    pub(super) fn pace(&self) -> Pace {
        Pace { least: self.least_piece(), threads: self.threads as u64 }
    }

    /// How much of `total` bytes in small transfers to combine: two loads per thread.
    pub(super) fn load(&self, total: u64) -> u64 {
        let fair = total / (self.threads as u64).saturating_mul(2);
        fair.max(self.least_piece()).min(self.chunk.get())
    }

    /// The most memory that the engine pins.
    pub fn max_pinned(&self) -> Bytes {
        let slots = self.slots_in_use() as u64;
        Bytes::new(self.chunk.get().saturating_mul(slots).saturating_mul(2))
    }
}
