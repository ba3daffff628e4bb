//! How an engine works.

use core::time::Duration;
use std::num::NonZeroUsize;

use forebay_core::Bytes;
use forebay_core::transfer::{Backoff, Pace};

/// The threads of an engine, if the machine has that many. One copies ordinary memory at about a seventh of what PCI
/// Express 5 takes, less the more there are; what is not needed sleeps.
const MOST_THREADS: usize = 12;

/// The smallest piece of a transfer that is not smaller itself. Copying 256 KiB takes a thread some 30 us, and the calls of
/// the driver for a piece about 5.
const LEAST_PIECE: u64 = 256 << 10;

/// From this size on a piece of a download is written past the caches, unless options say otherwise. On an H200's host of 16
/// processors this took four threads from 30 to 48 GB/s with pieces of 4 MiB, and lost with pieces of 1 MiB.
const PAST_CACHES: u64 = 2 << 20;

/// Options of a [`TransferEngine`](super::TransferEngine).
///
/// ```
/// use forebay::transfer::TransferOptions;
/// use forebay::{Bytes, HostDevice};
///
/// let engine = TransferOptions::new().chunk(Bytes::mib(1)).slots(4).threads(2).build(&HostDevice::open()?)?;
/// assert_eq!(engine.options().most_pinned(), Bytes::mib(8)); // four slots for each direction
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
    /// How long a thread waits for work before it ends.
    pub(super) linger: Duration,
    /// How a retry waits. Tests count instead.
    pub(super) sleep: fn(Duration),
}

impl Default for TransferOptions {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let threads = processors.clamp(1, MOST_THREADS);
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
    /// The defaults: pieces of up to 4 MiB, a thread for each processor up to twelve, two slots for each thread.
    pub fn new() -> Self {
        Self::default()
    }

    /// The size of the largest piece, and so of a slot: 4 KiB at least. A transfer begins and ends with smaller ones.
    pub fn chunk(mut self, chunk: Bytes) -> Self {
        self.chunk = chunk.max(Bytes::kib(4));
        self
    }

    /// The slots of each direction: one at least. Two for each thread if this is not called, and four at least.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = Some(slots.max(1));
        self
    }

    pub(super) fn slots_in_use(&self) -> usize {
        self.slots.unwrap_or_else(|| self.threads.saturating_mul(2).max(4))
    }

    /// The threads that copy on the host: one at least.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// How many transfers of one priority and direction take turns: one at least. Further ones wait.
    pub fn at_once(mut self, at_once: usize) -> Self {
        self.at_once = at_once.max(1);
        self
    }

    /// How often and after which delays a call of the device that may pass is tried again.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Whether runs of 64 KiB zeros and more in consecutive memory are filled in on the device instead of copied to it. They
    /// are, by default. Memory is looked at once in 32 KiB, and only where 64 bytes are zero there in blocks of 4 KiB.
    pub fn fill_zeros(mut self, fill_zeros: bool) -> Self {
        self.fill_zeros = fill_zeros;
        self
    }

    /// Whether threads copy past the caches of the processor, by non-temporal stores (x86-64). If this is not called, they
    /// do so in downloads, in pieces of 2 MiB and more: what arrives is rarely read at once, while a slot that is filled for
    /// the device is best read from the caches.
    pub fn past_caches(mut self, past_caches: bool) -> Self {
        self.past_caches = Some(past_caches);
        self
    }

    /// How many transfers the engine remembers, for a time line. None by default.
    pub fn history(mut self, transfers: usize) -> Self {
        self.history = transfers;
        self
    }

    /// Whether memory of this size is written past the caches: a slot, or what a slot is emptied into.
    pub(super) fn goes_past_caches(&self, into_slot: bool, size: u64) -> bool {
        self.past_caches.unwrap_or(!into_slot && size >= PAST_CACHES)
    }

    /// The smallest piece.
    pub(super) fn least_piece(&self) -> u64 {
        LEAST_PIECE.min(self.chunk.get()).max(1)
    }

    /// How large the pieces of a transfer are.
    pub(super) fn pace(&self) -> Pace {
        Pace { least: self.least_piece(), threads: self.threads as u64 }
    }

    /// How much of `total` bytes in small transfers goes together: two loads for each thread.
    pub(super) fn load(&self, total: u64) -> u64 {
        let fair = total / (self.threads as u64).saturating_mul(2);
        fair.max(self.least_piece()).min(self.chunk.get())
    }

    /// The most memory that the engine pins.
    pub fn most_pinned(&self) -> Bytes {
        let slots = self.slots_in_use() as u64;
        Bytes::new(self.chunk.get().saturating_mul(slots).saturating_mul(2))
    }
}
