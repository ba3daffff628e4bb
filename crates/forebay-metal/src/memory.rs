//! Plain, pinned and registered memory.

use core::ffi::c_void;
use core::ptr::NonNull;

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::MemoryKind;
use forebay_hal::{
    Call, Error, Memory, PinnedFlags, PinnedMemory, Result, invalid, nonzero, valid_span,
};
use forebay_sync::lock;
use objc2::rc::autoreleasepool;
use objc2_metal::{
    MTLDevice, MTLHazardTrackingMode, MTLHeap, MTLHeapDescriptor, MTLHeapType, MTLResourceOptions,
    MTLStorageMode,
};

use crate::MetalDevice;
use crate::buffer::{Buffer, BufferRef};
use crate::device::Inner;
use crate::space::BufferOffset;

/// The least alignment of plain memory: what buffers may be bound at on every GPU.
pub(crate) const ALIGNMENT: Alignment = of_log2(8);

/// Pages of the system: 16 KiB with Apple's processors, 4 KiB with Intel's.
const PAGE: Alignment = of_log2(if cfg!(target_arch = "aarch64") { 14 } else { 12 });

const fn of_log2(log2: u8) -> Alignment {
    match Alignment::of_log2(log2) {
        Some(alignment) => alignment,
        // Not so: it is far below the largest.
        None => Alignment::BLOCK,
    }
}

/// A size as Metal takes it.
fn count(call: Call, size: Bytes) -> Result<usize> {
    size.to_usize().map_err(|error| Error::quantity(call, "size", &error))
}

/// Allocates exactly first, and with room to align where the address came out unaligned.
fn aligned(
    call: Call,
    size: Bytes,
    alignment: Alignment,
    allocate: impl Fn(Bytes) -> Result<BufferRef>,
    start: impl Fn(&BufferRef) -> Address,
) -> Result<(Span, BufferOffset<BufferRef>)> {
    let padded = size.try_add(alignment.bytes());
    let padded = padded.map_err(|error| Error::quantity(call, "size", &error))?;
    let mut buffer = allocate(size)?;
    if !start(&buffer).is_aligned_to(alignment) {
        drop(buffer);
        buffer = allocate(padded)?;
    }
    let base = start(&buffer);
    let first = base.checked_align_up(alignment).unwrap_or(base);
    let offset = first.offset_from(base).unwrap_or_default().get();
    Ok((valid_span(call, "size", first, size)?, BufferOffset { buffer, offset }))
}

impl Inner {
    /// Private memory: a heap, and one buffer that fills it. An error gives the size that was `requested`.
    fn private(&self, call: Call, size: Bytes, requested: Bytes) -> Result<BufferRef> {
        let out_of_memory = || self.out_of_memory(call, requested);
        let options = MTLResourceOptions::StorageModePrivate
            | MTLResourceOptions::HazardTrackingModeUntracked;
        let length = count(call, size)?;
        if length > self.raw.maxBufferLength() {
            return Err(out_of_memory());
        }
        autoreleasepool(|_| {
            let needed = self.raw.heapBufferSizeAndAlignWithLength_options(length, options);
            let descriptor = MTLHeapDescriptor::new();
            descriptor.setType(MTLHeapType::Placement);
            descriptor.setStorageMode(MTLStorageMode::Private);
            // Streams keep the order: see the crate's documentation.
            descriptor.setHazardTrackingMode(MTLHazardTrackingMode::Untracked);
            descriptor.setSize(needed.size);
            let heap = self.raw.newHeapWithDescriptor(&descriptor).ok_or_else(out_of_memory)?;
            // SAFETY: the heap has the size that a buffer of this length needs at its start.
            let buffer = unsafe { heap.newBufferWithLength_options_offset(length, options, 0) };
            Ok(Buffer::in_heap(buffer.ok_or_else(out_of_memory)?, heap))
        })
    }

    /// Shared memory. An error gives the size that was `requested`.
    pub(crate) fn shared(
        &self,
        call: Call,
        size: Bytes,
        requested: Bytes,
        flags: PinnedFlags,
    ) -> Result<BufferRef> {
        let mut options =
            MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        if flags.contains(PinnedFlags::WRITE_COMBINED) {
            options |= MTLResourceOptions::CPUCacheModeWriteCombined;
        }
        let length = count(call, size)?;
        let out_of_memory = || self.out_of_memory(call, requested);
        if length > self.raw.maxBufferLength() {
            return Err(out_of_memory());
        }
        let buffer = self.raw.newBufferWithLength_options(length, options);
        Ok(Buffer::new(buffer.ok_or_else(out_of_memory)?))
    }
}

fn check_flags(call: Call, flags: PinnedFlags) -> Result<()> {
    if flags.contains(PinnedFlags::PORTABLE) {
        let missing = "pinned memory for every device: a buffer of Metal's belongs to one";
        return Err(Error::Unsupported { call, missing: missing.into() });
    }
    Ok(())
}

