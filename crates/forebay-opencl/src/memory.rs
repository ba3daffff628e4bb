//! Plain memory: buffers, or shared virtual memory.

use core::ffi::c_void;
use core::ptr;

use cl3::command_queue::enqueue_write_buffer;
use cl3::error_codes::{CL_INVALID_BUFFER_SIZE, CL_INVALID_VALUE};
use cl3::memory::{
    CL_BUFFER_CREATE_TYPE_REGION, CL_MEM_READ_WRITE, CL_MEM_SVM_FINE_GRAIN_BUFFER,
    CL_MEM_USE_HOST_PTR, create_buffer, create_sub_buffer, svm_alloc,
};
use cl3::types::{CL_TRUE, cl_buffer_region, cl_mem};
use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{Asked, Call, Error, Memory, Result, invalid};
use forebay_host::mapping::AddressRange;
use forebay_sync::fork::LeakOnFork;
use forebay_sync::lock;

use crate::OpenClDevice;
use crate::code::{DriverError, Made, Named, Outcome};
use crate::context::{Context, Reservation};
use crate::object::{Buffer, Event};
use crate::space::{Allocation, Source};

/// Who shares shared virtual memory, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grain {
    /// The host maps it first.
    Coarse,
    /// Both sides use it at any time.
    Fine,
}

/// Makes a buffer, of the memory at `host` where the flags say so.
pub(crate) fn new_buffer(
    context: &Context,
    flags: u64,
    size: Bytes,
    host: *mut c_void,
) -> Outcome<Buffer> {
    let size = size.to_usize().map_err(|_| too_large())?;
    // SAFETY: the flags are those of this crate, and memory of the host is as long as the buffer.
    let raw = unsafe { create_buffer(context.raw(), flags, size, host) }.made("clCreateBuffer")?;
    // SAFETY: just made.
    Ok(unsafe { Buffer::new(raw) })
}

fn too_large() -> DriverError {
    DriverError { function: "clCreateBuffer", code: crate::Code(CL_INVALID_BUFFER_SIZE) }
}

/// A part of a buffer as a buffer. It begins at a multiple of the device's alignment.
pub(crate) fn part_of(buffer: &Buffer, offset: Bytes, size: Bytes) -> Outcome<Buffer> {
    let (Ok(origin), Ok(size)) = (offset.to_usize(), size.to_usize()) else {
        return Err(too_large());
    };
    let region = cl_buffer_region { origin, size };
    // SAFETY: the buffer is live; a part that does not lie in it is refused.
    let raw = unsafe {
        let (kind, region) = (CL_BUFFER_CREATE_TYPE_REGION, (&raw const region).cast());
        create_sub_buffer(buffer.raw(), CL_MEM_READ_WRITE, kind, region)
    };
    // SAFETY: just made.
    raw.made("clCreateSubBuffer").map(|raw| unsafe { Buffer::new(raw) })
}

/// Makes the driver take the memory now: it would do so with the first command that uses the buffer, and
/// fail there. One byte is written and waited for; a copy does not wait for a busy device as a fill's kernel
/// might.
fn force(context: &Context, buffer: &Buffer) -> Outcome<()> {
    let byte = 0_u8;
    let from = (&raw const byte).cast_mut().cast();
    // SAFETY: the buffer has a first byte, and the call returns when it was read from here.
    let written = unsafe {
        let queue = context.upkeep.raw();
        enqueue_write_buffer(queue, buffer.raw(), CL_TRUE, 0, 1, from, 0, ptr::null())
    };
    // SAFETY: the call gave the event, with a reference.
    written.made("clEnqueueWriteBuffer").map(|event| drop(unsafe { Event::new(event) }))
}

impl OpenClDevice {
    /// Counts `size` as used, or refuses.
    pub(crate) fn reserve(&self, call: Call, size: Bytes) -> Result<Reservation> {
        self.descriptor.check_process(call)?;
        let total = self.context.info.total_memory;
        let refuse = |free| Error::OutOfMemory { call, requested: size, free, total };
        self.context.reserve(size).map_err(refuse)
    }

