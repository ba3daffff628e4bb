//! Metal buffers.

use core::ffi::c_void;
use core::fmt;
use core::ptr::NonNull;
use std::sync::Arc;

use forebay_core::Address;
use objc2::rc::Retained;
use objc2::runtime::ProtocolObject;
use objc2_metal::{MTLBuffer, MTLHeap};

/// A buffer and, for plain memory, the heap that it lies in.
pub(crate) struct Buffer {
    raw: Retained<ProtocolObject<dyn MTLBuffer>>,
    /// Kept as long as the buffer: Metal does not say that a buffer keeps it.
    _heap: Option<Retained<ProtocolObject<dyn MTLHeap>>>,
}

/// A buffer that several have: the books, and command buffers under way.
pub(crate) type BufferRef = Arc<Buffer>;

// SAFETY: Metal allows any thread to use and to release buffers and heaps. What is in them is read and written only by work
// in stream order, whose callers promise that nobody else does at the time.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    pub(crate) fn new(raw: Retained<ProtocolObject<dyn MTLBuffer>>) -> BufferRef {
        Arc::new(Self { raw, _heap: None })
    }

    pub(crate) fn in_heap(
        raw: Retained<ProtocolObject<dyn MTLBuffer>>,
        heap: Retained<ProtocolObject<dyn MTLHeap>>,
    ) -> BufferRef {
        Arc::new(Self { raw, _heap: Some(heap) })
    }

    pub(crate) fn raw(&self) -> &Retained<ProtocolObject<dyn MTLBuffer>> {
        &self.raw
    }

    /// The GPU's address of its first byte.
    pub(crate) fn device_address(&self) -> Address {
        Address::new(self.raw.gpuAddress())
    }

    /// The host's address of its first byte; only for shared storage.
    pub(crate) fn contents(&self) -> NonNull<c_void> {
        self.raw.contents()
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.device_address())
    }
}
