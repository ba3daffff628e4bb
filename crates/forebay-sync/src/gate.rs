//! Gates: data that its owner thread accesses almost for free, and other threads by shutting the owner out.
//!
//! ```text
//!   owner                         visitor, one at a time
//!   inside = yes                  SHUT = 1
//!   light barrier                 heavy barrier
//!   state = 0? ── no ─> inside =  inside? ── yes, and it stays so ──> wait, or ASKED = 1
//!     │           no, slow path     │                                 SHUT = 0, pass over
//!    yes: work                      no: work
//!   inside = no                   SHUT = 0
//! ```
//!
//! Each side writes its flag and then reads the other's, with a barrier between, so at least one of
//! them sees the other. The owner's fast path has no atomic read-modify-write and, where the system
//! helps, no barrier instruction ([`barrier`]).
//!
//! The state is one byte, so that the fast path tests all of it at once; any bit sends the owner to
//! the slow path:
//!
//! * `SHUT`: a visitor is at the data, or waits until the owner has left.
//! * `FENCED`: the owner takes full barriers. Set once and never cleared.
//! * `ASKED`: a visitor that would not wait found the owner inside and passed it over. The owner does
//!   the visitor's work itself before it goes on ([`Gate::take_request`]). The visitor sets the bit
//!   while the gate is shut, after its heavy barrier: the owner's next entry sees `SHUT` or what
//!   follows it, so a request is never missed.
//! * `EMPTIED`: a visitor took everything out, and the owner has not entered since. Visitors that
//!   look for something to take skip the gate without shutting it. The owner's next entry clears it.
//! * `COUNTED`: a visitor has counted what is there, and it has not changed since. Visitors that count skip the gate.
//!   The owner's next entry clears it, and so does a visit that may change the data.

use super::atomic::{AtomicBool, AtomicU8, Ordering};
use super::barrier;
#[cfg(not(loom))]
use core::cell::UnsafeCell;
#[cfg(loom)]
use loom::cell::UnsafeCell;

// The bits of the state. If it is 0, the owner may enter with a light barrier.
const SHUT: u8 = 1;
const FENCED: u8 = 2;
const ASKED: u8 = 4;
const EMPTIED: u8 = 8;
const COUNTED: u8 = 16;

/// Data with an owner. Its own cache lines, so that owners do not slow each other.
#[derive(Debug)]
#[repr(align(128))]
pub struct Gate<T> {
    inside: AtomicBool,
    state: AtomicU8,
    data: UnsafeCell<T>,
}

// SAFETY: the flags let one thread at a time at the data, each after the other (see `pass`, `enter`
// and `ShutGate`), so it is moved between threads and never shared.
unsafe impl<T: Send> Sync for Gate<T> {}

/// The owner inside: leaves when dropped, also on a panic.
struct InsideFlag<'a>(&'a AtomicBool);

impl Drop for InsideFlag<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> Gate<T> {
    /// An open gate with `data` behind it.
    pub fn new(data: T) -> Self {
        let state = if barrier::one_sided() { 0 } else { FENCED };
        Self {
            inside: AtomicBool::new(false),
            state: AtomicU8::new(state),
            data: UnsafeCell::new(data),
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
    pub unsafe fn pass(&self) -> Option<OwnerGuard<'_, T>> {
        self.inside.store(true, Ordering::Relaxed);
        barrier::light();
        let inside = InsideFlag(&self.inside);
        if self.state.load(Ordering::Acquire) != 0 {
            return None;
        }
        // SAFETY: the flag is up and the gate was open after that.
        Some(unsafe { self.let_in(inside) })
    }

    /// The same with a full barrier, whatever visitors have left behind: `None` only while the gate is shut.
    ///
    /// # Safety
    ///
    /// * As for [`pass`](Self::pass).
    pub unsafe fn pass_fenced(&self) -> Option<OwnerGuard<'_, T>> {
        self.inside.store(true, Ordering::Relaxed);
        barrier::full();
        let inside = InsideFlag(&self.inside);
        let state = self.state.load(Ordering::Acquire);
        if state & SHUT != 0 {
            return None;
        }
        if state & (EMPTIED | COUNTED) != 0 {
            self.state.fetch_and(!(EMPTIED | COUNTED), Ordering::Relaxed);
        }
        // SAFETY: as in `pass`.
        Some(unsafe { self.let_in(inside) })
    }

    /// The data for the owner, who is inside.
    ///
    /// # Safety
    ///
    /// * The flag went up before the gate was seen open, and [`pass`](Self::pass)'s conditions hold.
    #[inline(always)]
    unsafe fn let_in<'a>(&'a self, inside: InsideFlag<'a>) -> OwnerGuard<'a, T> {
        // SAFETY: a visitor that shuts the gate waits until the flag is down. The caller is the only owner and has entered
        // once.
        #[cfg(not(loom))]
        let data = self.data.get();
        #[cfg(loom)]
        let data = self.data.get_mut();
        OwnerGuard { data, inside }
    }

