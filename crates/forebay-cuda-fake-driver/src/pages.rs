//! Addresses apart from the memory behind them.

use core::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, IntoRawFd};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemGenericAllocationHandle,
    CUmemLocationType, CUresult,
};
use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal};
use forebay_hal::{Access, PageOptions, Sharing, VirtualMemory};

use crate::answer::{Answer, exports, put, said};
use crate::context::here;
use crate::machine::{Machine, PageEntry, span};

/// The device memory is asked for on, and what pages. The host's memory is the current device's pinned memory.
///
/// # Safety
///
/// * `properties` is null or points to some.
unsafe fn asked(
    properties: *const CUmemAllocationProp,
    current: u32,
) -> Answer<(u32, PageOptions)> {
    if properties.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller promised.
    let properties = unsafe { properties.read() };
    match properties.location.type_ {
        CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE => {}
        CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA if properties.location.id == 0 => {
            return Ok((current, PageOptions::pinned()));
        }
        _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    }
    let descriptor = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let shareable = properties.requestedHandleTypes == descriptor;
    let ordinal = u32::try_from(properties.location.id);
    let options = if shareable { PageOptions::shareable() } else { PageOptions::default() };
    Ok((ordinal.map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?, options))
}

/// The device whose region an address lies in.
fn owner(machine: &Machine, at: u64) -> Answer<u32> {
    let tables = machine.tables();
    let found =
        tables.regions.iter().find(|&(&start, &(_, size))| at >= start && at - start < size);
    found.map(|(_, &(device, _))| device).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

fn page(machine: &Machine, handle: u64) -> Answer<PageEntry> {
    machine.tables().pages.get(&handle).copied().ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

exports! {
    "cuMemAddressReserve" 10020 fn cuMemAddressReserve(
        address: *mut CUdeviceptr,
        size: usize,
        alignment: usize,
        _hint: CUdeviceptr,
        _flags: c_ulonglong,
    ) {
        let (machine, ordinal) = here()?;
        let alignment = Alignment::new(alignment.max(1) as u64);
        let alignment = alignment.map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let device = machine.device(ordinal)?;
        let region = said(device.reserve(Bytes::new(size as u64), alignment))?;
        machine.tables().regions.insert(region.start().get(), (ordinal, size as u64));
        // SAFETY: a place of the caller's.
        unsafe { put(address, region.start().get()) }
    }

    "cuMemAddressFree" 10020 fn cuMemAddressFree(address: CUdeviceptr, size: usize) {
        let (machine, _) = here()?;
        let known = machine.tables().regions.get(&address).copied();
        let Some((ordinal, whole)) = known.filter(|&(_, whole)| whole == size as u64) else {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        };
        let device = machine.device(ordinal)?;
        machine.tables().regions.remove(&address);
        // SAFETY: the caller of the driver's function has promised that nothing uses it.
        let released = unsafe { device.release_region(Address::new(address)) };
        if released.is_err() {
            machine.tables().regions.insert(address, (ordinal, whole));
        }
        said(released)
    }

    "cuMemCreate" 10020 fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        size: usize,
        properties: *const CUmemAllocationProp,
        _flags: c_ulonglong,
    ) {
        let (machine, current) = here()?;
        // SAFETY: properties of the caller's.
        let (ordinal, options) = unsafe { asked(properties, current) }?;
        let size = Bytes::new(size as u64);
        let page = said(machine.device(ordinal)?.create_page(size, options))?;
        let mut tables = machine.tables();
        let number = tables.next();
        tables.pages.insert(number, PageEntry { device: ordinal, page, size });
        // SAFETY: a place of the caller's.
        unsafe { put(handle, number) }
    }

    "cuMemRelease" 10020 fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        let (machine, _) = here()?;
        let entry = page(machine, handle)?;
        said(machine.device(entry.device)?.release_page(entry.page))?;
        machine.tables().pages.remove(&handle);
        Ok(())
    }

    "cuMemMap" 10020 fn cuMemMap(
        address: CUdeviceptr,
        size: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        _flags: c_ulonglong,
    ) {
        let (machine, _) = here()?;
        let entry = page(machine, handle)?;
        // Seen on hardware: less than the whole is not supported, more is an error.
        if offset != 0 || (size as u64) < entry.size.get() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        if size as u64 > entry.size.get() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        said(machine.device(entry.device)?.map(Address::new(address), entry.page))
    }

    "cuMemUnmap" 10020 fn cuMemUnmap(address: CUdeviceptr, size: usize) {
        let (machine, _) = here()?;
        let device = machine.device(owner(machine, address)?)?;
        // SAFETY: the caller of the driver's function has promised that nothing uses it.
        said(unsafe { device.unmap(span(address, size as u64)?) })
    }

    "cuMemSetAccess" 10020 fn cuMemSetAccess(
        address: CUdeviceptr,
        size: usize,
        descriptions: *const CUmemAccessDesc,
        count: usize,
    ) {
        let (machine, _) = here()?;
        let device = machine.device(owner(machine, address)?)?;
        for index in 0..count {
            // SAFETY: so many descriptions are the caller's.
            let description = unsafe { descriptions.add(index).read() };
            let access = match description.flags {
                CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE => Access::None,
                CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ => Access::Read,
                CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => Access::ReadWrite,
                _ => return Err(CUresult::CUDA_ERROR_INVALID_VALUE),
            };
            if description.location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA {
                // The simulated device's pinned pages are the host's with the device.
                continue;
            }
            let who = u32::try_from(description.location.id);
            let who = DeviceOrdinal(who.map_err(|_| CUresult::CUDA_ERROR_INVALID_DEVICE)?);
            // SAFETY: the caller of the driver's function has promised that nothing uses it so.
            said(unsafe { device.set_access(span(address, size as u64)?, access, who) })?;
        }
        Ok(())
    }

    "cuMemGetAllocationGranularity" 10020 fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const CUmemAllocationProp,
        option: CUmemAllocationGranularity_flags,
    ) {
        let (machine, current) = here()?;
        // SAFETY: properties of the caller's.
        let (ordinal, _) = unsafe { asked(properties, current) }?;
        let known = machine.device(ordinal)?.granularity();
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let size = if option == minimum { known.minimum } else { known.recommended };
        // SAFETY: a place of the caller's.
        unsafe { put(granularity, size.bytes().to_usize().unwrap_or(usize::MAX)) }
    }

    "cuMemExportToShareableHandle" 10020 fn cuMemExportToShareableHandle(
        place: *mut c_void,
        handle: CUmemGenericAllocationHandle,
        kind: CUmemAllocationHandleType,
        _flags: c_ulonglong,
    ) {
        let (machine, _) = here()?;
        if kind != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let entry = page(machine, handle)?;
        let descriptor = said(machine.device(entry.device)?.export_page(entry.page))?;
        // The real driver leaves it open on exec, so this one does.
        let _ = rustix::io::fcntl_setfd(&descriptor, rustix::io::FdFlags::empty());
        // SAFETY: a place of the caller's for an int.
        unsafe { put(place.cast::<c_int>(), descriptor.into_raw_fd()) }
    }

    "cuMemImportFromShareableHandle" 10020 fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle,
        descriptor: *mut c_void,
        kind: CUmemAllocationHandleType,
    ) {
        let (machine, ordinal) = here()?;
        if kind != CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let unknown = CUresult::CUDA_ERROR_UNKNOWN;
        let raw = c_int::try_from(descriptor.addr()).map_err(|_| unknown)?;
        if raw < 0 {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        // SAFETY: open, as the caller of the driver's function has promised, for this call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(raw) };
        let status = rustix::fs::fstat(descriptor).map_err(|_| unknown)?;
        let size = Bytes::new(u64::try_from(status.st_size).map_err(|_| unknown)?);
        let imported = machine.device(ordinal)?.import_page(descriptor, size);
        let page = imported.map_err(|_| unknown)?;
        let mut tables = machine.tables();
        let number = tables.next();
        tables.pages.insert(number, PageEntry { device: ordinal, page, size });
        // SAFETY: a place of the caller's.
        unsafe { put(handle, number) }
    }
}
