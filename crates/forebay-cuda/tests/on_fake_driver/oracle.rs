//! Every size, offset, alignment and value declared in `sys`, held against an independent set of
//! bindings. Nothing is called: there need be no driver.

use core::mem::{align_of, offset_of, size_of};
use std::collections::BTreeSet;

use cudarc::driver::sys as theirs;
use forebay_cuda::sys::{self as ours, Code, SYMBOLS, values};

/// Holds one structure against another, field by field.
macro_rules! same_layout {
    ($ours:ty, $theirs:ty { $($field:ident = $their_field:ident),+ $(,)? }) => {
        assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), "size of {}", stringify!($ours));
        assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), "alignment of {}", stringify!($ours));
        $(
            assert_eq!(
                offset_of!($ours, $field),
                offset_of!($theirs, $their_field),
                "offset of {} in {}", stringify!($field), stringify!($ours)
            );
            same_width(
                |value: &$ours| size_of_val(&value.$field),
                |value: &$theirs| size_of_val(&value.$their_field),
                stringify!($ours.$field),
            );
        )+
    };
}

/// The width of a field, without a value to look at: any zeroed one does.
fn same_width<A, B>(one: fn(&A) -> usize, two: fn(&B) -> usize, what: &str) {
    // SAFETY: structures of numbers, pointers and enumerations that have a zero.
    let (left, right) = unsafe { (core::mem::zeroed::<A>(), core::mem::zeroed::<B>()) };
    assert_eq!(one(&left), two(&right), "width of {what}");
}

#[test]
fn structures_lie_as_the_driver_reads_them() {
    same_layout!(ours::MemoryLocation, theirs::CUmemLocation { kind = type_, id = id });
    same_layout!(ours::AllocationFlags, theirs::CUmemAllocationProp_st__bindgen_ty_1 {
        compression = compressionType, gpu_direct = gpuDirectRDMACapable, usage = usage,
        reserved = reserved,
    });
    // A zeroed value of theirs would not be one of their enumerations: offsets are compared alone.
    assert_eq!(size_of::<ours::AllocationProperties>(), size_of::<theirs::CUmemAllocationProp>());
    assert_eq!(align_of::<ours::AllocationProperties>(), align_of::<theirs::CUmemAllocationProp>());
    for (what, ours, theirs) in [
        (
            "kind",
            offset_of!(ours::AllocationProperties, kind),
            offset_of!(theirs::CUmemAllocationProp, type_),
        ),
        (
            "handle_types",
            offset_of!(ours::AllocationProperties, handle_types),
            offset_of!(theirs::CUmemAllocationProp, requestedHandleTypes),
        ),
        (
            "location",
            offset_of!(ours::AllocationProperties, location),
            offset_of!(theirs::CUmemAllocationProp, location),
        ),
        (
            "win32_metadata",
            offset_of!(ours::AllocationProperties, win32_metadata),
            offset_of!(theirs::CUmemAllocationProp, win32HandleMetaData),
        ),
        (
            "flags",
            offset_of!(ours::AllocationProperties, flags),
            offset_of!(theirs::CUmemAllocationProp, allocFlags),
        ),
    ] {
        assert_eq!(ours, theirs, "offset of {what} in AllocationProperties");
    }
    same_layout!(ours::AccessDescription, theirs::CUmemAccessDesc {
        location = location, flags = flags,
    });
}

/// The copies' structures: their memory types have no zero, so offsets and the size tell all.
macro_rules! same_offsets {
    ($ours:ty, $theirs:ty { $($field:ident = $their_field:ident),+ $(,)? }) => {
        assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), "size of {}", stringify!($ours));
        assert_eq!(align_of::<$ours>(), align_of::<$theirs>(), "alignment of {}", stringify!($ours));
        $(assert_eq!(
            offset_of!($ours, $field),
            offset_of!($theirs, $their_field),
            "offset of {} in {}", stringify!($field), stringify!($ours)
        );)+
    };
}

