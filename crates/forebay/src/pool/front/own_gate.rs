//! The calling thread's gate of a pool, which it enters however long that takes.

use std::sync::atomic::Ordering;

use super::Front;
use super::thread_cache::ThreadCaches;
use crate::sync::gate::{Gate, OwnerGuard};
use crate::sync::tracked::try_lock;

/// This thread's gate of a pool.
#[derive(Clone, Copy)]
pub(super) struct OwnGate<'a> {
    gate: &'a Gate<ThreadCaches>,
    front: &'a Front,
}

impl Front {
    /// This thread's gate, created if it has none; `None` if no thread slots are left.
    #[inline]
    pub(super) fn own_gate(&self) -> Option<OwnGate<'_>> {
        let epoch = self.epoch.load(Ordering::Relaxed);
        let gate = self.remembered_gate(epoch).or_else(|| self.find_gate(epoch))?;
        Some(OwnGate { gate, front: self })
    }

    /// Runs `work` with this thread's caches, created if it has none; `None` if no thread slots are left. `work` must not
    /// enter a gate itself.
    #[inline(always)]
    pub(in crate::pool) fn with_own<R>(
        &self,
        work: impl FnOnce(&mut ThreadCaches) -> R,
    ) -> Option<R> {
        Some(self.own_gate()?.enter(work))
    }
}

impl<'a> OwnGate<'a> {
    /// Runs `work` inside the gate.
    #[inline(always)]
    pub(super) fn enter<R>(self, work: impl FnOnce(&mut ThreadCaches) -> R) -> R {
        // SAFETY: the gate belongs to this thread by its thread slot, and `work` enters no gate.
        let mut passed = match unsafe { self.gate.pass() } {
            Some(passed) => passed,
            None => self.wait_and_pass(),
        };
        work(passed.data())
    }

    #[cold]
    #[inline(never)]
    fn wait_and_pass(self) -> OwnerGuard<'a, ThreadCaches> {
        loop {
            if self.gate.is_asked() {
                self.serve_flush_request();
            }
            // SAFETY: as in `enter`.
            if let Some(passed) = unsafe { self.gate.pass_fenced() } {
                return passed;
            }
            self.front.all.0.wait();
        }
    }

    /// Does what a visitor asked for when it passed over this thread: flushes the magazines and applies their bound. If
    /// the heap is locked, perhaps by this thread, the request stays for the next entry.
    fn serve_flush_request(self) {
        let Some(mut heap) = try_lock(&self.front.heap) else { return };
        let mut returns = Vec::new();
        let flush = |caches: &mut ThreadCaches| {
            self.gate.take_request();
            caches.set_bound(self.front.bound.load(Ordering::Relaxed));
            caches.drain(&mut returns);
            // Inside the gate: no stream is forgotten before its blocks are in the heap.
            heap.free_all(core::mem::take(&mut returns));
        };
        // SAFETY: as in `enter`.
        unsafe { self.gate.enter(flush) };
    }
}
