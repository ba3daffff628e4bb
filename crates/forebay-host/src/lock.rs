//! Locks pages in memory.
//!
//! The system does not count locks: unlocking a page once undoes every lock of it. Registered spans begin and end
//! anywhere, so two may share a page, and two devices may register the same memory. One process-wide list records which
//! spans still need a page.

use std::sync::MutexGuard;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Call, Error};
use forebay_sync::fork::PerProcess;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use crate::mapping::{pointer, system_page};
use crate::system::System;

/// Every locked span of the process, in whole pages. A list, not an index: locking costs the system
/// more for each page than a look through thousands of spans. In a forked child no page is locked.
static LOCKED: PerProcess<Vec<Span>> = PerProcess::new();

/// Held across the system's calls, so that no page is unlocked by one thread while another thread
/// takes it as locked.
fn locked() -> MutexGuard<'static, Vec<Span>> {
    LOCKED.lock()
}

/// A span whose pages stay in memory until this value goes.
#[derive(Debug)]
pub(crate) struct LockedSpan {
    pages: Span,
}

impl LockedSpan {
    /// Locks the pages that `span` touches.
    pub(crate) fn new(span: Span) -> Result<Self, Errno> {
        let pages = whole_pages(span).ok_or(Errno::INVAL)?;
        let mut all = locked();
        let length = pages.size().to_usize().map_err(|_| Errno::NOMEM)?;
        // SAFETY: locking changes neither what memory holds nor who may use it; addresses where
        // nothing is mapped are refused.
        if let Err(errno) = unsafe { rustix::mm::mlock(pointer(pages.start()).cast(), length) } {
            // What was locked before the system refused.
            unlock(pages, &all);
            return Err(errno);
        }
        all.push(pages);
        Ok(Self { pages })
    }
}

impl Drop for LockedSpan {
    fn drop(&mut self) {
        let mut all = locked();
        if let Some(index) = all.iter().position(|span| *span == self.pages) {
            all.swap_remove(index);
        }
        unlock(self.pages, &all);
    }
}

/// The pages that `span` touches; `None` where they would pass the end of the addresses.
fn whole_pages(span: Span) -> Option<Span> {
    let page = system_page();
    let start = Bytes::new(span.start().get()).align_down(page);
    let end = span.end().checked_align_up(page)?;
    let size = end.offset_from(Address::new(start.get()))?;
    Span::new(Address::new(start.get()), size).ok()
}

/// Unlocks what of `pages` no span of `kept` touches.
fn unlock(pages: Span, kept: &[Span]) {
    let mut near: Vec<Span> = kept.iter().copied().filter(|span| span.overlaps(pages)).collect();
    near.sort_unstable();
    let mut next = pages.start();
    for span in near {
        unlock_between(next, span.start());
        next = next.max(span.end());
    }
    unlock_between(next, pages.end());
}

fn unlock_between(start: Address, end: Address) {
    let Some(length) = end.offset_from(start).and_then(|size| size.to_usize().ok()) else { return };
    if length > 0 {
        // SAFETY: unlocking changes neither what memory holds nor who may use it. The system
        // refuses only addresses where nothing is mapped, and there nothing is locked either.
        let _ = unsafe { rustix::mm::munlock(pointer(start).cast(), length) };
    }
}

/// The error where the system's limit on locked memory is why `requested` could not be locked;
/// `None` where it is not the reason.
pub(crate) fn limit_reached(call: Call, requested: Bytes, errno: Errno) -> Option<Error> {
    let system = System::here();
    let limits = system.limits();
    // Two questions, because leave to pass the limit is a thread's, and counts only where the
    // process is not in a namespace of users of its own.
    let exempt = may_lock_freely() && limits.locks_freely == Ok(true);
    if !matches!(errno, Errno::NOMEM | Errno::PERM) || exempt {
        return None;
    }
    let total = Bytes::new(limits.locked_memory.ok()?.soft?);
    let free = total.saturating_sub(locked_bytes(&system));
    let pages = requested.checked_align_up(system_page()).unwrap_or(Bytes::MAX);
    (pages > free).then_some(Error::OutOfMemory { call, requested, free, total })
}

/// Whether this thread has leave to pass the system's limit.
fn may_lock_freely() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK))
}

/// How much memory this process has locked, by any library.
fn locked_bytes(system: &System) -> Bytes {
    let text = system.text("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    Bytes::new(forebay_core::KIB).checked_mul(kib.unwrap_or(0)).unwrap_or_default()
}
