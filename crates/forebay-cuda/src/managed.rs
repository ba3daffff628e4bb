//! Managed memory.

use core::ffi::c_int;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{Advice, Asked, Call, ManagedMemory, PinnedFlags, Result, StreamHandle, invalid};

use crate::device::CudaDevice;
use crate::space::Taken;
use crate::sys::MemoryLocation;
use crate::sys::values::{DEVICE_CPU, advice as advices, attach, location};

/// Where managed memory goes, in the terms of both generations of the driver's calls.
#[derive(Clone, Copy, Debug)]
struct Destination {
    device: c_int,
    location: MemoryLocation,
}

impl CudaDevice {
    /// A device, or the host for `None`.
    fn destination(
        &self,
        call: Call,
        argument: &'static str,
        to: Option<DeviceOrdinal>,
    ) -> Result<Destination> {
        let Some(ordinal) = to else {
            let location = MemoryLocation { kind: location::HOST, id: 0 };
            return Ok(Destination { device: DEVICE_CPU, location });
        };
        let device = self.driver.checked_ordinal(call, argument, ordinal)?;
        Ok(Destination { device, location: MemoryLocation { kind: location::DEVICE, id: device } })
    }
}

// SAFETY: memory comes from the driver as managed, attached to every stream and the host; the group
// is given only where host and device may use it at once. Spans are held against the books before
// the driver sees them.
unsafe impl ManagedMemory for CudaDevice {
    fn allocate_managed(&self, size: Bytes) -> Result<Address> {
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let (span, taken) =
            self.obtain(Call::AllocateManaged, size, Alignment::ONE, |table, address, size| {
                // SAFETY: the address is written to a place of `obtain`'s, and read from there.
                unsafe {
                    table.mem_alloc_managed(address, size, attach::GLOBAL)?;
                    table.mem_alloc_managed.check_allocated(*address)
                }
            })?;
        let taken = Taken::by_driver(taken);
        self.space().insert(span, MemoryKind::Managed, PinnedFlags::empty(), taken);
        Ok(span.start())
    }

    unsafe fn free_managed(&self, address: Address) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        let (call, kind) = (Call::FreeManaged, MemoryKind::Managed);
        let memory = self.space().book.remove_memory(call, "address", address, kind)?;
        self.give_back(call, memory, |table, start| {
            // SAFETY: it came from `cuMemAllocManaged` and was not freed, and no work uses it, as
            // the caller promised.
            unsafe { table.mem_free(start) }
        })
    }

    fn prefetch(&self, span: Span, to: Option<DeviceOrdinal>, stream: StreamHandle) -> Result<()> {
        let call = Call::Prefetch;
        let core = self.stream(call, stream)?;
        self.space().book.check_managed(call, span)?;
        let Destination { device, location } = self.destination(call, "to", to)?;
        if span.is_empty() {
            return Ok(());
        }
        let (start, size) = (span.start().get(), span.size().get());
        let moved = self.context.call(|table| {
            if table.mem_prefetch_v2.is_some() {
                // SAFETY: managed memory, looked up above, and a live stream.
                unsafe { table.mem_prefetch_v2(start, size, location, 0, core.raw) }
            } else {
                // SAFETY: as above.
                unsafe { table.mem_prefetch_v1(start, size, device, core.raw) }
            }
        });
        moved.map_err(self.refusing(call, || Asked::of("span", span, "managed memory")))
    }

    fn advise(&self, span: Span, advice: Advice) -> Result<()> {
        let call = Call::Advise;
        self.space().book.check_managed(call, span)?;
        let own = Some(self.context.ordinal);
        let (bits, place) = match advice {
            Advice::ReadMostly => (advices::SET_READ_MOSTLY, own),
            Advice::NotReadMostly => (advices::UNSET_READ_MOSTLY, own),
            Advice::PreferredLocation(place) => (advices::SET_PREFERRED_LOCATION, place),
            Advice::NoPreferredLocation => (advices::UNSET_PREFERRED_LOCATION, own),
            Advice::AccessedBy(place) => (advices::SET_ACCESSED_BY, place),
            Advice::NotAccessedBy(place) => (advices::UNSET_ACCESSED_BY, place),
            _ => {
                let allowed = "advice this version of the driver's table knows";
                return Err(invalid(call, "advice", format!("{advice:?}"), allowed));
            }
        };
        let Destination { device, location } = self.destination(call, "advice", place)?;
        if span.is_empty() {
            return Ok(());
        }
        let (start, size) = (span.start().get(), span.size().get());
        let told = self.context.call(|table| {
            if table.mem_advise_v2.is_some() {
                // SAFETY: managed memory, looked up above.
                unsafe { table.mem_advise_v2(start, size, bits, location) }
            } else {
                // SAFETY: as above.
                unsafe { table.mem_advise_v1(start, size, bits, device) }
            }
        });
        told.map_err(|refusal| {
            let given = format!("{advice:?} for {span}");
            self.refused(call, refusal, &Asked::of("advice", given, "advice the device can take"))
        })
    }
}
