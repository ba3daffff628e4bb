//! Thread slots: a small number for each thread that allocates, and the tag it allocates under.
//!
//! A thread takes the lowest free thread slot when it first allocates and gives it back when it ends. The next
//! thread takes over the thread slot with whatever lies behind its gates: magazines, and counts. That is
//! sound because a thread slot passes through a lock, so all that the thread before did happens before, and
//! because nothing behind a gate means a thread: magazines are by stream, and no two streams have the
//! same handle (the pool gives the default stream of each thread a handle of its own). A magazine of
//! a stream that only the thread before used is not used again; it is drained with the others and is
//! the first to be evicted.

use super::fork::Whole;
use core::cell::Cell;
use core::ptr::NonNull;
use std::collections::BTreeSet;

/// How many threads can have a thread slot at once: more than a system lets a process have by default. The
/// others are served without magazines, and get a thread slot when one is free.
pub const MOST_SLOTS: usize = 1 << 16;

/// The thread has not asked yet.
const UNASKED: usize = usize::MAX;
/// There was none for it: all were taken, or it is about to end.
const NONE: usize = usize::MAX - 1;

/// How often a thread without a thread slot is served before it asks again. Asking takes a lock that all
/// threads share, as does being served without a thread slot.
const ASK_AGAIN: u32 = 1024;

/// What a thread has of its own, without a destructor so that reaching it is one instruction.
struct Local {
    slot: Cell<usize>,
    tag: Cell<u8>,
    /// How often it was served without a thread slot since it last asked for one.
    without_slot: Cell<u32>,
    /// The pool this thread was in last, and its place there.
    pool: Cell<u64>,
    place: Cell<NonNull<()>>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            slot: Cell::new(UNASKED),
            tag: Cell::new(0),
            without_slot: Cell::new(0),
            pool: Cell::new(0),
            place: Cell::new(NonNull::dangling()),
        }
    };
    /// Gives the thread slot back when the thread ends.
    static LEASE: Lease = Lease::take();
}

/// The thread slots of a process.
struct ThreadSlots {
    /// Those that were given back.
    free: BTreeSet<usize>,
    /// How many were ever taken.
    taken: usize,
}

/// Whole in a forked child, whose thread keeps the thread slot it has. Those of the parent's other threads stay taken.
static SLOTS: Whole<ThreadSlots> = Whole::new(ThreadSlots { free: BTreeSet::new(), taken: 0 });

impl ThreadSlots {
    /// The lowest that is free, so that the same program takes the same thread slots; `None` where `most` are
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
struct Lease(Cell<Option<usize>>);

impl Lease {
    fn take() -> Self {
        Self(Cell::new(SLOTS.lock().take(MOST_SLOTS)))
    }

