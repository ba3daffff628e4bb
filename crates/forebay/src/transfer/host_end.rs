//! Host memory that a transfer owns.

use std::sync::Arc;

use bytemuck::Pod;
use forebay_core::Address;
use forebay_hal::{Device, StreamHandle};

use crate::Result;
use crate::pinned::PinnedArray;

/// Memory that a transfer can own and read: a vector, a shared or static slice, a [`PinnedArray`].
///
/// # Safety
///
/// The elements stay in place while the value lives, even when it is moved, and nothing writes to them.
pub unsafe trait HostSource<T: Pod>: Send + 'static {
    /// The elements. Waits for work that writes to them.
    fn elements(&self) -> Result<&[T]>;

    /// Whether `device` can copy from and to them directly.
    #[doc(hidden)]
    fn is_pinned_for(&self, _device: &Arc<dyn Device>) -> bool {
        false
    }

    /// Records that work on `stream` reads them, if they are pinned.
    #[doc(hidden)]
    fn read_on(&self, _: StreamHandle) -> Result<()> {
        Ok(())
    }
}

/// Memory that a transfer can own and write: a vector, a [`PinnedArray`].
///
/// # Safety
///
/// As for [`HostSource`], and nothing else reads the elements either.
pub unsafe trait HostSink<T: Pod>: HostSource<T> {
    /// The elements. Waits for work that uses them.
    fn elements_mut(&mut self) -> Result<&mut [T]>;

    /// Records that work on `stream` writes to them, if they are pinned.
    #[doc(hidden)]
    fn written_on(&mut self, _: StreamHandle) -> Result<()> {
        Ok(())
    }
}

// SAFETY: a vector's elements are in memory of their own.
unsafe impl<T: Pod + Send> HostSource<T> for Vec<T> {
    fn elements(&self) -> Result<&[T]> {
        Ok(self)
    }
}

// SAFETY: as for a vector; the others that share them can only read.
unsafe impl<T: Pod + Send + Sync> HostSource<T> for Arc<[T]> {
    fn elements(&self) -> Result<&[T]> {
        Ok(self)
    }
}

// SAFETY: static memory stays where it is.
unsafe impl<T: Pod + Send + Sync> HostSource<T> for &'static [T] {
    fn elements(&self) -> Result<&[T]> {
        Ok(self)
    }
}

// SAFETY: the elements are in the array's block.
unsafe impl<T: Pod + Send> HostSource<T> for PinnedArray<T> {
    fn elements(&self) -> Result<&[T]> {
        self.host()
    }

    fn is_pinned_for(&self, device: &Arc<dyn Device>) -> bool {
        self.is_of(device)
    }

    fn read_on(&self, stream: StreamHandle) -> Result<()> {
        PinnedArray::read_on(self, stream)
    }
}

// SAFETY: a vector's elements are in memory of their own.
unsafe impl<T: Pod + Send> HostSink<T> for Vec<T> {
    fn elements_mut(&mut self) -> Result<&mut [T]> {
        Ok(self)
    }
}

// SAFETY: the elements are in the array's block.
unsafe impl<T: Pod + Send> HostSink<T> for PinnedArray<T> {
    fn elements_mut(&mut self) -> Result<&mut [T]> {
        self.host_mut()
    }

    fn written_on(&mut self, stream: StreamHandle) -> Result<()> {
        PinnedArray::written_on(self, stream)
    }
}

/// A pointer to host memory at an address that came from a pointer.
pub(super) fn pointer(address: u64) -> *mut u8 {
    // This crate builds for 64-bit targets only, so nothing is truncated.
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// The address of elements, for [`pointer`] to convert back.
pub(super) fn address_of<T>(elements: *const T) -> u64 {
    Address::of_pointer(elements).get()
}
