//! Quotas: what counts against a limit that several pools may share. A byte counts from its reservation until the
//! [`Reservation`] that owns it is dropped, and moves between reservations without leaving the sum. Atomics, no lock.
//!
//! ```text
//!   Quota ── Share ── held            what the pool has
//!         │       ├─ room            what a request has released for its own growth
//!         │       └─ reservations    what growths are about to take: committed to `held`, or given back
//!         └─ Share ── ...
//! ```

#[cfg(test)]
mod tests;

use std::sync::Arc;

use forebay_core::Bytes;

use crate::atomic::{AtomicU64, Ordering};

/// The bytes that count against a limit, for all pools that share it. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Quota(Arc<AtomicU64>);

impl Quota {
    /// The bytes that count.
    pub fn claimed(&self) -> Bytes {
        Bytes::new(self.0.load(Ordering::Relaxed))
    }

    /// Counts `after` bytes in place of `before`, whatever the limit.
    pub fn replace(&self, before: Bytes, after: Bytes) {
        self.0.fetch_add(after.get().wrapping_sub(before.get()), Ordering::Relaxed);
    }

    /// Counts `bytes` more, unless that would exceed `limit`.
    fn add(&self, bytes: Bytes, limit: Bytes) -> bool {
        let more = |claimed: u64| {
            let claimed = Bytes::new(claimed).checked_add(bytes)?;
            // No bytes fit even under a limit that was lowered.
            (claimed <= limit || bytes.is_zero()).then_some(claimed.get())
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// The bytes of one pool that count, and those of all that share the limit.
#[derive(Debug)]
struct Counted {
    all: Quota,
    own: AtomicU64,
}

impl Counted {
    fn replace(&self, before: Bytes, after: Bytes) {
        self.all.replace(before, after);
        // Last, and read first by `Share::others`, which then never takes bytes that go for those of another pool. Bytes
        // come only under the heap lock of the pool, under which it is read.
        self.own.fetch_add(after.get().wrapping_sub(before.get()), Ordering::Release);
    }

    fn add(&self, bytes: Bytes, limit: Bytes) -> bool {
        let added = self.all.add(bytes, limit);
        if added {
            self.own.fetch_add(bytes.get(), Ordering::Relaxed);
        }
        added
    }
}

/// Bytes that count against the limit until this is dropped.
#[derive(Debug)]
#[must_use = "the bytes are given back when it is dropped"]
pub struct Reservation {
    of: Arc<Counted>,
    bytes: Bytes,
}

impl Reservation {
    fn none(of: &Arc<Counted>) -> Self {
        Self { of: Arc::clone(of), bytes: Bytes::ZERO }
    }

    /// How many bytes it owns.
    pub fn bytes(&self) -> Bytes {
        self.bytes
    }

    /// Splits off `most` of its bytes, or all if it owns fewer.
    pub fn split(&mut self, most: Bytes) -> Self {
        let bytes = most.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        Self { of: Arc::clone(&self.of), bytes }
    }

    fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.of, &other.of), "a reservation of another pool");
        self.bytes = self.bytes.saturating_add(core::mem::take(&mut other.bytes));
    }

    fn set(&mut self, bytes: Bytes) {
        if bytes != self.bytes {
            self.of.replace(core::mem::replace(&mut self.bytes, bytes), bytes);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.set(Bytes::ZERO);
    }
}

/// One pool's part of a quota.
#[derive(Debug)]
pub struct Share {
    of: Arc<Counted>,
    held: Reservation,
    room: Option<Reservation>,
}

impl Share {
    /// A part of `quota` that holds nothing yet.
    pub fn new(quota: &Quota) -> Self {
        let of = Arc::new(Counted { all: quota.clone(), own: AtomicU64::new(0) });
        Self { held: Reservation::none(&of), room: None, of }
    }

    /// Bytes that all pools sharing the limit hold or have reserved, this one included.
    pub fn claimed_by_all(&self) -> Bytes {
        self.of.all.claimed()
    }

    /// Bytes that the other pools hold or have reserved.
    pub fn others(&self) -> Bytes {
        let own = Bytes::new(self.of.own.load(Ordering::Acquire));
        self.claimed_by_all().saturating_sub(own)
    }

    /// Reserves `size` bytes for memory that the pool is about to take from the device; with `has_room` those that the
    /// request has released come first. `None` if that would exceed the limit.
    pub fn reserve(&mut self, size: Bytes, has_room: bool, limit: Bytes) -> Option<Reservation> {
        let room = self.room.as_mut().filter(|_| has_room);
        let mut reserved = room.map_or_else(|| Reservation::none(&self.of), |it| it.split(size));
        let more = size.saturating_sub(reserved.bytes);
        if !self.of.add(more, limit) {
            self.return_room(reserved);
            return None;
        }
        reserved.bytes = size;
        Some(reserved)
    }

    /// The pool holds the bytes of a reservation now. The caller [sets](Self::set_held) how much it holds in all next.
    pub fn commit(&mut self, reserved: Reservation) {
        self.held.join(reserved);
    }

    /// Sets how much the pool holds.
    pub fn set_held(&mut self, bytes: Bytes) {
        self.held.set(bytes);
    }

    /// The pool has returned `size` bytes to the device. They stay reserved while a request releases memory for itself.
    /// The caller [sets](Self::set_held) how much is held next.
    pub fn released(&mut self, size: Bytes) {
        if let Some(room) = &mut self.room {
            room.join(self.held.split(size));
        }
    }

    /// From now on, what is released stays reserved for one request. Returns `false` if another has that already.
    #[must_use]
    pub fn begin_room(&mut self) -> bool {
        let is_first = self.room.is_none();
        self.room.get_or_insert_with(|| Reservation::none(&self.of));
        is_first
    }

    /// Undoes [`begin_room`](Self::begin_room), and ends the reservation of what is left.
    pub fn end_room(&mut self) {
        self.room = None;
    }

    /// Bytes reserved for the request that releases memory for itself.
    pub fn room(&self) -> Bytes {
        self.room.as_ref().map_or(Bytes::ZERO, Reservation::bytes)
    }

    /// Gives that request a reservation back, for its next attempt.
    pub fn return_room(&mut self, reserved: Reservation) {
        if let Some(room) = &mut self.room {
            room.join(reserved);
        }
    }
}
