//! Host memory of a buffer, at a fixed address until it is dropped: zeroed heap memory, or memory that the program
//! supplied.

use core::fmt;
use core::ptr::NonNull;
use std::alloc::{Layout, alloc_zeroed, dealloc};

use forebay_core::{Address, Alignment};
use forebay_hal::{Call, invalid};

use crate::callback::Callbacks;
use crate::{Error, Result};

/// A cache line, and enough for every vector instruction.
pub(super) const SMALLEST_ALIGNMENT: usize = 64;

/// Who owns the memory.
enum Owner {
    /// Forebay owns it; this pointer is from the host's heap. The system provides large memory page by page, on first
    /// touch.
    Heap(NonNull<u8>, Layout),
    /// The program owns it. Calling this releases it; `None` afterwards.
    Program(Option<Release>),
}

/// Releases memory of the program.
pub(super) type Release = Box<dyn FnOnce() + Send>;

/// Whether the program lets forebay write its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    Read,
    ReadWrite,
}

pub(super) struct HostMemory {
    start: NonNull<u8>,
    size: usize,
    owner: Owner,
    permission: Permission,
}

// SAFETY: it owns its memory, like a box, and what releases it may be called on any thread.
unsafe impl Send for HostMemory {}
// SAFETY: shared access only reads the memory, and never touches what releases it.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Allocates `size` zeroed bytes. Fails if the host is out of memory.
    pub(super) fn zeroed(size: usize, alignment: Alignment) -> Result<Self> {
        let align = usize::try_from(alignment.get()).unwrap_or(usize::MAX).max(SMALLEST_ALIGNMENT);
        let refused = || {
            let (given, allowed) = (format!("{size} B"), "less than the host's free memory");
            Error::Device(invalid(Call::Allocate, "size", given, allowed))
        };
        // Align here: given an alignment, the heap would write the zeros itself, which touches every page.
        let room = size.checked_add(align - 1).ok_or_else(refused)?;
        let layout = Layout::from_size_align(room, 1).map_err(|_| refused())?;
        // SAFETY: the size is not zero, because the alignment is 64 at least.
        let heap = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(refused)?;
        // SAFETY: the offset is less than the alignment, so `size` bytes of the allocation follow it.
        let start = unsafe { heap.add(heap.addr().get().wrapping_neg() & (align - 1)) };
        let (owner, permission) = (Owner::Heap(heap, layout), Permission::ReadWrite);
        Ok(Self { start, size, owner, permission })
    }

    /// Wraps memory of the program. Dropping this calls `release` once and catches a panic of it.
    ///
    /// # Safety
    ///
    /// * Until `release` is called, `size` initialised bytes are at `start`, and nothing else writes them; with
    ///   [`Permission::ReadWrite`] nothing else reads them either, and they may be written.
    pub(super) unsafe fn external(
        start: NonNull<u8>,
        size: usize,
        permission: Permission,
        release: Release,
    ) -> Self {
        Self { start, size, owner: Owner::Program(Some(release)), permission }
    }

    /// The first of its bytes, which are initialised: by zeros, later writes or the program.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn address(&self) -> Address {
        Address::of_pointer(self.start.as_ptr())
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// Whether the program owns it, so that it must not be moved or replaced.
    pub(super) fn is_external(&self) -> bool {
        matches!(self.owner, Owner::Program(_))
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.permission == Permission::Read
    }
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let external = self.is_external();
        f.debug_struct("HostMemory")
            .field("start", &self.start)
            .field("size", &self.size)
            .field("external", &external)
            .field("permission", &self.permission)
            .finish()
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        match &mut self.owner {
            // SAFETY: allocated by `zeroed` with this layout.
            Owner::Heap(heap, layout) => unsafe { dealloc(heap.as_ptr(), *layout) },
            Owner::Program(release) => {
                // The panic hook has reported the panic; a drop cannot report it further.
                let _ = release.take().and_then(|release| Callbacks::default().call(release));
            }
        }
    }
}
