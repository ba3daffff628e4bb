//! Seats: a small number for each thread that allocates, and the tag it allocates under.
//!
//! A thread takes the lowest free seat when it first allocates and gives it back when it ends. The next
//! thread takes over the seat with whatever lies behind its gates: magazines, and counts. That is
//! sound because a seat passes through a lock, so all that the thread before did happens before, and
//! because nothing behind a gate means a thread: magazines are by stream, and no two streams have the
//! same handle (the pool gives the default stream of each thread a handle of its own). A magazine of
//! a stream that only the thread before used is not used again; it is drained with the others and is
//! the first to be evicted.

use super::fork::Whole;
use core::cell::Cell;
use core::ptr::NonNull;
use std::collections::BTreeSet;

/// How many threads can have a seat at once: more than a system lets a process have by default. The
/// others are served without magazines, and get a seat when one is free.
pub const SEATS: usize = 1 << 16;

/// The thread has not asked yet.
const UNASKED: usize = usize::MAX;
/// There was none for it: all were taken, or it is about to end.
const NONE: usize = usize::MAX - 1;

/// How often a thread without a seat is served before it asks again. Asking takes a lock that all
/// threads share, as does being served without a seat.
const ASK_AGAIN: u32 = 1024;

/// What a thread has of its own, without a destructor so that reaching it is one instruction.
struct Local {
    seat: Cell<usize>,
    tag: Cell<u8>,
    /// How often it was served without a seat since it last asked for one.
    unseated: Cell<u32>,
    /// The pool this thread was in last, and its place there.
    pool: Cell<u64>,
    place: Cell<NonNull<()>>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            seat: Cell::new(UNASKED),
            tag: Cell::new(0),
            unseated: Cell::new(0),
            pool: Cell::new(0),
            place: Cell::new(NonNull::dangling()),
        }
    };
    /// Gives the seat back when the thread ends.
    static LEASE: Lease = Lease::take();
}

/// The seats of a process.
struct Seats {
    /// Those that were given back.
    free: BTreeSet<usize>,
    /// How many were ever taken.
    taken: usize,
}

/// Whole in a forked child, whose thread keeps the seat it has. Those of the parent's other threads stay taken.
static SEATS_LEFT: Whole<Seats> = Whole::new(Seats { free: BTreeSet::new(), taken: 0 });

impl Seats {
    /// The lowest that is free, so that the same program takes the same seats; `None` where `most` are
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

/// A thread's seat, if it has one.
struct Lease(Cell<Option<usize>>);

impl Lease {
    fn take() -> Self {
        Self(Cell::new(SEATS_LEFT.lock().take(SEATS)))
    }

