//! Pinned host memory.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{
    Asked, Call, Capabilities, DriverErrorKind, Error, MemoryInfo, PinnedFlags, PinnedMemory,
    Result, nonzero, valid_span,
};
use forebay_host::PrefaultedPages;
use forebay_host::system::System;

use crate::device::CudaDevice;
use crate::refusal::{self, meaning};
use crate::space::Taken;
use crate::sys::DriverError;
use crate::sys::values::{attribute, host_alloc, host_register};

/// Below this the driver cuts pinned memory from larger pieces, at multiples of less than a page.
const WHOLE_PAGES_FROM: Bytes = Bytes::mib(2);

/// From this size on the process makes the pages itself, with several threads, and has the driver register them: below
/// it the driver's own call is as fast. On an H200's host with 16 cores (2026-11-17) 256 MiB took 100 ms by
/// `cuMemHostAlloc` and 9.8 ms so, their free 25 and 4.5 ms; 8 MiB took 4.1 and 0.8 ms.
const OWN_PAGES_FROM: Bytes = Bytes::mib(4);

impl CudaDevice {
    /// Pins pages of this process as [`obtain_pinned`](Self::obtain_pinned) pins the driver's: for all devices and
    /// mapped, at the same address everywhere. `None`, with nothing changed, where that is not possible.
    fn pin_own_pages(&self, size: Bytes) -> Option<(Span, Arc<PrefaultedPages>)> {
        if size < OWN_PAGES_FROM
            || !self.has(Capabilities::REGISTER)
            || self.attribute(attribute::HOST_POINTER_FOR_REGISTERED) == 0
        {
            return None;
        }
        let node = self.context.known_attribute(attribute::HOST_NUMA_NODE);
        let node = node.and_then(|node| u32::try_from(node).ok());
        let pages = PrefaultedPages::new(size, node).ok()?;
        let taken = pages.span();
        let span = Span::new(taken.start(), size).ok()?;
        let bits = host_register::PORTABLE | host_register::DEVICE_MAP;
        let registered = self.context.call(|table| {
            // SAFETY: the pages are mapped until they are unregistered: the entry that owns them goes after that.
            unsafe { table.mem_host_register(taken.start().get(), taken.size().get(), bits) }
        });
        registered.ok()?;
        Some((span, Arc::new(pages)))
    }

    /// The error of refused pinned memory, with the host's figures: that is whose memory it is.
    pub(crate) fn no_host_memory(&self, call: Call, refusal: DriverError, size: Bytes) -> Error {
        match meaning(refusal) {
            DriverErrorKind::Invalid => host_shortage(call, size),
            _ => {
                let table = Some(self.context.table());
                refusal::error(call, refusal, &Asked::size(size), host_figures, table)
            }
        }
    }

    /// Gets pinned memory at a multiple of the host's page.
    fn obtain_pinned(&self, size: Bytes, flags: u32) -> Result<(Span, Span)> {
        let call = Call::AllocatePinned;
        let page = Alignment::HOST_PAGE;
        let span = |start, size| valid_span(call, "size", start, size);
        let mut slack = if size < WHOLE_PAGES_FROM { page.bytes() } else { Bytes::ZERO };
        loop {
            let whole = size.checked_add(slack).ok_or_else(|| host_shortage(call, size))?;
            let mut start = 0;
            self.context
                .call(|table| {
                    // SAFETY: the address is written to a place of our own.
                    unsafe { table.mem_host_alloc(&raw mut start, whole.get(), flags) }?;
                    table.mem_host_alloc.check_allocated(start)
                })
                .map_err(|refusal| self.no_host_memory(call, refusal, size))?;
            let taken = span(Address::new(start), whole)?;
            let aligned = taken.start().checked_align_up(page).unwrap_or(taken.start());
            let asked = span(aligned, size)?;
            if taken.contains_span(asked) {
                return Ok((asked, taken));
            }
            // Large memory that begins in the middle of a page: not seen, and not promised never to
            // happen. This free waits for the device.
            // SAFETY: just got, and nobody knows of it.
            let _ = self.context.call(|table| unsafe { table.mem_free_host(start) });
            slack = page.bytes();
        }
    }
}

/// How much memory the host has.
fn host_figures() -> MemoryInfo {
    let memory = System::here().memory();
    let total = memory.usable_total().unwrap_or_default();
    let free = memory.usable_free().unwrap_or_default().min(total);
    MemoryInfo { total, free, ..MemoryInfo::default() }
}

/// More than the host has.
fn host_shortage(call: Call, requested: Bytes) -> Error {
    host_figures().out_of_memory(call, requested)
}

