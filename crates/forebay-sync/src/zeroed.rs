//! Large tables that are zero and mostly stay so.
//!
//! Their pages come straight from the system, which provides each when it is first written. Memory from the C library
//! would do only once: after a program has freed a piece that large, the library serves the next from its own heap and
//! zeroes it by hand. For the table of a pool that is 16 MiB, touched whole: 1.5 ms and as much memory for each pool.

use core::ops::Deref;
use core::ptr::NonNull;

/// A slice of values whose bits were zero when it was made.
#[derive(Debug)]
pub(crate) struct ZeroedSlice<T> {
    values: NonNull<[T]>,
    /// Whether the memory is a mapping of its own.
    mapped: bool,
}

// SAFETY: it owns its values, like a box.
unsafe impl<T: Send> Send for ZeroedSlice<T> {}
// SAFETY: likewise.
unsafe impl<T: Sync> Sync for ZeroedSlice<T> {}

impl<T> ZeroedSlice<T> {
    /// `count` values.
    ///
    /// # Safety
    ///
    /// * All bits zero is a value of `T`, which need not be dropped.
    pub(crate) unsafe fn new(count: usize) -> Self {
        let bytes = count.saturating_mul(size_of::<T>());
        match map(bytes) {
            Some(start) => {
                let values = NonNull::slice_from_raw_parts(start.cast(), count);
                Self { values, mapped: true }
            }
            None => {
                // SAFETY: the caller promises it.
                let values: Box<[T]> = unsafe { Box::new_zeroed_slice(count).assume_init() };
                Self { values: NonNull::from(Box::leak(values)), mapped: false }
            }
        }
    }

    /// Where the values begin. They stay there until the slice is dropped.
    pub(crate) fn start(&self) -> NonNull<T> {
        self.values.cast()
    }
}

impl<T> Deref for ZeroedSlice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the values are there until it is dropped.
        unsafe { self.values.as_ref() }
    }
}

impl<T> Drop for ZeroedSlice<T> {
    fn drop(&mut self) {
        if self.mapped {
            unmap(self.values.cast(), size_of_val(&**self));
        } else {
            // SAFETY: the box that `new` leaked.
            drop(unsafe { Box::from_raw(self.values.as_ptr()) });
        }
    }
}

/// Less than this is not worth a mapping.
#[cfg(all(target_os = "linux", not(miri)))]
const SMALLEST: usize = 64 << 10;

/// Zeroed pages; `None` for a small size, or if the system has none.
#[cfg(all(target_os = "linux", not(miri)))]
fn map(bytes: usize) -> Option<NonNull<u8>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    if bytes < SMALLEST {
        return None;
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, at addresses that the system chooses.
    let start = unsafe {
        mmap_anonymous(core::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    NonNull::new(start.ok()?.cast())
}

#[cfg(all(target_os = "linux", not(miri)))]
fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: a mapping of `map`, no longer in use. If the system refuses, the pages stay.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(_: usize) -> Option<NonNull<u8>> {
    None
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn unmap(_: NonNull<u8>, _: usize) {}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn all_are_zero_and_can_be_written() {
        // The last is large enough to be mapped, except under Miri, which is slow for each element.
        for count in [0, 1, 1000, if cfg!(miri) { 1001 } else { 1 << 15 }] {
            // SAFETY: a number of any bits.
            let slice: ZeroedSlice<AtomicU64> = unsafe { ZeroedSlice::new(count) };
            assert_eq!(slice.len(), count);
            assert!(slice.iter().all(|value| value.load(Ordering::Relaxed) == 0));
            slice.iter().for_each(|value| value.store(7, Ordering::Relaxed));
            assert_eq!(slice.last().map_or(7, |value| value.load(Ordering::Relaxed)), 7);
        }
    }
}
