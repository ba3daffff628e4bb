//! Seats: a small number for each thread that allocates, and the tag it allocates under.

use super::lock;
use core::cell::Cell;
use core::ptr::NonNull;
use std::collections::BTreeSet;
use std::sync::Mutex;

/// How many threads can have a seat at once. The others are served, but not from magazines.
pub(crate) const SEATS: usize = 256;

/// The thread has not asked yet.
const UNASKED: usize = usize::MAX;
/// There is none for it: all are taken, or it is about to end.
const NONE: usize = usize::MAX - 1;

/// What a thread has of its own, without a destructor so that reaching it is one instruction.
struct Local {
    seat: Cell<usize>,
    tag: Cell<u8>,
    /// The pool this thread was in last, and its place there.
    pool: Cell<u64>,
    place: Cell<NonNull<()>>,
}

thread_local! {
    static LOCAL: Local = const {
        Local {
            seat: Cell::new(UNASKED),
            tag: Cell::new(0),
            pool: Cell::new(0),
            place: Cell::new(NonNull::dangling()),
        }
    };
    /// Gives the seat back when the thread ends.
    static LEASE: Lease = Lease::take();
}

/// Seats that were given back, and how many were ever given.
static FREE: Mutex<(BTreeSet<usize>, usize)> = Mutex::new((BTreeSet::new(), 0));

struct Lease(Option<usize>);

impl Lease {
    fn take() -> Self {
        let mut free = lock(&FREE);
        // The lowest, so that the same program takes the same seats.
        let again = free.0.pop_first();
        Self(again.or_else(|| {
            let next = free.1;
            (next < SEATS).then(|| {
                free.1 = next + 1;
                next
            })
        }))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // Destructors that run after this one allocate without a seat.
        LOCAL.with(|local| {
            local.seat.set(NONE);
            local.pool.set(0);
        });
        if let Some(seat) = self.0 {
            lock(&FREE).0.insert(seat);
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
pub(crate) fn mine() -> Option<usize> {
    let seat = read(|local| local.seat.get(), NONE);
    if seat < SEATS { Some(seat) } else { ask(seat) }
}

#[cold]
fn ask(seat: usize) -> Option<usize> {
    if seat != UNASKED {
        return None;
    }
    let given = LEASE.try_with(|lease| lease.0).ok().flatten();
    LOCAL.with(|local| local.seat.set(given.unwrap_or(NONE)));
    given
}

/// What [`remember`] was given last by this thread, if that was for `pool`.
#[inline(always)]
pub(crate) fn remembered(pool: u64) -> Option<NonNull<()>> {
    read(|local| (local.pool.get() == pool).then(|| local.place.get()), None)
}

/// Remembers this thread's place in a pool, until it is in another. A thread without a seat has no
/// place. Pools have numbers from 1 on.
pub(crate) fn remember(pool: u64, place: NonNull<()>) {
    if remembered(pool).is_none() && mine().is_some() {
        LOCAL.with(|local| {
            local.place.set(place);
            local.pool.set(pool);
        });
    }
}

/// The tag this thread allocates under.
#[inline(always)]
pub(crate) fn tag() -> u8 {
    read(|local| local.tag.get(), 0)
}

/// Changes the tag; gives the one before.
#[inline(always)]
pub(crate) fn set_tag(tag: u8) -> u8 {
    read(|local| local.tag.replace(tag), 0)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn living_threads_have_different_seats_and_the_next_takes_a_free_one() {
        let own = mine().unwrap();
        let barrier = std::sync::Barrier::new(3);
        let seats: Vec<usize> = std::thread::scope(|scope| {
            let spawn = || {
                scope.spawn(|| {
                    let seat = mine().unwrap();
                    barrier.wait();
                    assert_eq!(mine(), Some(seat));
                    seat
                })
            };
            let threads = [spawn(), spawn(), spawn()];
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let different: BTreeSet<usize> = seats.iter().copied().chain([own]).collect();
        assert_eq!(different.len(), 4, "{seats:?} and {own}");
    }
}
