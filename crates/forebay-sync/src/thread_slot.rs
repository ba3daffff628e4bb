//! Thread slots: a small number for each thread that allocates, and the tag it allocates under.
//!
//! A thread takes the lowest free thread slot when it first allocates and returns it when it ends. The next
//! thread takes over the slot with everything behind its gates: magazines and counts. That is sound because
//! a slot changes hands under a lock, so everything the previous thread did happens before, and because
//! nothing behind a gate depends on the thread: magazines are per stream, and no two streams have the same
//! handle (the pool gives the default stream of each thread a handle of its own). A magazine of a stream
//! that only the previous thread used is not used again; it is drained with the others and evicted first.

use super::cold_path;
use super::fork::ForkSafeMutex;
use core::cell::Cell;
use core::ptr::NonNull;
use std::collections::BTreeSet;

/// How many threads can have a thread slot at once: more than a process may have by default. Further
/// threads are served without magazines, and get a thread slot when one is free.
pub const MAX_SLOTS: usize = 1 << 16;

/// The thread has not requested a slot yet.
const NOT_REQUESTED: usize = usize::MAX;
/// The thread has no slot: all were taken, or it is about to end.
const NONE: usize = usize::MAX - 1;

/// How many calls a thread without a slot makes before it requests one again. A request takes a lock that
/// all threads share, as does every call without a slot.
const REQUEST_AGAIN: u32 = 1024;

/// The data of a thread. It has no destructor, so that accessing it is one instruction.
struct ThreadLocals {
    slot: Cell<usize>,
    tag: Cell<u8>,
    /// How many calls it made without a slot since it last requested one.
    without_slot: Cell<u32>,
    /// The pool this thread cached last, and the address of its data there.
    pool: Cell<u64>,
    pool_data: Cell<NonNull<()>>,
    /// The one before it: a program often alternates between two, of device and of pinned memory.
    second_pool: Cell<u64>,
    second_data: Cell<NonNull<()>>,
}

thread_local! {
    static LOCAL: ThreadLocals = const {
        ThreadLocals {
            slot: Cell::new(NOT_REQUESTED),
            tag: Cell::new(0),
            without_slot: Cell::new(0),
            pool: Cell::new(0),
            pool_data: Cell::new(NonNull::dangling()),
            second_pool: Cell::new(0),
            second_data: Cell::new(NonNull::dangling()),
        }
    };
    /// Returns the thread slot when the thread ends.
    static LEASE: SlotLease = const { SlotLease(Cell::new(None)) };
}

/// The thread slots of a process.
struct ThreadSlots {
    /// Slots that were returned.
    free: BTreeSet<usize>,
    /// How many were ever taken.
    taken: usize,
}

/// Usable in a forked child, whose thread keeps its slot. The slots of the parent's other threads stay taken.
static SLOTS: ForkSafeMutex<ThreadSlots> =
    ForkSafeMutex::new(ThreadSlots { free: BTreeSet::new(), taken: 0 });

impl ThreadSlots {
    /// The lowest free slot, so that the same program takes the same slots every time; `None` if `most` are
    /// taken.
    fn take(&mut self, most: usize) -> Option<usize> {
        self.free.pop_first().or_else(|| {
            let next = self.taken;
            (next < most).then(|| {
                self.taken = next + 1;
                next
            })
        })
    }
}

/// A thread's slot, if it has one.
struct SlotLease(Cell<Option<usize>>);

impl SlotLease {
    /// The thread slot, requested if there is none.
    fn slot(&self) -> Option<usize> {
        if self.0.get().is_none() {
            self.0.set(SLOTS.lock().take(MAX_SLOTS));
        }
        self.0.get()
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        // Destructors that run after this one allocate without a thread slot.
        LOCAL.with(|local| {
            local.slot.set(NONE);
            local.pool.set(0);
            local.second_pool.set(0);
        });
        if let Some(slot) = self.0.get() {
            SLOTS.lock().free.insert(slot);
        }
    }
}

/// Reads the thread's data, which is always there: [`ThreadLocals`] has no destructor. `with` would do, but
/// only `try_with` is inlined.
#[inline(always)]
fn read<R>(of: impl FnOnce(&ThreadLocals) -> R, otherwise: R) -> R {
    LOCAL.try_with(of).unwrap_or(otherwise)
}

/// The slot of this thread, which no other living thread has. Everything a thread did in its slot happens
/// before anything the next thread does there.
#[inline(always)]
pub fn current() -> Option<usize> {
    let slot = read(|local| local.slot.get(), NONE);
    if slot < MAX_SLOTS { Some(slot) } else { request_slot(slot) }
}

#[cold]
fn request_slot(slot: usize) -> Option<usize> {
    let again = LOCAL.with(|local| {
        let without_slot = local.without_slot.get().wrapping_add(1);
        local.without_slot.set(without_slot % REQUEST_AGAIN);
        without_slot >= REQUEST_AGAIN
    });
    if slot != NOT_REQUESTED && !again {
        return None;
    }
    // An error if the thread is about to end.
    let given = LEASE.try_with(SlotLease::slot).ok().flatten();
    LOCAL.with(|local| local.slot.set(given.unwrap_or(NONE)));
    given
}

/// The pointer that this thread passed to [`cache_pool`] for `pool`, if that was one of the last two.
#[inline(always)]
pub fn cached_pool(pool: u64) -> Option<NonNull<()>> {
    let find = |local: &ThreadLocals| {
        if local.pool.get() == pool {
            return Some(local.pool_data.get());
        }
        cold_path();
        if local.second_pool.get() == pool { Some(local.second_data.get()) } else { None }
    };
    read(find, None)
}

/// Caches the address of this thread's data in a pool, until it uses two other pools. Does nothing for a thread
/// without a slot. Pools have numbers from 1 on.
pub fn cache_pool(pool: u64, pool_data: NonNull<()>) {
    if cached_pool(pool).is_none() && current().is_some() {
        LOCAL.with(|local| {
            local.second_data.set(local.pool_data.get());
            local.second_pool.set(local.pool.get());
            local.pool_data.set(pool_data);
            local.pool.set(pool);
        });
    }
}

/// The tag this thread allocates under.
#[inline(always)]
pub fn tag() -> u8 {
    read(|local| local.tag.get(), 0)
}

/// Changes the tag; returns the previous one.
#[inline(always)]
pub fn set_tag(tag: u8) -> u8 {
    read(|local| local.tag.replace(tag), 0)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