/// The driver's flags, refused where memory that exists cannot be made so.
fn register_flags(flags: PinnedFlags) -> Result<u32> {
    if flags.contains(PinnedFlags::WRITE_COMBINED) {
        let missing = "the driver makes only memory it allocates itself write-combined";
        return Err(Error::Unsupported { call: Call::Register, missing: missing.into() });
    }
    let mut bits = 0;
    if flags.contains(PinnedFlags::MAPPED) {
        bits |= host_register::DEVICE_MAP;
    }
    if flags.contains(PinnedFlags::PORTABLE) {
        bits |= host_register::PORTABLE;
    }
    Ok(bits)
}

// SAFETY: memory comes from the driver, or from the system and is registered with the driver, which pins it, and begins
// at a whole page; flags go to the driver or are refused. What is registered is held against the books first, so nothing is
// registered twice by one device, and the driver refuses what another did.
unsafe impl PinnedMemory for CudaDevice {
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address> {
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let mut bits = 0;
        for (flag, bit) in [
            (PinnedFlags::MAPPED, host_alloc::DEVICE_MAP),
            (PinnedFlags::WRITE_COMBINED, host_alloc::WRITE_COMBINED),
            (PinnedFlags::PORTABLE, host_alloc::PORTABLE),
        ] {
            if flags.contains(flag) {
                bits |= bit;
            }
        }
        self.descriptor.check_process(Call::AllocatePinned)?;
        // Only the driver makes memory write-combined.
        let by_driver = flags.contains(PinnedFlags::WRITE_COMBINED);
        let own = if by_driver { None } else { self.pin_own_pages(size) };
        let (span, taken) = match own {
            Some((span, pages)) => (span, Taken { span: pages.span(), own_pages: Some(pages) }),
            None => {
                let (span, taken) = self.obtain_pinned(size, bits)?;
                (span, Taken::by_driver(taken))
            }
        };
        self.space().insert(span, MemoryKind::Pinned, flags, taken);
        Ok(span.start())
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        let (call, kind) = (Call::FreePinned, MemoryKind::Pinned);
        let memory = self.space().book.remove_memory(call, "address", address, kind)?;
        let by_driver = memory.owner.own_pages.is_none();
        self.give_back(call, memory, |table, start| {
            // SAFETY: it came from `cuMemHostAlloc`, or was registered, and was not given back; no work uses it, as the
            // caller promised. For both.
            unsafe {
                if by_driver {
                    table.mem_free_host(start)
                } else {
                    table.mem_host_unregister(start)
                }
            }
        })
    }

    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()> {
        let call = Call::Register;
        nonzero(call, "span", span.size())?;
        let bits = register_flags(flags)?;
        let function = self.context.table().mem_host_register;
        if function.is_none() {
            let missing = format!("the driver has no {}", function.symbol.name);
            return Err(Error::Unsupported { call, missing: missing.into() });
        }
        // Entered first, so that of two threads that register the same one is refused.
        {
            let mut space = self.space();
            space.book.check_apart(span)?;
            space.insert(span, MemoryKind::Registered, flags, Taken::by_driver(span));
        }
        let registered = self.context.call(|table| {
            // SAFETY: the span is mapped until it is unregistered, as the caller promised.
            unsafe { table.mem_host_register(span.start().get(), span.size().get(), bits) }
        });
        registered.map_err(|refusal| {
            let mut space = self.space();
            let memory = space.book.take_memory(span.start(), MemoryKind::Registered);
            memory.iter().for_each(|memory| space.settle(memory));
            drop(space);
            match meaning(refusal) {
                DriverErrorKind::OutOfMemory => self.no_host_memory(call, refusal, span.size()),
                _ => {
                    let allowed = "mapped host memory that no library has registered";
                    self.refused(call, refusal, &Asked::of("span", span, allowed))
                }
            }
        })
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        let (call, kind) = (Call::Unregister, MemoryKind::Registered);
        let memory = self.space().book.remove_memory(call, "start", start, kind)?;
        self.give_back(call, memory, |table, start| {
            // SAFETY: it was registered, and no work uses it, as the caller promised.
            unsafe { table.mem_host_unregister(start) }
        })
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        let call = Call::DeviceAddress;
        self.space().book.mapped_host(host)?;
        let mut device = 0;
        let told = self.context.call(|table| {
            // SAFETY: the address is written to a place of our own.
            unsafe { table.mem_host_device_pointer(&raw mut device, host.get(), 0) }
        });
        told.map_err(self.refusing(call, || Asked::of("host", host, "mapped memory")))?;
        Ok(Address::new(device))
    }
}