    /// Runs `work` with the data; does nothing and returns `None` while the gate is shut.
    ///
    /// # Safety
    ///
    /// * As for [`pass`](Self::pass); `work` does not enter or shut this gate.
    pub unsafe fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the caller's promise.
        let mut passed = unsafe { self.pass_fenced() }?;
        let done = work(passed.data());
        passed.leave();
        Some(done)
    }

    /// Whether a visitor passed the owner over and left its work to it.
    pub fn is_asked(&self) -> bool {
        self.state.load(Ordering::Relaxed) & ASKED != 0
    }

    /// Takes the request of visitors that passed the owner over. For the owner, inside the gate, before
    /// it does what was asked for: a request that comes meanwhile stays for the next entry.
    pub fn take_request(&self) {
        self.state.fetch_and(!ASKED, Ordering::Relaxed);
    }

    /// Leaves work to the owner, wherever it is: one of its next entries sees it.
    pub(super) fn ask(&self) {
        self.state.fetch_or(ASKED, Ordering::Relaxed);
    }

    /// Whether the gate was emptied and its owner has not entered since.
    pub(super) fn is_emptied(&self) -> bool {
        self.state.load(Ordering::Relaxed) & EMPTIED != 0
    }

    /// Whether what is behind the gate was counted and has not changed since.
    pub(super) fn is_counted(&self) -> bool {
        self.state.load(Ordering::Relaxed) & COUNTED != 0
    }
}

/// The owner inside, with the data. Leaves when dropped.
pub struct OwnerGuard<'a, T> {
    // A pointer, because a reference that is passed to a function must stay valid until it returns: a visitor may enter
    // before `leave` returns.
    #[cfg(not(loom))]
    data: *mut T,
    #[cfg(loom)]
    data: loom::cell::MutPtr<T>,
    inside: InsideFlag<'a>,
}

impl<T> OwnerGuard<'_, T> {
    /// The data.
    #[inline(always)]
    pub fn data(&mut self) -> &mut T {
        // SAFETY: the flag is up while the guard is there (see `let_in`), and the guard is borrowed as long as the data.
        #[cfg(not(loom))]
        return unsafe { &mut *self.data };
        #[cfg(loom)]
        // SAFETY: likewise, and the model checker looks.
        return unsafe { self.data.deref() };
    }

    /// Leaves.
    #[inline(always)]
    pub fn leave(self) {
        let Self { data, inside } = self;
        #[cfg(loom)]
        drop(data);
        #[cfg(not(loom))]
        let _ = data;
        drop(inside);
    }
}

/// Calls `work` with the contents of a cell.
///
/// # Safety
///
/// * Nothing else accesses the data.
#[inline(always)]
unsafe fn with<T, R>(cell: &UnsafeCell<T>, work: impl FnOnce(&mut T) -> R) -> R {
    #[cfg(not(loom))]
    // SAFETY: the caller promises that nothing else accesses the data.
    return work(unsafe { &mut *cell.get() });
    #[cfg(loom)]
    // SAFETY: likewise, and the model checker looks.
    return cell.with_mut(|data| work(unsafe { &mut *data }));
}

/// What a visit leaves behind the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterVisit {
    /// Nothing that another visitor could take.
    Empty,
    /// Perhaps something to take.
    NotEmpty,
    /// The same as before.
    Unchanged,
    /// The same as before, and counted.
    Counted,
}

/// A gate that its visitor has shut. Opens when dropped, also on a panic.
#[derive(Debug)]
pub(super) struct ShutGate<'a, T> {
    pub(super) gate: &'a Gate<T>,
    /// Whether the owner may have entered with a light barrier.
    light: bool,
}

impl<'a, T> ShutGate<'a, T> {
    /// Shuts the owner out from its next entry on.
    ///
    /// # Safety
    ///
    /// * One thread at a time visits a gate, and each sees what the one before did.
    pub(super) unsafe fn new(gate: &'a Gate<T>) -> Self {
        let before = gate.state.fetch_or(SHUT, Ordering::Relaxed);
        Self { gate, light: before & FENCED == 0 }
    }

    /// Passes the barrier between shutting gates and looking whether their owners are inside.
    pub(super) fn pass_barrier(gates: &[Self]) {
        if !gates.iter().any(|shut| shut.light) {
            // All owners take full barriers, and so may this side.
            barrier::full();
        } else if !barrier::heavy() {
            // The barrier is passed, but the next would take milliseconds. An owner's next entry sees
            // SHUT or what follows it, and this is set before the gate opens.
            for shut in gates {
                shut.gate.state.fetch_or(FENCED, Ordering::Relaxed);
            }
        }
    }

    /// Runs `work` with the data if the owner has left; does nothing and returns `false` while it is inside.
    ///
    /// # Safety
    ///
    /// * The [barrier](Self::pass_barrier) was passed since the gate was shut, or the calling thread is the owner.
    pub(super) unsafe fn visit(&self, work: impl FnOnce(&mut T) -> AfterVisit) -> bool {
        if self.gate.inside.load(Ordering::Acquire) {
            return false;
        }
        // SAFETY: the gate is shut and its owner was outside after that, so it stays outside until the
        // gate opens; this thread is the only visitor.
        let left = unsafe { with(&self.gate.data, work) };
        let state = &self.gate.state;
        if matches!(left, AfterVisit::Empty | AfterVisit::NotEmpty) && self.gate.is_counted() {
            state.fetch_and(!COUNTED, Ordering::Relaxed);
        }
        match left {
            AfterVisit::Empty => _ = state.fetch_or(EMPTIED, Ordering::Relaxed),
            AfterVisit::Counted => _ = state.fetch_or(COUNTED, Ordering::Relaxed),
            AfterVisit::NotEmpty | AfterVisit::Unchanged => {}
        }
        true
    }
}

impl<T> Drop for ShutGate<'_, T> {
    fn drop(&mut self) {
        self.gate.state.fetch_and(!SHUT, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(loom)]
mod tests;