#[test]
fn copies_lie_as_the_driver_reads_them() {
    same_offsets!(ours::Copy2d, theirs::CUDA_MEMCPY2D {
        src_x = srcXInBytes, src_y = srcY, src_type = srcMemoryType, src_host = srcHost,
        src_device = srcDevice, src_array = srcArray, src_pitch = srcPitch, dst_x = dstXInBytes,
        dst_y = dstY, dst_type = dstMemoryType, dst_host = dstHost, dst_device = dstDevice,
        dst_array = dstArray, dst_pitch = dstPitch, width = WidthInBytes, height = Height,
    });
    same_offsets!(ours::CopyAttributes, theirs::CUmemcpyAttributes {
        source_order = srcAccessOrder, source = srcLocHint, destination = dstLocHint, flags = flags,
    });
    same_offsets!(ours::Copy3d, theirs::CUDA_MEMCPY3D {
        src_x = srcXInBytes, src_y = srcY, src_z = srcZ, src_lod = srcLOD,
        src_type = srcMemoryType, src_host = srcHost, src_device = srcDevice, src_array = srcArray,
        reserved0 = reserved0, src_pitch = srcPitch, src_height = srcHeight, dst_x = dstXInBytes,
        dst_y = dstY, dst_z = dstZ, dst_lod = dstLOD, dst_type = dstMemoryType, dst_host = dstHost,
        dst_device = dstDevice, dst_array = dstArray, reserved1 = reserved1, dst_pitch = dstPitch,
        dst_height = dstHeight, width = WidthInBytes, height = Height, depth = Depth,
    });
}

#[test]
fn handles_are_as_wide_as_the_drivers() {
    assert_eq!(size_of::<ours::RawContext>(), size_of::<theirs::CUcontext>());
    assert_eq!(size_of::<ours::RawStream>(), size_of::<theirs::CUstream>());
    assert_eq!(size_of::<ours::RawEvent>(), size_of::<theirs::CUevent>());
    assert_eq!(size_of::<ours::RawPage>(), size_of::<theirs::CUmemGenericAllocationHandle>());
    assert_eq!(size_of::<ours::RawModule>(), size_of::<theirs::CUmodule>());
    assert_eq!(size_of::<ours::RawFunction>(), size_of::<theirs::CUfunction>());
    assert_eq!(size_of::<Code>(), size_of::<theirs::CUresult>());
    assert_eq!(size_of::<u64>(), size_of::<theirs::CUdeviceptr>());
    assert_eq!(size_of::<u64>(), size_of::<usize>());
    assert_eq!(size_of::<ours::HostFunction>(), size_of::<theirs::CUhostFn>());
}

/// Compares constants with variants of an enumeration.
macro_rules! same_values {
    ($theirs:ident { $($ours:expr => $variant:ident),+ $(,)? }) => {
        $(assert_eq!(
            u64::from($ours),
            theirs::$theirs::$variant as u64,
            "{} as {}", stringify!($ours), stringify!($variant)
        );)+
    };
}