// SAFETY: every allocation has a heap of its own, and the GPU's addresses are those of live buffers, so none overlap. They
// are aligned here. Metal keeps a buffer until the work that uses it is completed, and does not wait for it.
unsafe impl Memory for MetalDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        let call = Call::Allocate;
        let inner = self.inner(call)?;
        inner.health.check(call)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        // Metal would give more than the GPU can use at once, and move memory out behind the program's back.
        if size > inner.figures().free {
            return Err(inner.out_of_memory(call, size));
        }
        let alignment = alignment.max(ALIGNMENT);
        let allocate = |taken| inner.private(call, taken, size);
        let (span, location) =
            aligned(call, size, alignment, allocate, |buffer| buffer.device_address())?;
        lock(&inner.space).insert_plain(span, location);
        Ok(span.start())
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        let inner = self.inner(Call::Free)?;
        if address.is_null() {
            return Ok(());
        }
        let buffer = lock(&inner.space).remove_plain(address)?;
        // Outside the lock: here the system takes the memory back.
        drop(buffer);
        Ok(())
    }
}

// SAFETY: shared storage is the host's memory, whole pages of it, which the GPU reaches too. Flags that Metal has no word
// for are refused, and so is memory that overlaps what is pinned, under the lock of the books.
unsafe impl PinnedMemory for MetalDevice {
    fn allocate_pinned(&self, size: Bytes, flags: PinnedFlags) -> Result<Address> {
        let call = Call::AllocatePinned;
        let inner = self.inner(call)?;
        inner.health.check(call)?;
        check_flags(call, flags)?;
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let allocate = |taken| inner.shared(call, taken, size, flags);
        let host = |buffer: &BufferRef| Address::of_pointer(buffer.contents().as_ptr());
        let (span, location) = aligned(call, size, PAGE, allocate, host)?;
        let device = location.buffer.device_address().checked_add(Bytes::new(location.offset));
        let device = device.ok_or_else(|| inner.out_of_memory(call, size))?;
        lock(&inner.space).insert_host(span, device, location, flags, MemoryKind::Pinned);
        Ok(span.start())
    }

    unsafe fn free_pinned(&self, address: Address) -> Result<()> {
        let call = Call::FreePinned;
        let inner = self.inner(call)?;
        if address.is_null() {
            return Ok(());
        }
        let buffer = lock(&inner.space).remove_host(call, address, MemoryKind::Pinned)?;
        drop(buffer);
        Ok(())
    }

    unsafe fn register(&self, span: Span, flags: PinnedFlags) -> Result<()> {
        let call = Call::Register;
        let inner = self.inner(call)?;
        inner.health.check(call)?;
        check_flags(call, flags)?;
        nonzero(call, "span", span.size())?;
        let write_combined = flags.contains(PinnedFlags::WRITE_COMBINED);
        if write_combined {
            let missing = "memory that exists cannot be made write-combined";
            return Err(Error::Unsupported { call, missing: missing.into() });
        }
        lock(&inner.space).check_apart(span)?;
        // Metal takes whole pages. Those around the span are mapped, since a part of each is.
        let first = Bytes::new(span.start().get()).align_down(PAGE);
        let end = Bytes::new(span.end().get()).align_up(PAGE);
        let end = end.map_err(|error| Error::quantity(call, "span", &error))?;
        let length = count(call, end.saturating_sub(first))?;
        let start = core::ptr::with_exposed_provenance_mut::<c_void>(count(call, first)?);
        let options =
            MTLResourceOptions::StorageModeShared | MTLResourceOptions::HazardTrackingModeUntracked;
        let refused = || {
            let allowed = "memory in one mapping of the system, such as mmap gives";
            invalid(call, "span", span, allowed)
        };
        let start = NonNull::new(start).ok_or_else(refused)?;
        // SAFETY: the pages are mapped until the memory is unregistered, as the caller promised of the span in them;
        // nobody frees them for Metal.
        let buffer = unsafe {
            inner
                .raw
                .newBufferWithBytesNoCopy_length_options_deallocator(start, length, options, None)
        };
        let buffer = Buffer::new(buffer.ok_or_else(refused)?);
        let offset = span.start().get() - first.get();
        let device = buffer.device_address().checked_add(Bytes::new(offset)).ok_or_else(refused)?;
        let mut space = lock(&inner.space);
        // Another thread may have been first.
        space.check_apart(span)?;
        space.insert_host(
            span,
            device,
            BufferOffset { buffer, offset },
            flags,
            MemoryKind::Registered,
        );
        Ok(())
    }

    unsafe fn unregister(&self, start: Address) -> Result<()> {
        let call = Call::Unregister;
        let buffer =
            lock(&self.inner(call)?.space).remove_host(call, start, MemoryKind::Registered)?;
        drop(buffer);
        Ok(())
    }

    fn device_address(&self, host: Address) -> Result<Address> {
        lock(&self.inner(Call::DeviceAddress)?.space).device_address(host)
    }
}