    /// The seat, asked for again where there was none.
    fn seat(&self) -> Option<usize> {
        if self.0.get().is_none() {
            self.0.set(SEATS_LEFT.lock().take(SEATS));
        }
        self.0.get()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Destructors that run after this one allocate without a seat.
        LOCAL.with(|local| {
            local.seat.set(NONE);
            local.pool.set(0);
        });
        if let Some(seat) = self.0.get() {
            SEATS_LEFT.lock().free.insert(seat);
        }
    }
}

/// Reads something of the thread's own. There is always something to read: [`Local`] has no destructor.
/// (`try_with` where `with` would do: it is the one that is made to be inlined.)
#[inline(always)]
fn read<R>(of: impl FnOnce(&Local) -> R, otherwise: R) -> R {
    LOCAL.try_with(of).unwrap_or(otherwise)
}

/// The seat of this thread: no other living thread has it. What a thread did in its seat happens
/// before whatever the next one does there.
#[inline(always)]
pub fn mine() -> Option<usize> {
    let seat = read(|local| local.seat.get(), NONE);
    if seat < SEATS { Some(seat) } else { ask(seat) }
}

#[cold]
fn ask(seat: usize) -> Option<usize> {
    let again = LOCAL.with(|local| {
        let unseated = local.unseated.get().wrapping_add(1);
        local.unseated.set(unseated % ASK_AGAIN);
        unseated >= ASK_AGAIN
    });
    if seat != UNASKED && !again {
        return None;
    }
    // An error where the thread is about to end.
    let given = LEASE.try_with(Lease::seat).ok().flatten();
    LOCAL.with(|local| local.seat.set(given.unwrap_or(NONE)));
    given
}

/// What [`remember`] was given last by this thread, if that was for `pool`.
#[inline(always)]
pub fn remembered(pool: u64) -> Option<NonNull<()>> {
    read(|local| (local.pool.get() == pool).then(|| local.place.get()), None)
}

/// Remembers this thread's place in a pool, until it is in another. A thread without a seat has no
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
        let seats: Vec<usize> = std::thread::scope(|scope| {
            let spawn = || {
                scope.spawn(|| {
                    let seat = mine().unwrap();
                    barrier.wait();
                    assert_eq!(mine(), Some(seat));
                    seat
                })
            };
            let threads = [spawn(), spawn(), spawn(), spawn()];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let different: BTreeSet<usize> = seats.iter().copied().collect();
        assert_eq!(different.len(), 4, "{seats:?}");
    }

    #[test]
    fn hundreds_of_living_threads_each_have_a_seat() {
        let _alone = alone();
        const THREADS: usize = if cfg!(miri) { 10 } else { 600 };
        let barrier = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            let spawn = |_| {
                let seat = || {
                    let seat = mine();
                    barrier.wait();
                    assert!(seat.is_some());
                };
                let small = std::thread::Builder::new().stack_size(64 << 10);
                small.spawn_scoped(scope, seat).unwrap()
            };
            let threads: Vec<_> = (0..THREADS).map(spawn).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Every seat is taken, then one is given back: a thread that found none goes without for so long, and
    /// then has that one.
    #[test]
    fn a_thread_without_a_seat_gets_one_when_it_is_free() {
        let mut seats = Seats { free: BTreeSet::new(), taken: 0 };
        assert_eq!([seats.take(2), seats.take(2), seats.take(2)], [Some(0), Some(1), None]);
        seats.free.insert(0);
        assert_eq!([seats.take(2), seats.take(2)], [Some(0), None]);

        let _alone = alone();
        let (taken, free) = {
            let mut seats = SEATS_LEFT.lock();
            (core::mem::replace(&mut seats.taken, SEATS), core::mem::take(&mut seats.free))
        };
        let late = std::thread::spawn(move || {
            // It asks at the first call and at every `ASK_AGAIN`th, and finds none.
            let calls = (1..=3 * ASK_AGAIN).find(|_| mine().is_some());
            assert_eq!(calls, None);
            remember(u64::MAX, NonNull::dangling());
            assert_eq!(remembered(u64::MAX), None, "it has no place in a pool");
            let last = SEATS - 1;
            SEATS_LEFT.lock().free.insert(last);
            let calls = (1..=2 * ASK_AGAIN).find(|_| mine().is_some());
            assert!(calls.is_some_and(|calls| calls <= ASK_AGAIN), "{calls:?}");
            assert_eq!([mine(), LEASE.with(|lease| lease.0.get())], [Some(last); 2]);
            remember(u64::MAX, NonNull::dangling());
            assert_eq!(remembered(u64::MAX), Some(NonNull::dangling()));
        })
        .join();
        let mut seats = SEATS_LEFT.lock();
        let given_back = seats.free.remove(&(SEATS - 1));
        seats.taken = taken;
        seats.free.extend(free);
        drop(seats);
        late.unwrap();
        assert!(given_back, "it gives its seat back when it ends");
    }

    /// Has the tests that take seats come one after the other: one of them takes all. Each joins its threads,
    /// so that their seats are back when the next test comes, and takes none on its own thread.
    fn alone() -> std::sync::MutexGuard<'static, ()> {
        static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
        crate::lock(&ALONE)
    }
}
