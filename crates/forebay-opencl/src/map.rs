//! Device memory mapped for the host.

use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

use cl3::command_queue::{enqueue_map_buffer, enqueue_unmap_mem_object};
use cl3::error_codes::CL_MAP_FAILURE;
use cl3::memory::{CL_MAP_READ, CL_MAP_WRITE, CL_MAP_WRITE_INVALIDATE_REGION};
use cl3::types::{CL_FALSE, cl_mem};
use forebay_core::Span;
use forebay_hal::{Asked, Call, Error, Result, StreamHandle, nonzero};
use forebay_sync::fork::ForkGeneration;
use forebay_sync::lock;

use crate::OpenClDevice;
use crate::code::{Named, Outcome};
use crate::space::Allocation;
use crate::stream::StreamQueue;

/// How the host uses mapped memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MapAccess {
    /// It reads.
    Read,
    /// It reads and writes.
    ReadWrite,
    /// It writes all of it; the current contents are not needed.
    Overwrite,
}

/// Device memory that the host uses in place. Dropping the value unmaps it in stream order; work enqueued there
/// afterwards sees the host's writes.
#[derive(Debug)]
#[must_use = "the memory is unmapped when this value goes"]
pub struct MappedMemory {
    queue: Arc<StreamQueue>,
    memory: Arc<Allocation>,
    pointer: *mut u8,
    length: usize,
    access: MapAccess,
    fork_generation: ForkGeneration,
}

// SAFETY: it owns the mapping, and every thread may use and end it.
unsafe impl Send for MappedMemory {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for that many bytes, which no work changes, as the caller of `map` promised.
        unsafe { core::slice::from_raw_parts(self.pointer, self.length) }
    }

    /// The bytes, mutably; `None` if the memory is mapped only for reading.
    pub fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.access == MapAccess::Read {
            return None;
        }
        // SAFETY: mapped for that many bytes, which no work uses, as the caller of `map` promised.
        Some(unsafe { core::slice::from_raw_parts_mut(self.pointer, self.length) })
    }
}

/// Fails if the driver reports success but returned a null pointer.
pub(crate) fn check_mapped(pointer: *mut c_void) -> Outcome<()> {
    if pointer.is_null() { Err(CL_MAP_FAILURE).of("clEnqueueMapBuffer") } else { Ok(()) }
}

impl Drop for MappedMemory {
    fn drop(&mut self) {
        // The parent's: its locks may be held for ever, and its driver is not for this process.
        if self.fork_generation.is_stale() {
            return;
        }
        let (buffer, pointer) = (self.memory.buffer.raw(), self.pointer.cast());
        let mut submission = self.queue.begin();
        // SAFETY: mapped from this buffer, and nobody uses it from now on.
        let unmapped = unsafe {
            submission.push_beside("clEnqueueUnmapMemObject", &mut |queue, count, events| {
                enqueue_unmap_mem_object(queue, buffer, pointer, count, events)
            })
        };
        if let Ok(event) = unmapped {
            submission.advance(event);
        }
    }
}

impl OpenClDevice {
    /// Maps plain or managed memory for the host, after waiting for all work of `stream`. Nothing is copied on devices
    /// that share the host's memory.
    ///
    /// # Safety
    ///
    /// * Until the value goes, no work uses the memory, but that it may read what is mapped for reading; and
    ///   the memory is not freed.
    pub unsafe fn map(
        &self,
        span: Span,
        access: MapAccess,
        stream: StreamHandle,
    ) -> Result<MappedMemory> {
        let call = Call::Map;
        let queue = self.queue(call, stream)?;
        nonzero(call, "span", span.size())?;
        let found = lock(&self.space).locate(call, "span", span)?;
        let asked = Asked::of("span", span, "memory that the device can map");
        let size = |bytes: forebay_core::Bytes| {
            bytes.to_usize().map_err(|error| Error::quantity(call, "span", &error))
        };
        let (offset, length) = (size(found.offset)?, size(span.size())?);
        let flags = match access {
            MapAccess::Read => CL_MAP_READ,
            MapAccess::ReadWrite => CL_MAP_READ | CL_MAP_WRITE,
            MapAccess::Overwrite => CL_MAP_WRITE_INVALIDATE_REGION,
        };
        let (buffer, mut pointer): (cl_mem, _) = (found.memory.buffer.raw(), ptr::null_mut());
        let mut submission = queue.begin();
        // SAFETY: the part lies in the buffer, which lives as long as `found`.
        let mapped = unsafe {
            submission.push_beside("clEnqueueMapBuffer", &mut |queue, count, events| {
                let at = &mut pointer;
                enqueue_map_buffer(
                    queue, buffer, CL_FALSE, flags, offset, length, at, count, events,
                )
            })
        };
        let refused = |refusal| self.refused(call, refusal, &asked);
        let event = mapped.map_err(refused)?;
        check_mapped(pointer).map_err(refused)?;
        submission.advance(event.clone());
        // The lock goes before the wait.
        drop(submission);
        let (memory, pointer) = (found.memory, pointer.cast());
        // Unmaps where the wait fails.
        let mapped = MappedMemory {
            queue,
            memory,
            pointer,
            length,
            access,
            fork_generation: ForkGeneration::here(),
        };
        event.wait().map_err(refused)?;
        Ok(mapped)
    }
}
