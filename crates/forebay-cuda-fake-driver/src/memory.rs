//! Plain, pinned and managed memory, and what an address is.

use core::ffi::{c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmemLocation, CUmemLocationType, CUpointer_attribute,
    CUresult, CUstream,
};
use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal};
use forebay_hal::{Advice, Device, ManagedMemory, Memory, PinnedFlags, PinnedMemory, PointerKind};

use crate::answer::{Answer, exports, put, said};
use crate::context::here;
use crate::machine::{machine, span};
use crate::streams::ordered;

/// The least piece of pinned memory that begins at a whole page, and what smaller ones begin at
/// multiples of: as the driver does it.
const SMALL: usize = 1 << 20;

/// A place for memory, as the first generation of calls names it.
fn place_of(device: CUdevice) -> Answer<Option<DeviceOrdinal>> {
    if device == -1 {
        return Ok(None);
    }
    let ordinal = u32::try_from(device).map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    Ok(Some(DeviceOrdinal(ordinal)))
}

/// The same of the second.
fn place_at(location: CUmemLocation) -> Answer<Option<DeviceOrdinal>> {
    match location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => place_of(location.id),
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST => Ok(None),
        _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
}

fn prefetch(at: u64, size: usize, to: Option<DeviceOrdinal>, handle: CUstream) -> Answer {
    let (machine, _) = here()?;
    let entry = ordered(handle)?;
    let (owner, _) = machine.find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let device = machine.device(owner)?;
    // The simulated device knows no other's streams, and forebay uses its own.
    if owner != entry.device {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    said(device.prefetch(span(at, size as u64)?, to, entry.stream))
}

fn advise(at: u64, size: usize, advice: CUmem_advise, to: Option<DeviceOrdinal>) -> Answer {
    use CUmem_advise as A;
    let (machine, _) = here()?;
    let (owner, _) = machine.find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    let advice = match advice {
        A::CU_MEM_ADVISE_SET_READ_MOSTLY => Advice::ReadMostly,
        A::CU_MEM_ADVISE_UNSET_READ_MOSTLY => Advice::NotReadMostly,
        A::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => Advice::PreferredLocation(to),
        A::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => Advice::NoPreferredLocation,
        A::CU_MEM_ADVISE_SET_ACCESSED_BY => Advice::AccessedBy(to),
        A::CU_MEM_ADVISE_UNSET_ACCESSED_BY => Advice::NotAccessedBy(to),
    };
    said(machine.device(owner)?.advise(span(at, size as u64)?, advice))
}

/// Gives memory back of whichever kind, on whichever device.
pub(crate) fn free(at: u64, kinds: &[PointerKind]) -> Answer {
    let (machine, _) = here()?;
    let (owner, class) = machine.find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
    if !kinds.contains(&class.kind) {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    let (device, address) = (machine.device(owner)?, Address::new(at));
    // SAFETY: the caller of the driver's function has promised that nothing uses it. For all three.
    said(unsafe {
        match class.kind {
            PointerKind::Managed => device.free_managed(address),
            PointerKind::Pinned => device.free_pinned(address),
            _ => device.free(address),
        }
    })
}

exports! {
    "cuMemGetInfo" 3020 fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        let (machine, ordinal) = here()?;
        let info = said(machine.device(ordinal)?.memory_info())?;
        let figure = |bytes: Bytes| bytes.to_usize().unwrap_or(usize::MAX);
        // SAFETY: two places of the caller's.
        unsafe { put(free, figure(info.free)).and_then(|()| put(total, figure(info.total))) }
    }

    "cuMemAlloc" 3020 fn cuMemAlloc_v2(address: *mut CUdeviceptr, size: usize) {
        let (machine, ordinal) = here()?;
        if size == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let memory =
            said(machine.device(ordinal)?.allocate(Bytes::new(size as u64), Alignment::BLOCK))?;
        // SAFETY: a place of the caller's.
        unsafe { put(address, memory.get()) }
    }

    "cuMemFree" 3020 fn cuMemFree_v2(address: CUdeviceptr) {
        free(address, &[PointerKind::Device, PointerKind::Managed])
    }

    "cuMemHostAlloc" 2020 fn cuMemHostAlloc(
        address: *mut *mut c_void,
        size: usize,
        flags: c_uint,
    ) {
        let (machine, ordinal) = here()?;
        if size == 0 || flags > 7 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // Bits of both are in another order; all memory is mapped where addresses are one space.
        let mut wanted = PinnedFlags::MAPPED;
        wanted.set(PinnedFlags::PORTABLE, flags & 1 != 0);
        wanted.set(PinnedFlags::WRITE_COMBINED, flags & 4 != 0 && size >= SMALL);
        let memory =
            said(machine.device(ordinal)?.allocate_pinned(Bytes::new(size as u64), wanted))?;
        // SAFETY: a place of the caller's.
        unsafe { put(address, crate::context::handle(memory.get())) }
    }

    "cuMemFreeHost" 2000 fn cuMemFreeHost(address: *mut c_void) {
        free(crate::context::number(address), &[PointerKind::Pinned])
    }

    "cuMemHostRegister" 6050 fn cuMemHostRegister_v2(
        address: *mut c_void,
        size: usize,
        flags: c_uint,
    ) {
        let (machine, ordinal) = here()?;
        let at = crate::context::number(address);
        let mut wanted = PinnedFlags::MAPPED;
        wanted.set(PinnedFlags::PORTABLE, flags & 1 != 0);
        let span = span(at, size as u64)?;
        // Memory is registered for the process, not for a device.
        for offset in [0, span.size().get().saturating_sub(1)] {
            if machine.find(at + offset).is_some() {
                return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
            }
        }
        // SAFETY: the caller of the driver's function has promised that the span stays mapped.
        said(unsafe { machine.device(ordinal)?.register(span, wanted) })
    }

    "cuMemHostUnregister" 4000 fn cuMemHostUnregister(address: *mut c_void) {
        let (machine, _) = here()?;
        let at = crate::context::number(address);
        let not = CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
        let (owner, _) = machine.find(at).ok_or(not)?;
        // SAFETY: the caller of the driver's function has promised that nothing uses it.
        unsafe { machine.device(owner)?.unregister(Address::new(at)) }.map_err(|_| not)
    }

    "cuMemHostGetDevicePointer" 3020 fn cuMemHostGetDevicePointer_v2(
        device: *mut CUdeviceptr,
        host: *mut c_void,
        _flags: c_uint,
    ) {
        let (machine, _) = here()?;
        let at = crate::context::number(host);
        let (owner, _) = machine.find(at).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let there = said(machine.device(owner)?.device_address(Address::new(at)))?;
        // SAFETY: a place of the caller's.
        unsafe { put(device, there.get()) }
    }

    "cuMemAllocManaged" 6000 fn cuMemAllocManaged(
        address: *mut CUdeviceptr,
        size: usize,
        flags: c_uint,
    ) {
        let (machine, ordinal) = here()?;
        if size == 0 || flags == 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let memory = said(machine.device(ordinal)?.allocate_managed(Bytes::new(size as u64)))?;
        // SAFETY: a place of the caller's.
        unsafe { put(address, memory.get()) }
    }

    "cuMemPrefetchAsync" 8000 fn cuMemPrefetchAsync(
        address: CUdeviceptr,
        size: usize,
        device: CUdevice,
        stream: CUstream,
    ) {
        prefetch(address, size, place_of(device)?, stream)
    }

    "cuMemPrefetchAsync" 12020 fn cuMemPrefetchAsync_v2(
        address: CUdeviceptr,
        size: usize,
        location: CUmemLocation,
        _flags: c_uint,
        stream: CUstream,
    ) {
        prefetch(address, size, place_at(location)?, stream)
    }

    "cuMemAdvise" 8000 fn cuMemAdvise(
        address: CUdeviceptr,
        size: usize,
        advice: CUmem_advise,
        device: CUdevice,
    ) {
        advise(address, size, advice, place_of(device)?)
    }

    "cuMemAdvise" 12020 fn cuMemAdvise_v2(
        address: CUdeviceptr,
        size: usize,
        advice: CUmem_advise,
        location: CUmemLocation,
    ) {
        advise(address, size, advice, place_at(location)?)
    }

    "cuPointerGetAttributes" 7000 fn cuPointerGetAttributes(
        count: c_uint,
        attributes: *mut CUpointer_attribute,
        values: *mut *mut c_void,
        address: CUdeviceptr,
    ) {
        use CUpointer_attribute as A;
        here()?;
        let found = machine()?.find(address);
        let kind = found.map_or(0, |(_, class)| match class.kind {
            PointerKind::Pinned => 1,
            _ => 2_u32,
        });
        let managed = found.is_some_and(|(_, class)| class.kind == PointerKind::Managed);
        let ordinal = found.map_or(-2, |(ordinal, _)| c_int::try_from(ordinal).unwrap_or(-2));
        let (start, size) = found.map_or((0, 0), |(_, class)| {
            (class.span.start().get(), class.span.size().get())
        });
        for index in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: so many attributes and places are the caller's, each wide enough for what its
            // attribute is. For the whole block.
            unsafe {
                let place = values.add(index).read();
                match attributes.add(index).read() {
                    A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => put(place.cast::<u32>(), kind)?,
                    A::CU_POINTER_ATTRIBUTE_IS_MANAGED => put(place.cast::<bool>(), managed)?,
                    A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(place.cast::<c_int>(), ordinal)?,
                    A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => put(place.cast::<u64>(), start)?,
                    A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => put(place.cast::<u64>(), size)?,
                    _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
                }
            }
        }
        Ok(())
    }
}
