//! Managed memory, which on the host is plain memory.
//!
//! Host and device are the same here, so data never migrates. A prefetch only makes the pages present before they are
//! used.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{Advice, Call, ManagedMemory, Result, StreamHandle, invalid};

use crate::HostDevice;
use crate::stream::Command;

// SAFETY: managed memory is ordinary memory of the process, readable and writable at its address by
// everyone. Prefetching populates pages, which keeps what they hold; advice does nothing.
unsafe impl ManagedMemory for HostDevice {
    fn allocate_managed(&self, size: Bytes) -> Result<Address> {
        self.descriptor.check_process(Call::AllocateManaged)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let call = Call::AllocateManaged;
        let backing = self.space.obtain(call, size, Alignment::ONE, MemoryKind::Managed)?;
        Ok(self.space.enter(backing, size, MemoryKind::Managed, None))
    }

    unsafe fn free_managed(&self, address: Address) -> Result<()> {
        self.descriptor.check_process(Call::FreeManaged)?;
        if address.is_null() {
            return Ok(());
        }
        self.space.free((Call::FreeManaged, "address"), address, MemoryKind::Managed)
    }

    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::Prefetch, stream)?;
        self.space.table().book.check_managed(Call::Prefetch, span)?;
        self.check_place(Call::Prefetch, "to", to)?;
        if span.is_empty() {
            return Ok(());
        }
        self.push(Call::Prefetch, stream, &queue, Command::Populate(span))
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<()> {
        self.descriptor.check_process(Call::Advise)?;
        self.space.table().book.check_managed(Call::Advise, span)?;
        match advice {
            Advice::PreferredLocation(place)
            | Advice::AccessedBy(place)
            | Advice::NotAccessedBy(place) => self.check_place(Call::Advise, "advice", place),
            _ => Ok(()),
        }
    }
}

impl HostDevice {
    /// Refuses a place that is neither the host as such nor this device.
    fn check_place(
        &self,
        call: Call,
        argument: &'static str,
        place: Option<DeviceOrdinal>,
    ) -> Result<()> {
        match place {
            Some(ordinal) if ordinal != self.descriptor.ordinal => {
                let allowed = format!("device {}, or none for the host", self.descriptor.ordinal);
                Err(invalid(call, argument, format!("device {ordinal}"), allowed))
            }
            _ => Ok(()),
        }
    }
}
