//! Plain, pinned and managed memory, pages, and what an address is.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_cuda::sys::values::{DEVICE_CPU, location, memory_type, pointer};
use forebay_cuda::sys::{
    AccessDescription, AllocationProperties, Code, MemoryLocation, RawPage, RawStream,
};

use crate::runtime::{Runtime, exports, put, same};

/// `hipPointerAttribute_t`.
#[repr(C)]
struct PointerAttributes {
    kind: u32,
    device: c_int,
    device_pointer: u64,
    host_pointer: u64,
    is_managed: c_int,
    flags: u32,
}

/// What CUDA knows of an address.
#[derive(Default)]
struct Known {
    kind: u32,
    managed: u32,
    device: c_int,
    start: u64,
    size: u64,
}

/// How large the mapping at each address is.
static MAPPINGS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());

fn mappings() -> MutexGuard<'static, BTreeMap<u64, u64>> {
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether an address is memory of the host's that HIP knows.
pub(crate) fn is_host(runtime: &Runtime, address: u64) -> bool {
    let known = known(runtime, address);
    known.is_ok_and(|known| known.kind == memory_type::HOST && known.managed & 0xff == 0)
}

fn known(runtime: &Runtime, address: u64) -> Result<Known, Code> {
    let mut known = Known::default();
    let attributes = [
        pointer::MEMORY_TYPE,
        pointer::IS_MANAGED,
        pointer::DEVICE_ORDINAL,
        pointer::RANGE_START,
        pointer::RANGE_SIZE,
    ];
    let places: [*mut c_void; 5] = [
        (&raw mut known.kind).cast(),
        (&raw mut known.managed).cast(),
        (&raw mut known.device).cast(),
        (&raw mut known.start).cast(),
        (&raw mut known.size).cast(),
    ];
    runtime.call(|table| {
        // SAFETY: five attributes and five places of our own, each wide enough.
        unsafe { table.pointer_get_attributes(5, attributes.as_ptr(), places.as_ptr(), address) }
    })?;
    Ok(known)
}

/// A device by its number, or the host, as a location.
const fn place(device: c_int) -> MemoryLocation {
    match device {
        DEVICE_CPU => MemoryLocation { kind: location::HOST, id: 0 },
        _ => MemoryLocation { kind: location::DEVICE, id: device },
    }
}

same! {
    hipMemGetInfo = mem_get_info(free: *mut u64, total: *mut u64);
    hipMalloc = mem_alloc(address: *mut u64, size: u64);
    hipFree = mem_free(address: u64);
    hipHostMalloc = mem_host_alloc(address: *mut u64, size: u64, flags: u32);
    hipHostFree = mem_free_host(address: u64);
    hipHostRegister = mem_host_register(address: u64, size: u64, flags: u32);
    hipHostUnregister = mem_host_unregister(address: u64);
    hipHostGetDevicePointer = mem_host_device_pointer(device: *mut u64, host: u64, flags: u32);
    hipMallocManaged = mem_alloc_managed(address: *mut u64, size: u64, flags: u32);
    hipMemPrefetchAsync_v2 = mem_prefetch_v2(
        address: u64, size: u64, location: MemoryLocation, flags: u32, stream: RawStream,
    );
    hipMemAdvise_v2 = mem_advise_v2(address: u64, size: u64, advice: u32, location: MemoryLocation);
    hipMemAddressReserve = mem_address_reserve(
        address: *mut u64, size: u64, alignment: u64, hint: u64, flags: u64,
    );
    hipMemAddressFree = mem_address_free(address: u64, size: u64);
    hipMemRelease = mem_release(page: RawPage);
    hipMemSetAccess = mem_set_access(
        address: u64, size: u64, descriptions: *const AccessDescription, count: u64,
    );
    hipMemExportToShareableHandle = mem_export(
        handle: *mut c_void, page: RawPage, kind: u32, flags: u64,
    );
}