#[test]
fn constants_are_the_drivers() {
    same_values!(CUmemcpySrcAccessOrder {
        values::access_order::STREAM => CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
    });
    same_values!(CUdevice_attribute {
        values::attribute::MAX_PITCH => CU_DEVICE_ATTRIBUTE_MAX_PITCH,
        values::attribute::CAN_MAP_HOST_MEMORY => CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
        values::attribute::UNIFIED_ADDRESSING => CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING,
        values::attribute::STREAM_PRIORITIES => CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED,
        values::attribute::MANAGED_MEMORY => CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
        values::attribute::CONCURRENT_MANAGED_ACCESS =>
            CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS,
        values::attribute::HOST_POINTER_FOR_REGISTERED =>
            CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        values::attribute::HOST_REGISTER => CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
        values::attribute::VIRTUAL_MEMORY =>
            CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
        values::attribute::SHARE_BY_DESCRIPTOR =>
            CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
        values::attribute::COMPUTE_MAJOR => CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        values::attribute::COMPUTE_MINOR => CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
        values::attribute::MEMORY_POOLS => CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
        values::attribute::MULTIPROCESSORS => CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    });
    same_values!(CUmemPool_attribute {
        values::memory_pool::REUSE_FOLLOW_EVENTS =>
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        values::memory_pool::REUSE_OPPORTUNISTIC => CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        values::memory_pool::REUSE_INTERNAL_DEPENDENCIES =>
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        values::memory_pool::RELEASE_THRESHOLD => CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        values::memory_pool::RESERVED_CURRENT => CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        values::memory_pool::RESERVED_HIGH => CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        values::memory_pool::USED_CURRENT => CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        values::memory_pool::USED_HIGH => CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    });
    same_values!(CUpointer_attribute {
        values::pointer::MEMORY_TYPE => CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        values::pointer::IS_MANAGED => CU_POINTER_ATTRIBUTE_IS_MANAGED,
        values::pointer::DEVICE_ORDINAL => CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        values::pointer::RANGE_START => CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        values::pointer::RANGE_SIZE => CU_POINTER_ATTRIBUTE_RANGE_SIZE,
    });
    same_values!(CUmemorytype {
        values::memory_type::HOST => CU_MEMORYTYPE_HOST,
        values::memory_type::DEVICE => CU_MEMORYTYPE_DEVICE,
        values::memory_type::UNIFIED => CU_MEMORYTYPE_UNIFIED,
    });
    same_values!(CUmemLocationType {
        values::location::DEVICE => CU_MEM_LOCATION_TYPE_DEVICE,
        values::location::HOST => CU_MEM_LOCATION_TYPE_HOST,
    });
    same_values!(CUmemAllocationType {
        values::allocation::PINNED => CU_MEM_ALLOCATION_TYPE_PINNED,
    });
    let handles = theirs::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
    assert_eq!(values::handle_type::NONE, handles.0);
    let handles = theirs::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    assert_eq!(values::handle_type::FILE_DESCRIPTOR, handles.0);
    same_values!(CUmemAllocationGranularity_flags {
        values::granularity::MINIMUM => CU_MEM_ALLOC_GRANULARITY_MINIMUM,
        values::granularity::RECOMMENDED => CU_MEM_ALLOC_GRANULARITY_RECOMMENDED,
    });
    same_values!(CUmemAccess_flags {
        values::access::NONE => CU_MEM_ACCESS_FLAGS_PROT_NONE,
        values::access::READ => CU_MEM_ACCESS_FLAGS_PROT_READ,
        values::access::READ_WRITE => CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    });
    same_values!(CUmem_advise {
        values::advice::SET_READ_MOSTLY => CU_MEM_ADVISE_SET_READ_MOSTLY,
        values::advice::UNSET_READ_MOSTLY => CU_MEM_ADVISE_UNSET_READ_MOSTLY,
        values::advice::SET_PREFERRED_LOCATION => CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
        values::advice::UNSET_PREFERRED_LOCATION => CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION,
        values::advice::SET_ACCESSED_BY => CU_MEM_ADVISE_SET_ACCESSED_BY,
        values::advice::UNSET_ACCESSED_BY => CU_MEM_ADVISE_UNSET_ACCESSED_BY,
    });
    same_values!(CUmemAttach_flags { values::attach::GLOBAL => CU_MEM_ATTACH_GLOBAL });
    same_values!(CUstream_flags { values::stream::NON_BLOCKING => CU_STREAM_NON_BLOCKING });
    same_values!(CUstreamCaptureStatus {
        values::capture_status::NONE => CU_STREAM_CAPTURE_STATUS_NONE,
    });
    same_values!(CUstreamCaptureMode {
        values::capture_mode::RELAXED.unsigned_abs() => CU_STREAM_CAPTURE_MODE_RELAXED,
    });
    same_values!(CUevent_flags {
        values::event::DEFAULT => CU_EVENT_DEFAULT,
        values::event::DISABLE_TIMING => CU_EVENT_DISABLE_TIMING,
    });
    same_values!(CUstreamWaitValue_flags {
        values::wait_value::GREATER_OR_EQUAL => CU_STREAM_WAIT_VALUE_GEQ,
    });
    same_values!(CUdriverProcAddress_flags {
        values::proc_address::LEGACY_STREAM => CU_GET_PROC_ADDRESS_LEGACY_STREAM,
    });
    assert_eq!(values::host_alloc::PORTABLE, theirs::CU_MEMHOSTALLOC_PORTABLE);
    assert_eq!(values::host_alloc::DEVICE_MAP, theirs::CU_MEMHOSTALLOC_DEVICEMAP);
    assert_eq!(values::host_alloc::WRITE_COMBINED, theirs::CU_MEMHOSTALLOC_WRITECOMBINED);
    assert_eq!(values::host_register::PORTABLE, theirs::CU_MEMHOSTREGISTER_PORTABLE);
    assert_eq!(values::host_register::DEVICE_MAP, theirs::CU_MEMHOSTREGISTER_DEVICEMAP);
    assert_eq!(values::DECLARED_VERSION, theirs::CUDA_VERSION.cast_signed());
}

#[test]
fn codes_have_the_drivers_names() {
    for &(code, name) in Code::ALL {
        // SAFETY: every code in the list is one of theirs, or this test has found the one that is
        // not; the enumeration is as wide as a code.
        let theirs = unsafe { core::mem::transmute::<Code, theirs::CUresult>(code) };
        assert_eq!(format!("{theirs:?}"), name, "code {}", code.0);
    }
}

#[test]
fn every_function_is_named_once_and_older_than_what_is_declared() {
    let mut exports = BTreeSet::new();
    for symbol in SYMBOLS {
        assert!(exports.insert(symbol.export), "{} is there twice", symbol.export);
        assert!(symbol.export.starts_with(symbol.name), "{symbol:?}");
        assert!((2000..=values::DECLARED_VERSION).contains(&symbol.version), "{symbol:?}");
    }
    assert!(exports.len() >= 60, "{} functions", exports.len());
}
