//! HIP's functions: one list that defines the table and how it is loaded.
//!
//! The version of each is its symbol version in `libamdhip64`.

use core::ffi::{c_char, c_int, c_void};

use forebay_cuda::driver_functions;
use forebay_cuda::sys::{
    AccessDescription, AllocationProperties, Code, Copy2d, CopyAttributes, HostFunction,
    MemoryLocation, RawEvent, RawPage, RawStream,
};

use super::{HIP, PointerAttributes};

driver_functions! {
    &HIP;
    /// Initialises the runtime, as does any other call.
    Required init = "hipInit" 4020 (flags: u32);
    /// The version of HIP: ten million times the major version, a hundred thousand times the minor.
    Required driver_get_version = "hipDriverGetVersion" 4020 (version: *mut c_int);
    /// The name of a code.
    Optional get_error_name = "hipDrvGetErrorName" 5030 (code: Code, name: *mut *const c_char);

    /// The number of devices.
    Required get_device_count = "hipGetDeviceCount" 4020 (count: *mut c_int);
    /// A device by its number.
    Required device_get = "hipDeviceGet" 4020 (device: *mut c_int, ordinal: c_int);
    /// The name of the device.
    Required device_get_name = "hipDeviceGetName" 4020
        (name: *mut c_char, length: c_int, device: c_int);
    /// An attribute of the device.
    Required device_get_attribute = "hipDeviceGetAttribute" 4020
        (value: *mut c_int, attribute: u32, device: c_int);
    /// Whether it reaches a peer's memory.
    Optional device_can_access_peer = "hipDeviceCanAccessPeer" 4020
        (can: *mut c_int, device: c_int, peer: c_int);
    /// The calling thread's device.
    Required get_device = "hipGetDevice" 4020 (device: *mut c_int);
    /// Sets the calling thread's device.
    Required set_device = "hipSetDevice" 4020 (device: c_int);
    /// Waits for all work of the calling thread's device.
    Optional device_synchronize = "hipDeviceSynchronize" 4020 ();
    /// The priorities streams may have.
    Optional priority_range = "hipDeviceGetStreamPriorityRange" 4020
        (least: *mut c_int, greatest: *mut c_int);
    /// Lets the calling thread's device reach a peer's memory.
    Optional enable_peer = "hipDeviceEnablePeerAccess" 4020 (peer: c_int, flags: u32);
    /// Undoes that.
    Optional disable_peer = "hipDeviceDisablePeerAccess" 4020 (peer: c_int);

    /// The free and total memory.
    Required mem_get_info = "hipMemGetInfo" 4020 (free: *mut u64, total: *mut u64);
    /// Plain memory.
    Required malloc = "hipMalloc" 4020 (address: *mut u64, size: u64);
    /// Gives plain or managed memory back. Waits for all work of the device.
    Required free = "hipFree" 4020 (address: u64);
    /// Pinned memory.
    Optional host_malloc = "hipHostMalloc" 4020 (address: *mut u64, size: u64, flags: u32);
    /// Frees pinned memory. Waits for all work of the device.
    Optional host_free = "hipHostFree" 4020 (address: u64);
    /// Pins existing memory in place.
    Optional host_register = "hipHostRegister" 4020 (address: u64, size: u64, flags: u32);
    /// Undoes that.
    Optional host_unregister = "hipHostUnregister" 4020 (address: u64);
    /// The device address of pinned memory.
    Optional host_device_pointer = "hipHostGetDevicePointer" 4020
        (device: *mut u64, host: u64, flags: u32);
    /// Managed memory.
    Optional malloc_managed = "hipMallocManaged" 4020 (address: *mut u64, size: u64, flags: u32);
    /// Moves managed memory, to a device by number or -1.
    Optional mem_prefetch = "hipMemPrefetchAsync" 4020
        (address: u64, size: u64, device: c_int, stream: RawStream);
    /// Moves managed memory to a location.
    Optional mem_prefetch_v2 = "hipMemPrefetchAsync_v2" 7010
        (address: u64, size: u64, location: MemoryLocation, flags: u32, stream: RawStream);
    /// Says how managed memory will be used, with a device by number or -1.
    Optional mem_advise = "hipMemAdvise" 4020 (address: u64, size: u64, advice: u32, device: c_int);
    /// Says how managed memory will be used, with a location.
    Optional mem_advise_v2 = "hipMemAdvise_v2" 7010
        (address: u64, size: u64, advice: u32, location: MemoryLocation);
    /// The attributes of an address.
    Required pointer_get_attributes = "hipPointerGetAttributes" 4020
        (attributes: *mut PointerAttributes, address: u64);
    /// The allocation an address lies in.
    Required address_range = "hipMemGetAddressRange" 4020
        (start: *mut u64, size: *mut u64, address: u64);

    /// Reserves addresses.
    Optional mem_address_reserve = "hipMemAddressReserve" 5010
        (address: *mut u64, size: u64, alignment: u64, hint: u64, flags: u64);
    /// Frees reserved addresses.
    Optional mem_address_free = "hipMemAddressFree" 5010 (address: u64, size: u64);
    /// A page.
    Optional mem_create = "hipMemCreate" 5010
        (page: *mut RawPage, size: u64, properties: *const AllocationProperties, flags: u64);
    /// Releases a page.
    Optional mem_release = "hipMemRelease" 5010 (page: RawPage);
    /// Maps a page.
    Optional mem_map = "hipMemMap" 5010
        (address: u64, size: u64, offset: u64, page: RawPage, flags: u64);
    /// Unmaps pages.
    Optional mem_unmap = "hipMemUnmap" 5010 (address: u64, size: u64);
    /// Sets access.
    Optional mem_set_access = "hipMemSetAccess" 5010
        (address: u64, size: u64, descriptions: *const AccessDescription, count: u64);
    /// The granularity of pages.
    Optional mem_granularity = "hipMemGetAllocationGranularity" 5010
        (granularity: *mut u64, properties: *const AllocationProperties, option: u32);
    /// A page as something another process can import.
    Optional mem_export = "hipMemExportToShareableHandle" 5010
        (handle: *mut c_void, page: RawPage, kind: u32, flags: u64);
    /// A page another process exported.
    Optional mem_import = "hipMemImportFromShareableHandle" 5010
        (page: *mut RawPage, handle: *mut c_void, kind: u32);

    /// A stream.
    Required stream_create = "hipStreamCreateWithPriority" 4020
        (stream: *mut RawStream, flags: u32, priority: c_int);
    /// Whether its work is done.
    Required stream_query = "hipStreamQuery" 4020 (stream: RawStream);
    /// Waits for its work.
    Required stream_synchronize = "hipStreamSynchronize" 4020 (stream: RawStream);
    /// Makes later work wait for an event.
    Required stream_wait_event = "hipStreamWaitEvent" 4020
        (stream: RawStream, event: RawEvent, flags: u32);
    /// The unique id of a stream.
    Optional stream_get_id = "hipStreamGetId" 7010 (stream: RawStream, id: *mut u64);
    /// The device a stream belongs to.
    Optional stream_get_device = "hipStreamGetDevice" 5060 (stream: RawStream, device: *mut c_int);
    /// Whether a stream is being captured into a graph.
    Optional stream_is_capturing = "hipStreamIsCapturing" 4030
        (stream: RawStream, status: *mut u32);
    /// Exchanges this thread's capture mode: how strict the runtime is while streams are captured.
    Optional thread_exchange_capture_mode = "hipThreadExchangeStreamCaptureMode" 5000
        (mode: *mut c_int);
    /// Calls a function in stream order.
    Optional launch_host_function = "hipLaunchHostFunc" 5030
        (stream: RawStream, function: HostFunction, data: *mut c_void);
    /// Makes later work wait for a word in memory. Unlike CUDA's, values do not compare across their end.
    Optional stream_wait_value = "hipStreamWaitValue32" 4040
        (stream: RawStream, address: u64, value: u32, flags: u32, mask: u32);

    /// An event.
    Required event_create = "hipEventCreateWithFlags" 4020 (event: *mut RawEvent, flags: u32);
    /// Records it after all work of a stream.
    Required event_record = "hipEventRecord" 4020 (event: RawEvent, stream: RawStream);
    /// Whether it was reached.
    Required event_query = "hipEventQuery" 4020 (event: RawEvent);
    /// Waits until it is.
    Required event_synchronize = "hipEventSynchronize" 4020 (event: RawEvent);
    /// The time between two, in milliseconds.
    Required event_elapsed = "hipEventElapsedTime" 4020
        (milliseconds: *mut f32, start: RawEvent, end: RawEvent);

    /// Copies bytes in a row.
    Required memcpy = "hipMemcpyAsync" 4020
        (to: u64, from: u64, size: u64, kind: u32, stream: RawStream);
    /// Copies rows. The structure has CUDA's layout, but HIP's memory types.
    Required memcpy_2d = "hipMemcpyParam2DAsync" 4020 (copy: *const Copy2d, stream: RawStream);
    /// Copies slices: a [`Copy3d`](super::Copy3d) or a [`NarrowCopy3d`](super::NarrowCopy3d), by the version.
    Required memcpy_3d = "hipDrvMemcpy3DAsync" 4020 (copy: *const c_void, stream: RawStream);
    /// Copies many times.
    Optional memcpy_batch = "hipMemcpyBatchAsync" 7010
        (to: *const u64, from: *const u64, sizes: *const u64, count: u64,
         attributes: *const CopyAttributes, first_of_attributes: *const u64, attribute_count: u64,
         failed: *mut u64, stream: RawStream);
    /// Copies between devices.
    Optional memcpy_peer = "hipMemcpyPeerAsync" 4020
        (to: u64, to_device: c_int, from: u64, from_device: c_int, size: u64, stream: RawStream);
    /// Fills with one byte.
    Required memset_8 = "hipMemsetD8Async" 4020
        (address: u64, value: u8, count: u64, stream: RawStream);
    /// Fills with two bytes.
    Required memset_16 = "hipMemsetD16Async" 4020
        (address: u64, value: u16, count: u64, stream: RawStream);
    /// Fills with four bytes.
    Required memset_32 = "hipMemsetD32Async" 4020
        (address: u64, value: u32, count: u64, stream: RawStream);
    /// Fills rows with one byte.
    Required memset_2d_8 = "hipMemset2DAsync" 4020
        (address: u64, pitch: u64, value: c_int, width: u64, height: u64, stream: RawStream);
    /// Fills rows with two bytes.
    Optional memset_2d_16 = "hipMemsetD2D16Async" 7010
        (address: u64, pitch: u64, value: u16, width: u64, height: u64, stream: RawStream);
    /// Fills rows with four bytes.
    Optional memset_2d_32 = "hipMemsetD2D32Async" 7010
        (address: u64, pitch: u64, value: u32, width: u64, height: u64, stream: RawStream);
}