exports! {
    fn hipMemPrefetchAsync(address: u64, size: u64, device: c_int, stream: RawStream) |runtime| {
        runtime.call(|table| {
            // SAFETY: as the caller of HIP's function promised. For both.
            unsafe {
                if table.mem_prefetch_v2.is_some() {
                    table.mem_prefetch_v2(address, size, place(device), 0, stream)
                } else {
                    table.mem_prefetch_v1(address, size, device, stream)
                }
            }
        })
    }

    fn hipMemAdvise(address: u64, size: u64, advice: u32, device: c_int) |runtime| {
        runtime.call(|table| {
            // SAFETY: as the caller of HIP's function promised. For both.
            unsafe {
                if table.mem_advise_v2.is_some() {
                    table.mem_advise_v2(address, size, advice, place(device))
                } else {
                    table.mem_advise_v1(address, size, advice, device)
                }
            }
        })
    }

    fn hipMemCreate(
        page: *mut RawPage,
        size: u64,
        properties: *const AllocationProperties,
        flags: u64,
    ) |runtime| {
        // SAFETY: the caller's properties.
        let asked = unsafe { properties.read() };
        // HIP has no pages of the host's memory.
        if asked.location.kind != location::DEVICE {
            return Err(Code::ERROR_INVALID_VALUE);
        }
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.mem_create(page, size, properties, flags) })
    }

    fn hipMemGetAllocationGranularity(
        granularity: *mut u64,
        properties: *const AllocationProperties,
        option: u32,
    ) |runtime| {
        // SAFETY: the caller's properties.
        if unsafe { properties.read() }.location.kind != location::DEVICE {
            return Err(Code::ERROR_INVALID_VALUE);
        }
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.mem_granularity(granularity, properties, option) })
    }

    fn hipMemMap(address: u64, size: u64, offset: u64, page: RawPage, flags: u64) |runtime| {
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.mem_map(address, size, offset, page, flags) })?;
        mappings().insert(address, size);
        Ok(())
    }

    fn hipMemUnmap(address: u64, size: u64) |runtime| {
        // HIP takes one mapping at a time.
        if mappings().get(&address) != Some(&size) {
            return Err(Code::ERROR_INVALID_VALUE);
        }
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.mem_unmap(address, size) })?;
        mappings().remove(&address);
        Ok(())
    }

    fn hipMemImportFromShareableHandle(
        page: *mut RawPage,
        handle: *mut c_void,
        kind: u32,
    ) |runtime| {
        let descriptor = if runtime.version < 70_100_000 {
            if handle.is_null() {
                return Err(Code::ERROR_INVALID_VALUE);
            }
            // SAFETY: the address of a descriptor, as HIP asked before 7.1.
            unsafe { handle.cast::<c_int>().read() }
        } else {
            c_int::try_from(handle.addr()).map_err(|_| Code::ERROR_INVALID_VALUE)?
        };
        // CUDA takes the number itself in the place of an address.
        let number = usize::try_from(descriptor).map_err(|_| Code::ERROR_INVALID_VALUE)?;
        let handle = core::ptr::without_provenance_mut(number);
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.mem_import(page, handle, kind) })
    }

    fn hipPointerGetAttributes(attributes: *mut PointerAttributes, address: u64) |runtime| {
        let known = known(runtime, address)?;
        let (host, device, managed) = if runtime.is_wide() { (1, 2, 3) } else { (0, 1, 4) };
        let is_managed = known.managed & 0xff != 0;
        let kind = match known.kind {
            _ if is_managed => managed,
            memory_type::HOST => host,
            memory_type::DEVICE => device,
            // Memory it does not know has a type of its own from 6.0 on.
            _ if runtime.is_wide() => 0,
            _ => return Err(Code::ERROR_INVALID_VALUE),
        };
        let told = PointerAttributes {
            kind,
            device: known.device,
            device_pointer: address,
            host_pointer: if kind == host { address } else { 0 },
            is_managed: c_int::from(is_managed),
            flags: 0,
        };
        // SAFETY: a place of the caller's.
        unsafe { put(attributes, told) }
    }

    fn hipMemGetAddressRange(start: *mut u64, size: *mut u64, address: u64) |runtime| {
        let known = known(runtime, address)?;
        if known.size == 0 {
            return Err(Code::ERROR_NOT_FOUND);
        }
        // SAFETY: two places of the caller's.
        unsafe { put(start, known.start).and_then(|()| put(size, known.size)) }
    }
}