    /// The thread slot, asked for again where there was none.
    fn slot(&self) -> Option<usize> {
        if self.0.get().is_none() {
            self.0.set(SLOTS.lock().take(MOST_SLOTS));
        }
        self.0.get()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Destructors that run after this one allocate without a thread slot.
        LOCAL.with(|local| {
            local.slot.set(NONE);
            local.pool.set(0);
        });
        if let Some(slot) = self.0.get() {
            SLOTS.lock().free.insert(slot);
        }
    }
}

/// Reads something of the thread's own. There is always something to read: [`Local`] has no destructor.
/// (`try_with` where `with` would do: it is the one that is made to be inlined.)
#[inline(always)]
fn read<R>(of: impl FnOnce(&Local) -> R, otherwise: R) -> R {
    LOCAL.try_with(of).unwrap_or(otherwise)
}

/// The slot of this thread: no other living thread has it. What a thread did in its thread slot happens
/// before whatever the next one does there.
#[inline(always)]
pub fn mine() -> Option<usize> {
    let slot = read(|local| local.slot.get(), NONE);
    if slot < MOST_SLOTS { Some(slot) } else { ask(slot) }
}

#[cold]
fn ask(slot: usize) -> Option<usize> {
    let again = LOCAL.with(|local| {
        let without_slot = local.without_slot.get().wrapping_add(1);
        local.without_slot.set(without_slot % ASK_AGAIN);
        without_slot >= ASK_AGAIN
    });
    if slot != UNASKED && !again {
        return None;
    }
    // An error where the thread is about to end.
    let given = LEASE.try_with(Lease::slot).ok().flatten();
    LOCAL.with(|local| local.slot.set(given.unwrap_or(NONE)));
    given
}

/// What [`remember`] was given last by this thread, if that was for `pool`.
#[inline(always)]
pub fn remembered(pool: u64) -> Option<NonNull<()>> {
    read(|local| (local.pool.get() == pool).then(|| local.place.get()), None)
}

/// Remembers this thread's place in a pool, until it is in another. A thread without a thread slot has no
/// place. Pools have numbers from 1 on.
pub fn remember(pool: u64, place: NonNull<()>) {
    if remembered(pool).is_none() && mine().is_some() {
        LOCAL.with(|local| {
            local.place.set(place);
            local.pool.set(pool);
        });
    }
}

/// The tag this thread allocates under.
#[inline(always)]
pub fn tag() -> u8 {
    read(|local| local.tag.get(), 0)
}

/// Changes the tag; gives the one before.
#[inline(always)]
pub fn set_tag(tag: u8) -> u8 {
    read(|local| local.tag.replace(tag), 0)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn living_threads_have_different_seats_and_the_next_takes_a_free_one() {
        let _alone = alone();
        let barrier = std::sync::Barrier::new(4);
        let slots: Vec<usize> = std::thread::scope(|scope| {
            let spawn = || {
                scope.spawn(|| {
                    let slot = mine().unwrap();
                    barrier.wait();
                    assert_eq!(mine(), Some(slot));
                    slot
                })
            };
            let threads = [spawn(), spawn(), spawn(), spawn()];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let different: BTreeSet<usize> = slots.iter().copied().collect();
        assert_eq!(different.len(), 4, "{slots:?}");
    }

    #[test]
    fn hundreds_of_living_threads_each_have_a_seat() {
        let _alone = alone();
        const THREADS: usize = if cfg!(miri) { 10 } else { 600 };
        let barrier = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let spawn = |_| {
                let slot = || {
                    let slot = mine();
                    barrier.wait();
                    assert!(slot.is_some());
                };
                let small = std::thread::Builder::new().stack_size(64 << 10);
                small.spawn_scoped(scope, slot).unwrap()
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Every thread slot is taken, then one is given back: a thread that found none goes without for so long, and
    /// then has that one.
    #[test]
    fn a_thread_without_a_seat_gets_one_when_it_is_free() {
        let mut slots = ThreadSlots { free: BTreeSet::new(), taken: 0 };
        assert_eq!([slots.take(2), slots.take(2), slots.take(2)], [Some(0), Some(1), None]);
        slots.free.insert(0);
        assert_eq!([slots.take(2), slots.take(2)], [Some(0), None]);

        let _alone = alone();
        let (taken, free) = {
            let mut slots = SLOTS.lock();
            (core::mem::replace(&mut slots.taken, MOST_SLOTS), core::mem::take(&mut slots.free))
        };
        let late = std::thread::spawn(move || {
            // It asks at the first call and at every `ASK_AGAIN`th, and finds none.
            let calls = (1..=3 * ASK_AGAIN).find(|_| mine().is_some());
            assert_eq!(calls, None);
            remember(u64::MAX, NonNull::dangling());
            assert_eq!(remembered(u64::MAX), None, "it has no place in a pool");
            let last = MOST_SLOTS - 1;
            SLOTS.lock().free.insert(last);
            let calls = (1..=2 * ASK_AGAIN).find(|_| mine().is_some());
            assert!(calls.is_some_and(|calls| calls <= ASK_AGAIN), "{calls:?}");
            assert_eq!([mine(), LEASE.with(|lease| lease.0.get())], [Some(last); 2]);
            remember(u64::MAX, NonNull::dangling());
            assert_eq!(remembered(u64::MAX), Some(NonNull::dangling()));
        })
        .join();
        let mut slots = SLOTS.lock();
        let given_back = slots.free.remove(&(MOST_SLOTS - 1));
        slots.taken = taken;
        slots.free.extend(free);
        drop(slots);
        late.unwrap();
        assert!(given_back, "it gives its slot back when it ends");
    }

    /// Has the tests that take thread slots come one after the other: one of them takes all. Each joins its threads,
    /// so that their thread slots are back when the next test comes, and takes none on its own thread.
    fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        crate::lock(&ALONE)
    }
}
