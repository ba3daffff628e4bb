//! Gates: data that one thread enters almost for free, and any other by shutting it out.
//!
//! ```text
//!   owner                         anyone else, one at a time
//!   inside = yes                  shut = yes
//!   light barrier                 heavy barrier
//!   shut? ── yes ─> inside = no   wait until not inside
//!     │             and wait      work
//!     no: work                    shut = no
//!   inside = no
//! ```
//!
//! Each writes its flag, then reads the other's, with a barrier between: at least one of them sees
//! the other. The owner's way has no atomic read-modify-write and, where the system helps, no
//! barrier ([`barrier`]): whether it does is told by the same byte that tells whether the gate is
//! shut, so that asking costs nothing.

use core::ops::Deref;
use std::sync::{Mutex, OnceLock};

use super::atomic::{AtomicBool, AtomicU8, Ordering};
use super::barrier;

use super::lock;
#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(loom)]
use loom::cell::UnsafeCell;

// The byte of a gate. Where it is 0 the owner may enter with a light barrier.
const SHUT: u8 = 1;
/// The owner needs a full barrier.
const FENCED: u8 = 2;

/// Data with an owner. Its own cache lines, so that owners do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Gate<T> {
    inside: AtomicBool,
    state: AtomicU8,
    room: UnsafeCell<T>,
}

// SAFETY: the flags let one thread at a time at the data, each after the other (see `enter` and
// `Shut`), so it is moved between threads and never shared.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The owner inside: leaves when dropped, by a panic too.
struct Inside<'a>(&'a AtomicBool);

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> Gate<T> {
    pub(crate) fn new(room: T) -> Self {
        let state = if barrier::one_sided() { 0 } else { FENCED };
        Self {
            inside: AtomicBool::new(false),
            state: AtomicU8::new(state),
            room: UnsafeCell::new(room),
        }
    }

    /// Lets the owner in; `None` while the gate is shut or needs more than a light barrier.
    ///
    /// # Safety
    ///
    /// * One thread at a time calls this or [`enter`](Self::enter): the owner of the gate. Where the
    ///   owner changes, what the one before did happens before.
    /// * The owner leaves, by dropping what it is given, before it enters or shuts this gate again.
    // A guard, not a closure: closures are inlined where the compiler likes, and this must be.
    #[inline(always)]
    pub(crate) unsafe fn pass(&self) -> Option<Passed<'_, T>> {
        self.inside.store(true, Ordering::Relaxed);
        barrier::light();
        let inside = Inside(&self.inside);
        if self.state.load(Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: the flag is up and the gate was open after that, so whoever shuts it waits for the
        // flag to go down; the caller promises to be the only owner, and in here once.
        #[cfg(not(loom))]
        let room = unsafe { &mut *self.room.get() };
        #[cfg(loom)]
        let room = self.room.get_mut();
        Some(Passed { room, inside })
    }

    /// Does `work` with the data; `None`, and nothing done, while the gate is shut.
    ///
    /// # Safety
    ///
    /// * As for [`pass`](Self::pass); `work` does not enter or shut this gate.
    pub(crate) unsafe fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.inside.store(true, Ordering::Relaxed);
        barrier::full();
        let inside = Inside(&self.inside);
        if self.state.load(Ordering::Acquire) & SHUT != 0 {
            return None;
        }
        // SAFETY: as in `pass`.
        let done = unsafe { with(&self.room, work) };
        drop(inside);
        Some(done)
    }

    /// Shuts the owner out. One thread at a time does: the keeper.
    fn shut(&self) {
        self.state.fetch_or(SHUT, Ordering::Relaxed);
    }

    /// Waits until the owner, shut out, has left.
    fn wait_until_left(&self) {
        while self.inside.load(Ordering::Acquire) {
            #[cfg(loom)]
            loom::thread::yield_now();
            #[cfg(not(loom))]
            std::thread::yield_now();
        }
    }

    fn open(&self) {
        self.state.fetch_and(!SHUT, Ordering::Release);
    }
}

/// The owner inside, with the data. Leaves when dropped.
pub(crate) struct Passed<'a, T> {
    // Before the flag goes down.
    #[cfg(not(loom))]
    room: &'a mut T,
    #[cfg(loom)]
    room: loom::cell::MutPtr<T>,
    inside: Inside<'a>,
}

impl<T> Passed<'_, T> {
    /// The data.
    #[inline(always)]
    pub(crate) fn room(&mut self) -> &mut T {
        #[cfg(not(loom))]
        return self.room;
        #[cfg(loom)]
        // SAFETY: as in `pass`, and the model checker looks.
        return unsafe { self.room.deref() };
    }

    /// Leaves.
    #[inline(always)]
    pub(crate) fn leave(self) {
        let Self { room, inside } = self;
        #[cfg(loom)]
        drop(room);
        #[cfg(not(loom))]
        let _ = room;
        drop(inside);
    }
}

/// Calls `work` with what is in a cell.
///
/// # Safety
///
/// * Nobody else is at the data.
#[inline(always)]
unsafe fn with<T, R>(cell: &UnsafeCell<T>, work: impl FnOnce(&mut T) -> R) -> R {
    #[cfg(not(loom))]
    // SAFETY: the caller promises that nobody else is at the data.
    return work(unsafe { &mut *cell.get() });
    #[cfg(loom)]
    // SAFETY: likewise, and the model checker looks.
    return cell.with_mut(|room| work(unsafe { &mut *room }));
}

/// A gate for each owner, made when it first comes.
#[derive(Debug)]
pub(crate) struct Gates<T> {
    gates: Box<[OnceLock<Box<Gate<T>>>]>,
    /// Held by whoever has shut them.
    keeper: Mutex<()>,
}

