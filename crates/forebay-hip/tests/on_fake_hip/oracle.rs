//! Every size, offset, value and signature declared in `sys`, held against an independent set of bindings. Nothing is
//! called: there need be no library.
//!
//! The bindings are those of the installed ROCm, from 6.2 on, or the newest. So functions that came with ROCm 7 are left
//! out: they are in CUDA's table as they are, and CUDA's oracle holds them against CUDA's.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::mem::{align_of, offset_of, size_of};
use std::collections::BTreeSet;

use cubecl_hip_sys as theirs;
use forebay_cuda::sys as cuda;
use forebay_cuda::sys::values as cuda_values;
use forebay_hip::sys::values::{MEMCPY_DEFAULT, MemoryTypes, attribute, version};
use forebay_hip::sys::{self as ours, HIP, SYMBOLS};

/// Holds one structure against another, field by field.
macro_rules! same_layout {
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
fn structures_lie_as_hip_reads_them() {
    same_layout!(ours::PointerAttributes, theirs::hipPointerAttribute_t {
        kind = type_, device = device, device_pointer = devicePointer, host_pointer = hostPointer,
        is_managed = isManaged, flags = allocationFlags,
    });
    same_layout!(ours::Copy3d, theirs::HIP_MEMCPY3D {
        src_x = srcXInBytes, src_y = srcY, src_z = srcZ, src_lod = srcLOD,
        src_type = srcMemoryType, src_host = srcHost, src_device = srcDevice, src_array = srcArray,
        src_pitch = srcPitch, src_height = srcHeight, dst_x = dstXInBytes, dst_y = dstY,
        dst_z = dstZ, dst_lod = dstLOD, dst_type = dstMemoryType, dst_host = dstHost,
        dst_device = dstDevice, dst_array = dstArray, dst_pitch = dstPitch,
        dst_height = dstHeight, width = WidthInBytes, height = Height, depth = Depth,
    });
    // As ROCm 5.7's header has it.
    assert_eq!(size_of::<ours::NarrowCopy3d>(), 128);
    assert_eq!(offset_of!(ours::NarrowCopy3d, src_host), 24);
    assert_eq!(offset_of!(ours::NarrowCopy3d, dst_x), 56);
    assert_eq!(offset_of!(ours::NarrowCopy3d, dst_host), 80);
    assert_eq!(offset_of!(ours::NarrowCopy3d, width), 112);
}

#[test]
fn structures_shared_with_cuda_lie_as_hip_reads_them() {
    same_layout!(cuda::MemoryLocation, theirs::hipMemLocation { kind = type_, id = id });
    same_layout!(cuda::AccessDescription, theirs::hipMemAccessDesc {
        location = location, flags = flags,
    });
    same_layout!(cuda::AllocationProperties, theirs::hipMemAllocationProp {
        kind = type_, location = location, win32_metadata = win32HandleMetaData, flags = allocFlags,
    });
    same_layout!(cuda::Copy2d, theirs::hip_Memcpy2D {
        src_x = srcXInBytes, src_y = srcY, src_type = srcMemoryType, src_host = srcHost,
        src_device = srcDevice, src_array = srcArray, src_pitch = srcPitch, dst_x = dstXInBytes,
        dst_y = dstY, dst_type = dstMemoryType, dst_host = dstHost, dst_device = dstDevice,
        dst_array = dstArray, dst_pitch = dstPitch, width = WidthInBytes, height = Height,
    });
    assert_eq!(size_of::<cuda::RawStream>(), size_of::<theirs::hipStream_t>());
    assert_eq!(size_of::<cuda::RawEvent>(), size_of::<theirs::hipEvent_t>());
    assert_eq!(size_of::<cuda::RawPage>(), size_of::<theirs::hipMemGenericAllocationHandle_t>());
    assert_eq!(size_of::<cuda::Code>(), size_of::<theirs::hipError_t>());
    assert_eq!(size_of::<u64>(), size_of::<theirs::hipDeviceptr_t>());
    assert_eq!(size_of::<cuda::HostFunction>(), size_of::<theirs::hipHostFn_t>());
}

/// Compares constants.
macro_rules! same_values {
    ($($ours:expr => $theirs:ident),+ $(,)?) => {
        $(assert_eq!(
            u64::from($ours),
            u64::from(theirs::$theirs),
            "{} as {}", stringify!($ours), stringify!($theirs)
        );)+
    };
}

#[test]
fn constants_are_hips() {
    same_values! {
        attribute::CAN_MAP_HOST_MEMORY => hipDeviceAttribute_t_hipDeviceAttributeCanMapHostMemory,
        attribute::HOST_POINTER_FOR_REGISTERED =>
            hipDeviceAttribute_t_hipDeviceAttributeCanUseHostPointerForRegisteredMem,
        attribute::CONCURRENT_MANAGED_ACCESS =>
            hipDeviceAttribute_t_hipDeviceAttributeConcurrentManagedAccess,
        attribute::COMPUTE_MAJOR => hipDeviceAttribute_t_hipDeviceAttributeComputeCapabilityMajor,
        attribute::MANAGED_MEMORY => hipDeviceAttribute_t_hipDeviceAttributeManagedMemory,
        attribute::MAX_PITCH => hipDeviceAttribute_t_hipDeviceAttributeMaxPitch,
        attribute::COMPUTE_MINOR => hipDeviceAttribute_t_hipDeviceAttributeComputeCapabilityMinor,
        attribute::MULTIPROCESSORS => hipDeviceAttribute_t_hipDeviceAttributeMultiprocessorCount,
        attribute::STREAM_PRIORITIES =>
            hipDeviceAttribute_t_hipDeviceAttributeStreamPrioritiesSupported,
        attribute::UNIFIED_ADDRESSING => hipDeviceAttribute_t_hipDeviceAttributeUnifiedAddressing,
        attribute::VIRTUAL_MEMORY =>
            hipDeviceAttribute_t_hipDeviceAttributeVirtualMemoryManagementSupported,
        attribute::HOST_REGISTER => hipDeviceAttribute_t_hipDeviceAttributeHostRegisterSupported,
        MemoryTypes::WIDE.host => hipMemoryType_hipMemoryTypeHost,
        MemoryTypes::WIDE.device => hipMemoryType_hipMemoryTypeDevice,
        MemoryTypes::WIDE.managed => hipMemoryType_hipMemoryTypeManaged,
        MemoryTypes::WIDE.unified => hipMemoryType_hipMemoryTypeUnified,
        MEMCPY_DEFAULT => hipMemcpyKind_hipMemcpyDefault,
    }
    assert_eq!(version(60_342_134), 6030);
    assert_eq!(version(71_460_850), 7140);
}

#[test]
fn constants_shared_with_cuda_are_hips() {
    same_values! {
        cuda_values::location::DEVICE => hipMemLocationType_hipMemLocationTypeDevice,
        cuda_values::allocation::PINNED => hipMemAllocationType_hipMemAllocationTypePinned,
        cuda_values::handle_type::NONE => hipMemAllocationHandleType_hipMemHandleTypeNone,
        cuda_values::handle_type::FILE_DESCRIPTOR =>
            hipMemAllocationHandleType_hipMemHandleTypePosixFileDescriptor,
        cuda_values::granularity::MINIMUM =>
            hipMemAllocationGranularity_flags_hipMemAllocationGranularityMinimum,
        cuda_values::granularity::RECOMMENDED =>
            hipMemAllocationGranularity_flags_hipMemAllocationGranularityRecommended,
        cuda_values::access::NONE => hipMemAccessFlags_hipMemAccessFlagsProtNone,
        cuda_values::access::READ => hipMemAccessFlags_hipMemAccessFlagsProtRead,
        cuda_values::access::READ_WRITE => hipMemAccessFlags_hipMemAccessFlagsProtReadWrite,
        cuda_values::advice::SET_READ_MOSTLY => hipMemoryAdvise_hipMemAdviseSetReadMostly,
        cuda_values::advice::UNSET_READ_MOSTLY => hipMemoryAdvise_hipMemAdviseUnsetReadMostly,
        cuda_values::advice::SET_PREFERRED_LOCATION =>
            hipMemoryAdvise_hipMemAdviseSetPreferredLocation,
        cuda_values::advice::UNSET_PREFERRED_LOCATION =>
            hipMemoryAdvise_hipMemAdviseUnsetPreferredLocation,
        cuda_values::advice::SET_ACCESSED_BY => hipMemoryAdvise_hipMemAdviseSetAccessedBy,
        cuda_values::advice::UNSET_ACCESSED_BY => hipMemoryAdvise_hipMemAdviseUnsetAccessedBy,
        cuda_values::attach::GLOBAL => hipMemAttachGlobal,
        cuda_values::host_alloc::PORTABLE => hipHostMallocPortable,
        cuda_values::host_alloc::DEVICE_MAP => hipHostMallocMapped,
        cuda_values::host_alloc::WRITE_COMBINED => hipHostMallocWriteCombined,
        cuda_values::host_register::PORTABLE => hipHostRegisterPortable,
        cuda_values::host_register::DEVICE_MAP => hipHostRegisterMapped,
        cuda_values::stream::NON_BLOCKING => hipStreamNonBlocking,
        cuda_values::event::DEFAULT => hipEventDefault,
        cuda_values::event::DISABLE_TIMING => hipEventDisableTiming,
        cuda_values::wait_value::GREATER_OR_EQUAL => hipStreamWaitValueGte,
        cuda_values::capture_status::NONE =>
            hipStreamCaptureStatus_hipStreamCaptureStatusNone,
        cuda_values::capture_mode::RELAXED.unsigned_abs() =>
            hipStreamCaptureMode_hipStreamCaptureModeRelaxed,
    }
}

#[test]
fn codes_have_hips_names() {
    let mut count = 0;
    macro_rules! same_codes {
        ($($name:ident = $theirs:ident,)+) => {$(
            assert_eq!(HIP.name_of(cuda::Code(theirs::$theirs)), Some(stringify!($name)));
            count += 1;
        )+};
    }
    same_codes! {
        hipSuccess = hipError_t_hipSuccess,
        hipErrorInvalidValue = hipError_t_hipErrorInvalidValue,
        hipErrorOutOfMemory = hipError_t_hipErrorOutOfMemory,
        hipErrorNotInitialized = hipError_t_hipErrorNotInitialized,
        hipErrorDeinitialized = hipError_t_hipErrorDeinitialized,
        hipErrorInvalidConfiguration = hipError_t_hipErrorInvalidConfiguration,
        hipErrorInvalidPitchValue = hipError_t_hipErrorInvalidPitchValue,
        hipErrorInvalidDevicePointer = hipError_t_hipErrorInvalidDevicePointer,
        hipErrorInvalidMemcpyDirection = hipError_t_hipErrorInvalidMemcpyDirection,
        hipErrorInsufficientDriver = hipError_t_hipErrorInsufficientDriver,
        hipErrorNoDevice = hipError_t_hipErrorNoDevice,
        hipErrorInvalidDevice = hipError_t_hipErrorInvalidDevice,
        hipErrorInvalidImage = hipError_t_hipErrorInvalidImage,
        hipErrorInvalidContext = hipError_t_hipErrorInvalidContext,
        hipErrorMapFailed = hipError_t_hipErrorMapFailed,
        hipErrorUnmapFailed = hipError_t_hipErrorUnmapFailed,
        hipErrorAlreadyMapped = hipError_t_hipErrorAlreadyMapped,
        hipErrorNoBinaryForGpu = hipError_t_hipErrorNoBinaryForGpu,
        hipErrorNotMapped = hipError_t_hipErrorNotMapped,
        hipErrorECCNotCorrectable = hipError_t_hipErrorECCNotCorrectable,
        hipErrorUnsupportedLimit = hipError_t_hipErrorUnsupportedLimit,
        hipErrorContextAlreadyInUse = hipError_t_hipErrorContextAlreadyInUse,
        hipErrorPeerAccessUnsupported = hipError_t_hipErrorPeerAccessUnsupported,
        hipErrorOperatingSystem = hipError_t_hipErrorOperatingSystem,
        hipErrorInvalidHandle = hipError_t_hipErrorInvalidHandle,
        hipErrorIllegalState = hipError_t_hipErrorIllegalState,
        hipErrorNotFound = hipError_t_hipErrorNotFound,
        hipErrorNotReady = hipError_t_hipErrorNotReady,
        hipErrorIllegalAddress = hipError_t_hipErrorIllegalAddress,
        hipErrorLaunchOutOfResources = hipError_t_hipErrorLaunchOutOfResources,
        hipErrorLaunchTimeOut = hipError_t_hipErrorLaunchTimeOut,
        hipErrorPeerAccessAlreadyEnabled = hipError_t_hipErrorPeerAccessAlreadyEnabled,
        hipErrorPeerAccessNotEnabled = hipError_t_hipErrorPeerAccessNotEnabled,
        hipErrorSetOnActiveProcess = hipError_t_hipErrorSetOnActiveProcess,
        hipErrorContextIsDestroyed = hipError_t_hipErrorContextIsDestroyed,
        hipErrorAssert = hipError_t_hipErrorAssert,
        hipErrorHostMemoryAlreadyRegistered = hipError_t_hipErrorHostMemoryAlreadyRegistered,
        hipErrorHostMemoryNotRegistered = hipError_t_hipErrorHostMemoryNotRegistered,
        hipErrorLaunchFailure = hipError_t_hipErrorLaunchFailure,
        hipErrorNotSupported = hipError_t_hipErrorNotSupported,
        hipErrorStreamCaptureUnsupported = hipError_t_hipErrorStreamCaptureUnsupported,
        hipErrorStreamCaptureInvalidated = hipError_t_hipErrorStreamCaptureInvalidated,
        hipErrorStreamCaptureMerge = hipError_t_hipErrorStreamCaptureMerge,
        hipErrorStreamCaptureUnmatched = hipError_t_hipErrorStreamCaptureUnmatched,
        hipErrorStreamCaptureUnjoined = hipError_t_hipErrorStreamCaptureUnjoined,
        hipErrorStreamCaptureIsolation = hipError_t_hipErrorStreamCaptureIsolation,
        hipErrorStreamCaptureImplicit = hipError_t_hipErrorStreamCaptureImplicit,
        hipErrorCapturedEvent = hipError_t_hipErrorCapturedEvent,
        hipErrorStreamCaptureWrongThread = hipError_t_hipErrorStreamCaptureWrongThread,
        hipErrorUnknown = hipError_t_hipErrorUnknown,
        hipErrorRuntimeMemory = hipError_t_hipErrorRuntimeMemory,
    }
    assert_eq!(HIP.codes.len(), count, "every code is held against theirs");
    assert!(HIP.codes.is_sorted_by(|one, two| one.0 < two.0), "in order, so that each is found");
}

/// How one argument is passed: how wide it is, and in which registers.
trait Argument {
    const KIND: (&'static str, usize);
}

macro_rules! arguments {
    ($($kind:literal: $($type:ty),+;)+) => {
        $($(impl Argument for $type {
            const KIND: (&'static str, usize) = ($kind, size_of::<$type>());
        })+)+
    };
}

arguments! {
    "integer": u8, u16, u32, u64, c_int, usize;
    "integer": cuda::Code, cuda::RawStream, cuda::RawEvent, cuda::RawPage, cuda::HostFunction;
    "integer": theirs::hipHostFn_t;
}

impl<T> Argument for *mut T {
    const KIND: (&'static str, usize) = ("integer", 8);
}

impl<T> Argument for *const T {
    const KIND: (&'static str, usize) = ("integer", 8);
}

/// How a function is called: each argument, then what it gives.
trait Signature {
    fn kinds() -> Vec<(&'static str, usize)>;
}

macro_rules! signatures {
    ($(($($type:ident),*))+) => {$(
        impl<R: Argument, $($type: Argument),*> Signature for unsafe extern "C" fn($($type),*) -> R {
            fn kinds() -> Vec<(&'static str, usize)> {
                vec![$($type::KIND,)* R::KIND]
            }
        }
    )+};
}

signatures! { () (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

fn kinds_of<F: Signature>(_: F) -> Vec<(&'static str, usize)> {
    F::kinds()
}

fn kinds_in<F: Signature>(
    _: fn(&ours::Symbols) -> cuda::Function<F>,
) -> Vec<(&'static str, usize)> {
    F::kinds()
}

#[test]
fn functions_are_called_as_hip_declares_them() {
    let mut held = BTreeSet::new();
    macro_rules! same_signatures {
        ($($field:ident = $name:ident($($argument:ty),*);)+) => {$(
            let theirs = theirs::$name as unsafe extern "C" fn($($argument),*) -> _;
            assert_eq!(kinds_in(|table| table.$field), kinds_of(theirs), "{}", stringify!($name));
            held.insert(stringify!($name));
        )+};
    }
    same_signatures! {
        init = hipInit(_);
        driver_get_version = hipDriverGetVersion(_);
        get_error_name = hipDrvGetErrorName(_, *mut *const c_char);
        get_device_count = hipGetDeviceCount(_);
        device_get = hipDeviceGet(_, _);
        device_get_name = hipDeviceGetName(_, _, _);
        device_get_attribute = hipDeviceGetAttribute(_, _, _);
        device_can_access_peer = hipDeviceCanAccessPeer(_, _, _);
        get_device = hipGetDevice(_);
        set_device = hipSetDevice(_);
        device_synchronize = hipDeviceSynchronize();
        priority_range = hipDeviceGetStreamPriorityRange(_, _);
        enable_peer = hipDeviceEnablePeerAccess(_, c_uint);
        disable_peer = hipDeviceDisablePeerAccess(_);
        mem_get_info = hipMemGetInfo(_, _);
        malloc = hipMalloc(_, _);
        free = hipFree(_);
        host_malloc = hipHostMalloc(_, _, _);
        host_free = hipHostFree(_);
        host_register = hipHostRegister(_, _, _);
        host_unregister = hipHostUnregister(_);
        host_device_pointer = hipHostGetDevicePointer(_, _, _);
        malloc_managed = hipMallocManaged(_, _, _);
        mem_prefetch = hipMemPrefetchAsync(_, _, _, _);
        mem_advise = hipMemAdvise(_, _, _, _);
        pointer_get_attributes = hipPointerGetAttributes(_, _);
        address_range = hipMemGetAddressRange(_, _, _);
        mem_address_reserve = hipMemAddressReserve(_, _, _, _, _);
        mem_address_free = hipMemAddressFree(_, _);
        mem_create = hipMemCreate(_, _, _, _);
        mem_release = hipMemRelease(_);
        mem_map = hipMemMap(_, _, _, _, _);
        mem_unmap = hipMemUnmap(_, _);
        mem_set_access = hipMemSetAccess(_, _, _, _);
        mem_granularity = hipMemGetAllocationGranularity(_, _, _);
        mem_export = hipMemExportToShareableHandle(*mut c_void, _, _, _);
        mem_import = hipMemImportFromShareableHandle(_, _, _);
        stream_create = hipStreamCreateWithPriority(_, _, _);
        stream_query = hipStreamQuery(_);
        stream_synchronize = hipStreamSynchronize(_);
        stream_wait_event = hipStreamWaitEvent(_, _, _);
        stream_get_device = hipStreamGetDevice(_, _);
        stream_is_capturing = hipStreamIsCapturing(_, _);
        thread_exchange_capture_mode = hipThreadExchangeStreamCaptureMode(_);
        launch_host_function = hipLaunchHostFunc(_, _, _);
        stream_wait_value = hipStreamWaitValue32(_, _, _, _, _);
        event_create = hipEventCreateWithFlags(_, _);
        event_record = hipEventRecord(_, _);
        event_query = hipEventQuery(_);
        event_synchronize = hipEventSynchronize(_);
        event_elapsed = hipEventElapsedTime(_, _, _);
        memcpy = hipMemcpyAsync(_, _, _, _, _);
        memcpy_2d = hipMemcpyParam2DAsync(_, _);
        memcpy_3d = hipDrvMemcpy3DAsync(_, _);
        memcpy_peer = hipMemcpyPeerAsync(_, _, _, _, _, _);
        memset_8 = hipMemsetD8Async(_, _, _, _);
        memset_16 = hipMemsetD16Async(_, _, _, _);
        memset_32 = hipMemsetD32Async(_, _, _, _);
        memset_2d_8 = hipMemset2DAsync(_, _, _, _, _, _);
    }
    // All but those of ROCm 7.
    for symbol in SYMBOLS {
        assert!(held.remove(symbol.name) || symbol.version >= 7000, "{} is not held", symbol.name);
        assert_eq!(symbol.name, symbol.export, "HIP exports a function by its name");
    }
    assert!(held.is_empty(), "{held:?} are in no table");
}