    /// The error of a refused allocation.
    pub(crate) fn no_memory(&self, call: Call, refusal: DriverError, size: Bytes) -> Error {
        let most = self.context.info.max_allocation;
        match refusal.code.0 {
            CL_INVALID_BUFFER_SIZE | CL_INVALID_VALUE if size > most => {
                let given = format!("{} B; {refusal}", size.get());
                let allowed =
                    format!("at most {} B in one allocation, the device's limit", most.get());
                invalid(call, "size", given, allowed)
            }
            CL_INVALID_BUFFER_SIZE | CL_INVALID_VALUE => self.out_of_memory(call, size),
            _ => self.refused(call, refusal, &Asked::size(size)),
        }
    }

    /// A buffer with addresses of its own.
    fn allocate_buffer(&self, call: Call, size: Bytes, alignment: Alignment) -> Result<Address> {
        let reservation = self.reserve(call, size)?;
        // The host has no addresses left, or none so aligned.
        let range = AddressRange::reserve(size, alignment.max(self.descriptor.alignment))
            .map_err(|_| self.out_of_memory(call, size))?;
        let buffer = new_buffer(self.context, CL_MEM_READ_WRITE, size, ptr::null_mut())
            .and_then(|buffer| force(self.context, &buffer).map(|()| buffer))
            .map_err(|refusal| self.no_memory(call, refusal, size))?;
        let span = forebay_hal::valid_span(call, "size", range.span().start(), size)?;
        let memory = Allocation {
            mapping: None,
            buffer,
            source: Source::Reserved { _range: range },
            first: Bytes::ZERO,
            reservation: Some(reservation),
        };
        lock(&self.space).insert(span, MemoryKind::Plain, memory);
        Ok(span.start())
    }

    /// Shared virtual memory, with a buffer made of it, so that every command works on it as on any other.
    pub(crate) fn allocate_svm(
        &self,
        call: Call,
        size: Bytes,
        alignment: Alignment,
        (kind, grain): (MemoryKind, Grain),
    ) -> Result<Address> {
        let reservation = self.reserve(call, size)?;
        // Drivers keep alignments up to that of their largest type; more is had by room to move in.
        let slack = if alignment > self.descriptor.alignment {
            Bytes::new(alignment.get() - 1)
        } else {
            Bytes::ZERO
        };
        let whole = size.checked_add(slack).ok_or_else(|| self.out_of_memory(call, size))?;
        let length = whole.to_usize().map_err(|_| self.out_of_memory(call, size))?;
        let flags = match grain {
            Grain::Coarse => CL_MEM_READ_WRITE,
            Grain::Fine => CL_MEM_READ_WRITE | CL_MEM_SVM_FINE_GRAIN_BUFFER,
        };
        let context = self.context;
        context.release_parked();
        // SAFETY: these flags are good where the device has such memory, which was asked when it was opened.
        let allocate = |_turn| unsafe { svm_alloc(context.raw(), flags, length, 0) };
        let pointer = allocate(context.svm_turn())
            .of("clSVMAlloc")
            .map_err(|refusal| self.no_memory(call, refusal, size))?;
        let source = Source::Svm { context, pointer };
        let _ = pointer.expose_provenance();
        let base = Address::of_pointer(pointer);
        let flags = CL_MEM_READ_WRITE | CL_MEM_USE_HOST_PTR;
        let buffer = new_buffer(self.context, flags, whole, pointer)
            .and_then(|buffer| force(self.context, &buffer).map(|()| buffer))
            .map_err(|refusal| self.no_memory(call, refusal, size))?;
        let start =
            base.checked_align_up(alignment).ok_or_else(|| self.out_of_memory(call, size))?;
        let span = forebay_hal::valid_span(call, "size", start, size)?;
        let first = start.offset_from(base).unwrap_or_default();
        let memory =
            Allocation { mapping: None, buffer, source, first, reservation: Some(reservation) };
        lock(&self.space).insert(span, kind, memory);
        Ok(span.start())
    }

