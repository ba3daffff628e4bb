//! Host memory of a buffer: zeroed, aligned, at one address until it is dropped.

use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use forebay_core::{Address, Alignment};
use forebay_hal::{Call, invalid};

use crate::{Error, Result};

/// Enough for every vector instruction, and a cache line.
const SMALLEST_ALIGNMENT: usize = 64;

/// Memory of the host's heap. Large memory comes from the system page by page, when it is first touched.
#[derive(Debug)]
pub(super) struct HostMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: it owns its memory, like a box.
unsafe impl Send for HostMemory {}
// SAFETY: shared access only reads it.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// `size` zeroed bytes. Fails where the host has not so much.
    pub(super) fn zeroed(size: usize, alignment: Alignment) -> Result<Self> {
        let align = usize::try_from(alignment.get()).unwrap_or(usize::MAX).max(SMALLEST_ALIGNMENT);
        let refused = || {
            let (given, allowed) = (format!("{size} B"), "less than the host's free memory");
            Error::Device(invalid(Call::Allocate, "size", given, allowed))
        };
        let layout = Layout::from_size_align(size, align).map_err(|_| refused())?;
        if size == 0 {
            return Ok(Self {
                start: NonNull::without_provenance(align_of_layout(layout)),
                layout,
            });
        }
        // SAFETY: the size is not zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        Ok(Self { start, layout })
    }

    pub(super) fn address(&self) -> Address {
        Address::of_pointer(self.start.as_ptr())
    }

    pub(super) fn size(&self) -> usize {
        self.layout.size()
    }

    /// The bytes.
    ///
    /// # Safety
    ///
    /// * Nothing writes them meanwhile: no copy from the device is under way.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes are there, initialised by zeros or later writes; nobody writes them, by the caller's
        // promise.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.size()) }
    }

    /// The bytes, to write.
    ///
    /// # Safety
    ///
    /// * Nothing reads or writes them meanwhile: no copy is under way.
    pub(super) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.size()) }
    }
}

fn align_of_layout(layout: Layout) -> core::num::NonZero<usize> {
    core::num::NonZero::new(layout.align()).unwrap_or(core::num::NonZero::<usize>::MIN)
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if self.size() != 0 {
            // SAFETY: allocated by `zeroed` with this layout.
            unsafe { dealloc(self.start.as_ptr(), self.layout) }
        }
    }
}
