//! The ends of streams: notifies listeners, and lets a value that outlives its stream find out.
//!
//! ```text
//!   NamedStream   handle, and the count of ends when it was named
//!   count         unchanged since then: no stream has ended. Changed: look it up
//!   living        streams with a `Stream`: when each began
//!   ended         the others, for which an end was announced: when each ended last, as far as remembered
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_sync::fork::ForkSafeMutex;

use crate::{Device, StreamHandle};

/// Called with a stream whose [`Stream`](crate::Stream) is dropped: it is about to be destroyed or, if it was adopted,
/// may be destroyed by its maker.
pub type StreamEnd = fn(&Arc<dyn Device>, StreamHandle);

static TOLD: ForkSafeMutex<Vec<StreamEnd>> = ForkSafeMutex::new(Vec::new());

/// The number of ends announced so far.
static ENDS: AtomicU64 = AtomicU64::new(0);

static STREAMS: ForkSafeMutex<Known> = ForkSafeMutex::new(Known::new());

/// How many ended streams are remembered individually. Named before the ends that were forgotten, a stream without a
/// [`Stream`](crate::Stream) counts as ended: that may cause an extra wait, never a missing one.
const MAX_ENDED: usize = if cfg!(miri) { 64 } else { 4096 };

/// The device object and the handle. A living [`Stream`](crate::Stream) keeps the device at its address.
type Key = (usize, StreamHandle);

fn key(device: &Arc<dyn Device>, stream: StreamHandle) -> Key {
    (Arc::as_ptr(device).cast::<()>().addr(), stream)
}

/// A stream that has a [`Stream`](crate::Stream).
struct Life {
    /// The number of `Stream`s: more than one if it was adopted more than once.
    values: usize,
    /// The count of ends when it began.
    began: u64,
}

/// The streams of the process.
struct Known {
    living: BTreeMap<Key, Life>,
    /// The count at the last end of each.
    ended: BTreeMap<Key, u64>,
    /// Ends up to this count may be forgotten.
    forgotten: u64,
}

impl Known {
    const fn new() -> Self {
        Self { living: BTreeMap::new(), ended: BTreeMap::new(), forgotten: 0 }
    }

    /// Adds an end, and forgets the older half if there are too many.
    fn add_end(&mut self, key: Key) {
        let count = ENDS.fetch_add(1, Ordering::SeqCst) + 1;
        if self.ended.len() >= MAX_ENDED {
            let mut counts: Vec<u64> = self.ended.values().copied().collect();
            let middle = counts.len() / 2;
            self.forgotten = *counts.select_nth_unstable(middle).1;
            self.ended.retain(|_, count| *count > self.forgotten);
        }
        self.ended.insert(key, count);
    }

    /// Whether a stream that was named at the count `named_at` has ended since.
    fn has_ended(&self, key: Key, named_at: u64) -> bool {
        if let Some(life) = self.living.get(&key) {
            return life.began > named_at;
        }
        self.ended.get(&key).copied().unwrap_or(self.forgotten) > named_at
    }
}

/// A handle that may outlive its stream, with the time it was named. A driver may reuse the handle of an ended stream;
/// this tells the two apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedStream {
    handle: StreamHandle,
    named_at: u64,
}

impl NamedStream {
    /// The stream that has this handle now. [`PER_THREAD`](StreamHandle::PER_THREAD) names the calling thread's.
    #[inline]
    pub fn now(handle: StreamHandle) -> Self {
        Self { handle: handle.resolved(), named_at: ENDS.load(Ordering::Relaxed) }
    }

    /// A stream that never ends, such as the one that represents the host.
    pub fn lasting(handle: StreamHandle) -> Self {
        Self { handle, named_at: u64::MAX }
    }

    /// The handle.
    #[inline]
    pub fn handle(self) -> StreamHandle {
        self.handle
    }

    /// The count of [`stream_ends`] when it was named.
    pub fn named_at(self) -> u64 {
        self.named_at
    }

