//! Managed memory: fine-grained shared virtual memory.

use core::ptr;

use cl3::command_queue::enqueue_svm_migrate_mem;
use cl3::memory::CL_MIGRATE_MEM_OBJECT_HOST;
use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{Advice, Call, ManagedMemory, Result, StreamHandle, invalid};
use forebay_sync::lock;

use crate::OpenClDevice;
use crate::memory::Grain;

impl OpenClDevice {
    /// Refuses a number that names no device.
    fn check_location(&self, call: Call, to: Option<DeviceOrdinal>) -> Result<()> {
        match to {
            Some(ordinal) if ordinal != self.descriptor.ordinal => {
                let allowed = format!("{} or the host", self.descriptor.ordinal);
                Err(invalid(call, "to", ordinal, allowed))
            }
            _ => Ok(()),
        }
    }
}

// SAFETY: the device has fine-grained memory, or does not give this group: then host and device use it by one
// address at any time. Moving it changes no byte, and where the driver does not move it, nothing happens.
unsafe impl ManagedMemory for OpenClDevice {
    fn allocate_managed(&self, size: Bytes) -> Result<Address> {
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let kind = (MemoryKind::Managed, Grain::Fine);
        // Whole pages: what is migrated for one allocation is not another's.
        self.allocate_svm(Call::AllocateManaged, size, Alignment::HOST_PAGE, kind)
    }

    unsafe fn free_managed(&self, address: Address) -> Result<()> {
        self.release(Call::FreeManaged, address, MemoryKind::Managed)
    }

    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()> {
        let call = Call::Prefetch;
        let queue = self.queue(call, stream)?;
        lock(&self.space).book.check_managed(call, span)?;
        self.check_location(call, to)?;
        let flags = if to.is_none() { CL_MIGRATE_MEM_OBJECT_HOST } else { 0 };
        let Ok(size) = span.size().to_usize() else { return Ok(()) };
        let start: *const core::ffi::c_void =
            ptr::with_exposed_provenance(usize::try_from(span.start().get()).unwrap_or(0));
        let mut submission = queue.begin();
        // SAFETY: the span lies in shared virtual memory of this context.
        let moved = unsafe {
            submission.push_beside("clEnqueueSVMMigrateMem", &mut |queue, count, events| {
                let (pointers, sizes) = (&raw const start, &raw const size);
                enqueue_svm_migrate_mem(queue, 1, pointers, sizes, flags, count, events)
            })
        };
        // A hint: a driver that is too old for it leaves the memory where it is.
        if let Ok(event) = moved {
            submission.advance(event);
        }
        Ok(())
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<()> {
        let call = Call::Advise;
        self.descriptor.check_process(call)?;
        lock(&self.space).book.check_managed(call, span)?;
        // OpenCL takes no advice; what it is about is still checked.
        match advice {
            Advice::PreferredLocation(to) | Advice::AccessedBy(to) | Advice::NotAccessedBy(to) => {
                self.check_location(call, to)
            }
            _ => Ok(()),
        }
    }
}