impl<T> Gates<T> {
    /// For at most `count` owners.
    pub(crate) fn new(count: usize) -> Self {
        barrier::prepare();
        Self { gates: (0..count).map(|_| OnceLock::new()).collect(), keeper: Mutex::new(()) }
    }

    /// The gate of an owner, made where there is none.
    pub(crate) fn get_or_make(&self, owner: usize, make: impl FnOnce() -> T) -> Option<&Gate<T>> {
        let made = self.gates.get(owner)?.get_or_init(|| Box::new(Gate::new(make())));
        Some(made)
    }

    /// Waits until nobody has the gates shut.
    pub(crate) fn wait(&self) {
        drop(lock(&self.keeper));
    }

    /// Shuts all gates, calls `work` with what is behind each, and opens them again.
    ///
    /// `work` must not wait for an owner, nor enter or shut these gates.
    pub(crate) fn each(&self, mut work: impl FnMut(&mut T)) {
        let keeper = lock(&self.keeper);
        let open = || self.gates.iter().filter_map(OnceLock::get);
        // A gate made from here on is not among them: as if its owner came after.
        let gates: Vec<&Gate<T>> = open().map(Deref::deref).collect();
        let shut: Vec<Shut<'_, T>> = gates.into_iter().map(Shut::new).collect();
        barrier::heavy();
        // Each opens when it was worked on; by a panic all that are left do.
        for gate in shut {
            gate.0.wait_until_left();
            // SAFETY: the gate is shut and its owner has left; only the keeper's holder shuts gates,
            // and that is this thread.
            unsafe { with(&gate.0.room, &mut work) };
        }
        drop(keeper);
    }
}

/// A shut gate: opens when dropped, by a panic too.
struct Shut<'a, T>(&'a Gate<T>);

impl<'a, T> Shut<'a, T> {
    /// Shuts a gate.
    fn new(gate: &'a Gate<T>) -> Self {
        gate.shut();
        Self(gate)
    }
}

impl<T> Drop for Shut<'_, T> {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Owners add to their own sums while another thread keeps collecting them: nothing is lost and
    /// nothing counted twice.
    #[test]
    fn nothing_is_lost_between_owners_and_a_collector() {
        const OWNERS: usize = 3;
        let steps: u64 = if cfg!(miri) { 50 } else { 200_000 };
        let gates: Gates<[u64; 4]> = Gates::new(OWNERS);
        let mut collected = 0;
        std::thread::scope(|scope| {
            let owners: Vec<_> = (0..OWNERS)
                .map(|owner| {
                    let gates = &gates;
                    scope.spawn(move || {
                        let gate = gates.get_or_make(owner, || [0; 4]).unwrap();
                        for _ in 0..steps {
                            let add = |sums: &mut [u64; 4]| sums.iter_mut().for_each(|s| *s += 1);
                            // SAFETY: this thread alone has this number.
                            if let Some(mut passed) = unsafe { gate.pass() } {
                                add(passed.room());
                                passed.leave();
                                continue;
                            }
                            // SAFETY: likewise.
                            while unsafe { gate.enter(add) }.is_none() {
                                gates.wait();
                            }
                        }
                    })
                })
                .collect();
            while !owners.iter().all(|owner| owner.is_finished()) {
                gates.each(|sums| {
                    assert!(sums.iter().all(|sum| *sum == sums[0]), "seen half way: {sums:?}");
                    collected += core::mem::take(sums)[0];
                });
            }
        });
        gates.each(|sums| collected += core::mem::take(sums)[0]);
        assert_eq!(collected, steps * OWNERS as u64);
    }

    /// Work that panics at one gate leaves none of them shut.
    #[test]
    fn every_gate_opens_again_after_a_panic() {
        let gates: Gates<u32> = Gates::new(3);
        for owner in 0..3 {
            gates.get_or_make(owner, || 0).unwrap();
        }
        let each = || gates.each(|_| panic!("on purpose"));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(each)).unwrap_err();
        for owner in 0..3 {
            let gate = gates.get_or_make(owner, || 0).unwrap();
            // SAFETY: there is one thread here, in no gate.
            assert_eq!(unsafe { gate.enter(|_| ()) }, Some(()), "gate {owner} is shut");
        }
    }
}

#[cfg(test)]
#[cfg(loom)]
mod loom_tests {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// The owner and one who shuts, in every order the memory model allows: never both inside, and
    /// what one wrote the other sees.
    #[test]
    fn loom_owner_and_other_are_never_both_inside() {
        loom::model(|| {
            let gate = Arc::new(Gate::new(0_u32));
            let owner = Arc::clone(&gate);
            let thread = thread::spawn(move || {
                // SAFETY: this thread is the owner.
                let once = unsafe { owner.enter(|sum| *sum += 1) };
                // SAFETY: likewise.
                let twice = unsafe { owner.pass() }.map(|mut passed| {
                    *passed.room() += 1;
                    passed.leave();
                });
                u32::from(once.is_some()) + u32::from(twice.is_some())
            });
            let shut = Shut::new(&gate);
            barrier::heavy();
            gate.wait_until_left();
            // SAFETY: shut, and the owner has left.
            let seen = unsafe { with(&gate.room, |sum| *sum) };
            drop(shut);
            let entered = thread.join().unwrap();
            assert!(seen <= entered);
            gate.shut();
            gate.wait_until_left();
            // SAFETY: the owner's thread has ended.
            assert_eq!(unsafe { with(&gate.room, |sum| *sum) }, entered);
        });
    }
}
