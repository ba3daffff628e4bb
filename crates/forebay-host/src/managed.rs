//! Managed memory: on the host, plain memory by another name.
//!
//! Host and device are one here, so data never moves. What prefetching can still do is to bring the
//! memory in before it is touched, which is what it does.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::{Advice, Call, ManagedMemory, Result, StreamHandle, invalid};

use crate::HostDevice;
use crate::space::{Account, Occupant};
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
        let backing = self.space.obtain(call, size, Alignment::ONE, Account::Managed)?;
        Ok(self.space.enter(backing, size, Occupant::Managed))
    }

    unsafe fn free_managed(&self, address: Address) -> Result<()> {
        self.descriptor.check_process(Call::FreeManaged)?;
        if address.is_null() {
            return Ok(());
        }
        let is_managed = |occupant: &Occupant| matches!(occupant, Occupant::Managed(_));
        let call = Call::FreeManaged;
        let removed =
            self.space.table().remove(call, "address", address, "managed memory", is_managed)?;
        if let Occupant::Managed(backing) = removed {
            self.space.give_back(backing, Account::Managed);
        }
        Ok(())
    }

    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::Prefetch, stream)?;
        self.check_managed(Call::Prefetch, span)?;
        self.check_place(Call::Prefetch, "to", to)?;
        if span.is_empty() {
            return Ok(());
        }
        self.push(Call::Prefetch, stream, &queue, Command::Populate(span))
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<()> {
        self.descriptor.check_process(Call::Advise)?;
        self.check_managed(Call::Advise, span)?;
        match advice {
            Advice::PreferredLocation(place)
            | Advice::AccessedBy(place)
            | Advice::NotAccessedBy(place) => self.check_place(Call::Advise, "advice", place),
            _ => Ok(()),
        }
    }
}

impl HostDevice {
    /// Refuses a span that does not lie in one managed allocation.
    fn check_managed(&self, call: Call, span: Span) -> Result<()> {
        let table = self.space.table();
        match table.find(span.start()) {
            Some(entry)
                if matches!(entry.occupant, Occupant::Managed(_))
                    && entry.span.contains_span(span) =>
            {
                Ok(())
            }
            _ => {
                let given = format!("{span}, which begins {}", table.describe(span.start()));
                Err(invalid(call, "span", given, "a span inside one managed allocation"))
            }
        }
    }

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