    /// Returns the buffer that contains an address of plain or managed memory, and the offset in it, as arguments for
    /// kernels. The buffer is valid until the memory is freed.
    ///
    /// ```
    /// use forebay_core::{Alignment, Bytes};
    /// use forebay_hal::Memory;
    /// use forebay_opencl::OpenClDevice;
    ///
    /// // Nothing to show on a machine without OpenCL.
    /// let Ok(device) = OpenClDevice::open(0) else { return Ok(()) };
    /// let memory = device.allocate(Bytes::new(4096), Alignment::BLOCK)?;
    /// let inside = memory.checked_add(Bytes::new(512)).ok_or("no such address")?;
    /// let (buffer, offset) = device.buffer_at(inside)?;
    /// assert!(!buffer.is_null() && offset == Bytes::new(512));
    /// // SAFETY: no work uses the memory.
    /// unsafe { device.free(memory) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffer_at(&self, address: Address) -> Result<(cl_mem, Bytes)> {
        let call = Call::Launch;
        self.descriptor.check_process(call)?;
        let byte = forebay_hal::valid_span(call, "address", address, Bytes::new(1))?;
        let found = lock(&self.space).locate(call, "address", byte)?;
        Ok((found.memory.buffer.raw(), found.offset))
    }

    /// Returns a buffer that is exactly `span`, for kernels that take no offset. The offset of its first address in its
    /// allocation must be a multiple of [the device's alignment](crate::OpenClDeviceInfo::alignment), as all blocks of
    /// a pool are if that alignment is 512 bytes or less.
    pub fn sub_buffer(&self, span: Span) -> Result<SubBuffer> {
        let call = Call::Launch;
        self.descriptor.check_process(call)?;
        forebay_hal::nonzero(call, "span", span.size())?;
        let found = lock(&self.space).locate(call, "span", span)?;
        let asked = Asked::of("span", span, "a part that the device can make a buffer of");
        let alignment = self.context.info.alignment;
        if !found.offset.is_aligned_to(alignment) {
            let given = format!("{span}, {} B into its buffer", found.offset.get());
            let allowed = format!("a multiple of {} B into it", alignment.get());
            return Err(invalid(call, "span", given, allowed));
        }
        let buffer = part_of(&found.memory.buffer, found.offset, span.size());
        let buffer = buffer.map_err(|refusal| self.refused(call, refusal, &asked))?;
        Ok(SubBuffer { buffer: LeakOnFork::new(buffer), span })
    }
}

/// A sub-buffer, released on drop. It keeps the memory alive, but not its contents: freed memory may be used again only
/// once this is gone.
#[derive(Debug)]
#[must_use = "the sub-buffer is released when this value goes"]
pub struct SubBuffer {
    buffer: LeakOnFork<Buffer>,
    span: Span,
}

impl SubBuffer {
    /// The buffer, as an argument for kernels; null in a forked child.
    pub fn raw(&self) -> cl_mem {
        self.buffer.get().map_or(ptr::null_mut(), Buffer::raw)
    }

    /// The span it covers.
    pub fn span(&self) -> Span {
        self.span
    }
}

// SAFETY: the system gives every range of addresses once, and `AddressRange` keeps the alignment asked for;
// shared virtual memory has addresses of its own, moved up to the alignment. Memory is taken out of the books
// before it is released, so it is never found there while the driver gives it to another. Errors carry what
// was asked.
unsafe impl Memory for OpenClDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        let call = Call::Allocate;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        if self.options.svm {
            return self.allocate_svm(call, size, alignment, (MemoryKind::Plain, Grain::Coarse));
        }
        self.allocate_buffer(call, size, alignment)
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        self.release(Call::Free, address, MemoryKind::Plain)
    }
}

impl OpenClDevice {
    /// Gives memory back.
    pub(crate) fn release(&self, call: Call, address: Address, kind: MemoryKind) -> Result<()> {
        self.descriptor.check_process(call)?;
        if address.is_null() {
            return Ok(());
        }
        // Released after the lock: the driver may take its time.
        let memory = lock(&self.space).remove(call, address, kind)?;
        drop(memory);
        Ok(())
    }
}
