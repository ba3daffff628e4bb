//! Makes pages present, with several threads because clearing pages takes the time.

use core::num::NonZero;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use forebay_core::{Alignment, Bytes, Span};
use forebay_hal::Access;
use forebay_sync::{lock, thread};
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::HugePages;
use crate::backing::advise_huge;
use crate::mapping::{AddressRange, pointer, system_page};
use crate::numa::{self, NumaPolicy};
use crate::system::System;

/// What a thread touches at once: whole huge pages, so that no two threads wait for the same one, and few enough that
/// all threads end together.
const LEAST_PART: usize = 2 << 20;
const MAX_PART: usize = 8 << 20;

/// The most threads that touch: more are no faster (16 cores of an H200's host, 2026-11-17).
const MAX_THREADS: usize = 16;

/// Zeroed memory whose pages are all present, for a driver to pin. Uses huge pages where the system has them. A forked
/// child does not inherit it, because it would share pinned pages with the device.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_host::PrefaultedPages;
///
/// let pages = PrefaultedPages::new(Bytes::mib(8), None)?;
/// assert_eq!(pages.span().size(), Bytes::mib(8));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the memory is given back when this is dropped"]
pub struct PrefaultedPages {
    range: AddressRange,
}

impl PrefaultedPages {
    /// Allocates `size` bytes, rounded up to whole system pages, on NUMA node `node` or else near this thread, unless
    /// the process has its own policy. Fails if this would use up the free memory of the machine or its container: the
    /// system kills a process that touches more.
    pub fn new(size: Bytes, node: Option<u32>) -> Result<Self, Errno> {
        let free = System::here().memory().usable_free().map_err(|_| Errno::NOMEM)?;
        if size > free.saturating_sub(Bytes::new(free.get() / 8)) {
            return Err(Errno::NOMEM);
        }
        let range = AddressRange::reserve(size, Alignment::DEVICE_PAGE)?;
        let span = range.span();
        // SAFETY: the range was made just now, and nobody else knows it.
        unsafe { range.commit(Bytes::ZERO, span.size(), Access::ReadWrite) }?;
        place(span, node.or_else(numa::current_node));
        advise_huge(span, HugePages::Transparent);
        let (start, length) =
            (pointer(span.start()), span.size().to_usize().map_err(|_| Errno::NOMEM)?);
        // SAFETY: the span is of this range; the advice changes what a forked child gets, and nothing here.
        unsafe { rustix::mm::madvise(start.cast(), length, Advice::LinuxDontFork) }?;
        // SAFETY: so many zeroed bytes are mapped there, of which nobody else knows.
        prefault(unsafe { core::slice::from_raw_parts_mut(start, length) }, threads_for(length));
        Ok(Self { range })
    }

    /// The address range, in whole pages.
    pub fn span(&self) -> Span {
        self.range.span()
    }
}

/// Asks for pages of `node`, where the process has no policy of its own. A system that does not place memory, or does
/// not let this process do so, takes them from where it likes.
fn place(span: Span, node: Option<u32>) {
    if let Some(node) = node
        && numa::policy_at(span.start()) == Ok(NumaPolicy::Default)
    {
        // SAFETY: the caller has made the span, and nothing is in it yet.
        let _ = unsafe { NumaPolicy::Prefer(node).apply(span) };
    }
}

/// How many threads touch memory of this length: one for each huge page, as far as the machine has them.
fn threads_for(length: usize) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    processors.min(MAX_THREADS).min(length / LEAST_PART).max(1)
}

/// Touches every page, so that the system makes all of them now: with up to `threads` threads at once, this one among
/// them. What the memory holds does not change.
pub(crate) fn prefault(memory: &mut [u8], threads: usize) {
    if memory.is_empty() {
        return;
    }
    let each = memory.len().div_ceil(threads.max(1)).next_multiple_of(LEAST_PART);
    let part = each.min(MAX_PART);
    let parts = memory.len().div_ceil(part);
    let work = Arc::new(Prefault {
        start: memory.as_mut_ptr().expose_provenance(),
        length: memory.len(),
        part,
        page: usize::try_from(system_page().get()).unwrap_or(4096),
        next: AtomicUsize::new(0),
        left: Mutex::new(parts),
        done: Condvar::new(),
    });
    for _ in 1..threads.min(parts) {
        let work = Arc::clone(&work);
        // Where the system has no further thread, the others do its part. One that comes late finds nothing to do, and
        // touches nothing.
        if thread::spawn("forebay-touch", move || work.run()).is_err() {
            break;
        }
    }
    work.run();
    let mut left = lock(&work.left);
    while *left > 0 {
        left = work.done.wait(left).unwrap_or_else(PoisonError::into_inner);
    }
}

/// The parts of one memory, which threads take one after the other.
struct Prefault {
    start: usize,
    length: usize,
    part: usize,
    page: usize,
    /// The offset of the next part.
    next: AtomicUsize,
    /// How many parts are not done. The caller of [`prefault`] waits for all of them.
    left: Mutex<usize>,
    done: Condvar,
}

impl Prefault {
    fn run(&self) {
        loop {
            let from = self.next.fetch_add(self.part, Ordering::Relaxed);
            if from >= self.length {
                return;
            }
            for offset in (from..self.length.min(from + self.part)).step_by(self.page) {
                let byte = core::ptr::with_exposed_provenance_mut::<u8>(self.start + offset);
                // SAFETY: it lies in the memory that the caller of `prefault` has borrowed exclusively until all parts
                // are done, and this part is this thread's alone.
                unsafe { byte.write_volatile(byte.read_volatile()) };
            }
            let mut left = lock(&self.left);
            *left -= 1;
            if *left == 0 {
                self.done.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_stays_as_it_was_whatever_the_parts() {
        for (length, threads) in
            [(0, 3), (1, 1), (5000, 4), ((4 << 20) + 1, 3), (20 << 20, 0), (20 << 20, 7)]
        {
            let mut memory: Vec<u8> = (0..251).cycle().take(length).collect();
            prefault(&mut memory, threads);
            assert!(
                memory.iter().zip((0..251).cycle()).all(|(&byte, value)| byte == value),
                "{length}"
            );
        }
    }

    #[test]
    fn all_pages_are_present_and_zero() {
        let size = Bytes::new((32 << 20) + 5000);
        let pages = PrefaultedPages::new(size, None).unwrap();
        let span = pages.span();
        assert!(span.start().is_aligned_to(Alignment::DEVICE_PAGE) && span.size() >= size);
        if let Ok(residence) = System::here().residence(span) {
            assert!(residence.resident >= span.size(), "{residence:?}");
        }
        let length = span.size().to_usize().unwrap();
        // SAFETY: so many bytes are mapped and this test's alone.
        let bytes = unsafe { core::slice::from_raw_parts(pointer(span.start()), length) };
        assert!(bytes.iter().all(|&byte| byte == 0));
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_it_is_touched() {
        let total = System::here().memory().usable_total().unwrap();
        assert_eq!(PrefaultedPages::new(total, None).unwrap_err(), Errno::NOMEM);
        assert_eq!(PrefaultedPages::new(Bytes::MAX, None).unwrap_err(), Errno::NOMEM);
    }
}