    /// Whether no stream has ended since it was named. Costs one load.
    #[inline]
    pub fn is_fresh(self) -> bool {
        ENDS.load(Ordering::Relaxed) <= self.named_at
    }

    /// Whether the stream has ended since it was named, as far as ends are announced: by the drop of a
    /// [`Stream`](crate::Stream), or by [`announce_stream_end`]. Default streams never end.
    pub fn has_ended(self, device: &Arc<dyn Device>) -> bool {
        let never_ends = self.handle == StreamHandle::DEFAULT || self.handle.is_per_thread();
        !self.is_fresh()
            && !never_ends
            && STREAMS.lock().has_ended(key(device, self.handle), self.named_at)
    }
}

/// The number of stream ends announced so far in this process.
pub fn stream_ends() -> u64 {
    ENDS.load(Ordering::Relaxed)
}

/// Announces the end of a stream without a [`Stream`](crate::Stream): a driver may reuse its handle from then on. For a
/// stream that has one, its drop announces the end.
pub fn announce_stream_end(device: &Arc<dyn Device>, stream: StreamHandle) {
    STREAMS.lock().add_end(key(device, stream));
}

/// A stream was created.
pub(crate) fn begin_stream(device: &Arc<dyn Device>, stream: StreamHandle) {
    let life = Life { values: 1, began: stream_ends() };
    STREAMS.lock().living.insert(key(device, stream), life);
}

/// A stream is adopted once more.
pub(crate) fn count_adoption(device: &Arc<dyn Device>, stream: StreamHandle) {
    let mut streams = STREAMS.lock();
    let new = || Life { values: 0, began: stream_ends() };
    streams.living.entry(key(device, stream)).or_insert_with(new).values += 1;
}

/// A [`Stream`](crate::Stream) is dropped. If it was the last of its stream, everyone is told, while the stream still
/// exists.
pub(crate) fn end_value(device: &Arc<dyn Device>, stream: StreamHandle) {
    {
        let (mut streams, key) = (STREAMS.lock(), key(device, stream));
        match streams.living.get_mut(&key) {
            Some(life) if life.values > 1 => {
                life.values -= 1;
                return;
            }
            _ => drop(streams.living.remove(&key)),
        }
        // The default streams never end.
        if matches!(stream, StreamHandle::DEFAULT | StreamHandle::PER_THREAD) {
            return;
        }
        streams.add_end(key);
    }
    // Without the lock: a function may create and drop streams.
    let all = TOLD.lock().clone();
    for told in all {
        told(device, stream);
    }
}

/// Calls `told` with every dropped [`Stream`](crate::Stream), while the stream still exists, on the thread that drops
/// it, except for default streams, which never end. Registering a function again does nothing.
///
/// For caches that are keyed by stream: a driver may reuse the handle of a destroyed stream.
pub fn on_stream_end(told: StreamEnd) {
    let mut all = TOLD.lock();
    if !all.iter().any(|&known| core::ptr::fn_addr_eq(known, told)) {
        all.push(told);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// More streams end than are remembered: those named before are taken for ended, those named after are not.
    #[test]
    fn ends_are_remembered_or_assumed() {
        let mut known = Known::new();
        let key = |handle| (1, StreamHandle(handle));
        let early = stream_ends();
        for handle in 0..=MAX_ENDED as u64 {
            known.add_end(key(handle));
        }
        assert!(known.ended.len() <= MAX_ENDED);
        let late = stream_ends();
        for handle in [1, MAX_ENDED as u64, 1 << 40] {
            assert!(known.has_ended(key(handle), early), "{handle}");
            assert!(!known.has_ended(key(handle), late), "{handle}");
        }
        // A stream that lives is known exactly, however many ends were forgotten.
        known.living.insert(key(1 << 40), Life { values: 1, began: early });
        assert!(!known.has_ended(key(1 << 40), early));
        known.living.insert(key(7), Life { values: 1, began: late });
        assert!(known.has_ended(key(7), early) && !known.has_ended(key(7), late));
    }
}
