//! Pinned host memory: buffers that the driver keeps on the host, mapped for good.

use core::ptr;

use cl3::command_queue::enqueue_map_buffer;
use cl3::memory::{CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE};
use cl3::types::CL_TRUE;
use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{Call, Error, PinnedFlags, PinnedMemory, Result, invalid, valid_span};
use forebay_sync::lock;

use crate::OpenClDevice;
use crate::code::{Made, Named, Outcome};
use crate::map::check_mapped;
use crate::memory::new_buffer;
use crate::object::{Buffer, Event};
use crate::space::{Allocation, HostMapping, Source};

impl OpenClDevice {
    /// A buffer on the host, mapped for reading and writing.
    fn map_host_buffer(&self, size: Bytes) -> Outcome<(Buffer, HostMapping)> {
        self.context.release_parked();
        let flags = CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR;
        let buffer = new_buffer(self.context, flags, size, ptr::null_mut())?;
        let mut pointer = ptr::null_mut();
        // SAFETY: the buffer is as long as that; a size that is none was refused when it was made.
        let mapped = unsafe {
            let (queue, length) = (self.context.upkeep.raw(), size.to_usize().unwrap_or(0));
            let access = CL_MAP_READ | CL_MAP_WRITE;
            let (raw, at) = (buffer.raw(), &mut pointer);
            enqueue_map_buffer(queue, raw, CL_TRUE, access, 0, length, at, 0, ptr::null())
        };
        let event = mapped.of("clEnqueueMapBuffer")?;
        // SAFETY: the call gave the event, with a reference, which is released whatever became of the mapping.
        let released =
            Ok(event).made("clEnqueueMapBuffer").map(|event| drop(unsafe { Event::new(event) }));
        check_mapped(pointer)?;
        released?;
        let mapping = HostMapping { context: self.context, buffer: buffer.raw(), pointer };
        Ok((buffer, mapping))
    }
}

/// Why the caller's memory cannot be pinned.
fn no_registering(call: Call) -> Error {
    let missing = "OpenCL pins only memory that it allocates: use allocate_pinned";
    Error::Unsupported { call, missing: missing.into() }
}

// SAFETY: a mapped buffer is memory of the process until it is unmapped, and the first address is moved up to
// a page. Copies are given the pointer, never the buffer, so that it stays mapped under them.
unsafe impl PinnedMemory for OpenClDevice {
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address> {
        let call = Call::AllocatePinned;
        self.descriptor.check_process(call)?;
        // Any device copies from a pointer, so that every pinned memory is portable.
        if flags.intersects(PinnedFlags::MAPPED | PinnedFlags::WRITE_COMBINED) {
            let missing = format!("{flags:?}: OpenCL has no such memory that stays mapped");
            return Err(Error::Unsupported { call, missing: missing.into() });
        }
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let page = Alignment::HOST_PAGE;
        let whole = size.checked_add(Bytes::new(page.get() - 1));
        let whole = whole.ok_or_else(|| self.out_of_memory(call, size))?;
        let (buffer, mapping) =
            self.map_host_buffer(whole).map_err(|refusal| self.no_memory(call, refusal, size))?;
        let _ = mapping.pointer.expose_provenance();
        let base = Address::of_pointer(mapping.pointer);
        let start = base.checked_align_up(page).ok_or_else(|| self.out_of_memory(call, size))?;
        let span = valid_span(call, "size", start, size)?;
        let memory = Allocation {
            mapping: Some(mapping),
            buffer,
            source: Source::Mapped,
            first: start.offset_from(base).unwrap_or_default(),
            reservation: None,
        };
        lock(&self.space).insert(span, MemoryKind::Pinned, memory);
        Ok(start)
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        self.release(Call::FreePinned, address, MemoryKind::Pinned)
    }

    unsafe fn register(&self, _span: Span, _flags: PinnedFlags) -> Result<()> {
        self.descriptor.check_process(Call::Register)?;
        Err(no_registering(Call::Register))
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        self.descriptor.check_process(Call::Unregister)?;
        let allowed = "registered memory, and OpenCL registers none";
        Err(invalid(Call::Unregister, "start", start, allowed))
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        self.descriptor.check_process(Call::DeviceAddress)?;
        let allowed = "mapped pinned memory, which OpenCL does not have";
        Err(invalid(Call::DeviceAddress, "host", host, allowed))
    }
}
