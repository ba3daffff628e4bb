//! The constants, grouped by enumeration.

#![allow(
    missing_docs,
    reason = "without a comment, a constant has the name of the vendor's header"
)]

use core::ffi::c_int;

/// The version that forebay's declarations are checked against, as `cuDriverGetVersion` counts: a thousand times the
/// major version plus ten times the minor.
pub const DECLARED_VERSION: c_int = 13_000;

/// `CUdevice_attribute`.
pub mod attribute {
    pub const MAX_PITCH: u32 = 11;
    pub const CAN_MAP_HOST_MEMORY: u32 = 19;
    pub const UNIFIED_ADDRESSING: u32 = 41;
    /// `STREAM_PRIORITIES_SUPPORTED`.
    pub const STREAM_PRIORITIES: u32 = 78;
    pub const MANAGED_MEMORY: u32 = 83;
    pub const CONCURRENT_MANAGED_ACCESS: u32 = 89;
    /// `CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`.
    pub const HOST_POINTER_FOR_REGISTERED: u32 = 91;
    /// `HOST_REGISTER_SUPPORTED`.
    pub const HOST_REGISTER: u32 = 99;
    /// `VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
    pub const VIRTUAL_MEMORY: u32 = 102;
    /// `HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED`.
    pub const SHARE_BY_DESCRIPTOR: u32 = 103;
    /// `COMPUTE_CAPABILITY_MAJOR`.
    pub const COMPUTE_MAJOR: u32 = 75;
    /// `COMPUTE_CAPABILITY_MINOR`.
    pub const COMPUTE_MINOR: u32 = 76;
    /// `MEMORY_POOLS_SUPPORTED`.
    pub const MEMORY_POOLS: u32 = 115;
    /// `HOST_NUMA_ID`: the host's NUMA node nearest to the device; -1 without NUMA.
    pub const HOST_NUMA_NODE: u32 = 134;
    /// `HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED`.
    pub const HOST_PAGES: u32 = 141;
    /// `MULTIPROCESSOR_COUNT`.
    pub const MULTIPROCESSORS: u32 = 16;
}

/// `CUmemPool_attribute`.
pub mod memory_pool {
    /// `REUSE_FOLLOW_EVENT_DEPENDENCIES`, a flag.
    pub const REUSE_FOLLOW_EVENTS: u32 = 1;
    /// `REUSE_ALLOW_OPPORTUNISTIC`, a flag.
    pub const REUSE_OPPORTUNISTIC: u32 = 2;
    /// `REUSE_ALLOW_INTERNAL_DEPENDENCIES`, a flag.
    pub const REUSE_INTERNAL_DEPENDENCIES: u32 = 3;
    pub const RELEASE_THRESHOLD: u32 = 4;
    /// `RESERVED_MEM_CURRENT`.
    pub const RESERVED_CURRENT: u32 = 5;
    /// `RESERVED_MEM_HIGH`.
    pub const RESERVED_HIGH: u32 = 6;
    /// `USED_MEM_CURRENT`.
    pub const USED_CURRENT: u32 = 7;
    /// `USED_MEM_HIGH`.
    pub const USED_HIGH: u32 = 8;
}

/// `CUpointer_attribute`.
pub mod pointer {
    pub const MEMORY_TYPE: u32 = 2;
    pub const IS_MANAGED: u32 = 8;
    pub const DEVICE_ORDINAL: u32 = 9;
    /// `RANGE_START_ADDR`.
    pub const RANGE_START: u32 = 11;
    pub const RANGE_SIZE: u32 = 12;
}

/// `CUmemorytype`.
pub mod memory_type {
    pub const HOST: u32 = 1;
    pub const DEVICE: u32 = 2;
    /// `UNIFIED`: the driver looks at the address.
    pub const UNIFIED: u32 = 4;
}

/// `CUmemcpySrcAccessOrder`.
pub mod access_order {
    /// `STREAM`: the memory read is read in the order of the stream.
    pub const STREAM: u32 = 1;
}

/// `CUmemLocationType`.
pub mod location {
    pub const DEVICE: u32 = 1;
    pub const HOST: u32 = 2;
    pub const HOST_NUMA: u32 = 3;
}

/// `CUmemAllocationType`.
pub mod allocation {
    pub const PINNED: u32 = 1;
}

/// `CUmemAllocationHandleType`.
pub mod handle_type {
    pub const NONE: u32 = 0;
    /// `POSIX_FILE_DESCRIPTOR`.
    pub const FILE_DESCRIPTOR: u32 = 1;
}

/// `CUmemAllocationGranularity_flags`.
pub mod granularity {
    pub const MINIMUM: u32 = 0;
    pub const RECOMMENDED: u32 = 1;
}

/// `CUmemAccess_flags`.
pub mod access {
    /// `PROT_NONE`.
    pub const NONE: u32 = 0;
    /// `PROT_READ`.
    pub const READ: u32 = 1;
    /// `PROT_READWRITE`.
    pub const READ_WRITE: u32 = 3;
}

/// `CUmem_advise`.
pub mod advice {
    pub const SET_READ_MOSTLY: u32 = 1;
    pub const UNSET_READ_MOSTLY: u32 = 2;
    pub const SET_PREFERRED_LOCATION: u32 = 3;
    pub const UNSET_PREFERRED_LOCATION: u32 = 4;
    pub const SET_ACCESSED_BY: u32 = 5;
    pub const UNSET_ACCESSED_BY: u32 = 6;
}

/// `CU_DEVICE_CPU`: the host, for the first generation of prefetching and advice.
pub const DEVICE_CPU: c_int = -1;

/// `CUmemAttach_flags`.
pub mod attach {
    pub const GLOBAL: u32 = 1;
}

/// `CU_MEMHOSTALLOC_*`.
pub mod host_alloc {
    pub const PORTABLE: u32 = 1;
    pub const DEVICE_MAP: u32 = 2;
    pub const WRITE_COMBINED: u32 = 4;
}

/// `CU_MEMHOSTREGISTER_*`.
pub mod host_register {
    pub const PORTABLE: u32 = 1;
    pub const DEVICE_MAP: u32 = 2;
}

/// `CUstreamCaptureStatus`.
pub mod capture_status {
    /// `NONE`: the stream is not captured.
    pub const NONE: u32 = 0;
}

/// `CUstreamCaptureMode`.
pub mod capture_mode {
    /// `RELAXED`: the thread may make any call while a stream is captured.
    pub const RELAXED: core::ffi::c_int = 2;
}

/// `CUstream_flags`.
pub mod stream {
    /// `NON_BLOCKING`: no ties with the legacy default stream.
    pub const NON_BLOCKING: u32 = 1;
}

/// `CUevent_flags`.
pub mod event {
    /// `DEFAULT`: with time.
    pub const DEFAULT: u32 = 0;
    pub const DISABLE_TIMING: u32 = 2;
}

/// `CUstreamWaitValue_flags`.
pub mod wait_value {
    /// `GEQ`: until the word, less the value, is not negative.
    pub const GREATER_OR_EQUAL: u32 = 0;
}

/// `CUdriverProcAddress_flags`.
pub mod proc_address {
    /// `LEGACY_STREAM`: stream 0 is the legacy default stream.
    pub const LEGACY_STREAM: u64 = 1;
}
