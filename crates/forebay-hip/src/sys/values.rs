//! The constants that differ from CUDA's.

#![allow(
    missing_docs,
    reason = "without a comment, a constant has the name of the vendor's header"
)]

use core::ffi::c_int;

/// The first version with ROCm 6's structures and memory types.
pub const WIDE_FROM: c_int = 6000;

/// The version from which on [`hipMemImportFromShareableHandle`](super::Symbols::mem_import) takes a descriptor as CUDA does;
/// before, it takes the address of one.
pub const DESCRIPTOR_BY_VALUE_FROM: c_int = 7010;

/// `HIP_VERSION` as `cuDriverGetVersion` counts: 60_342_134 is 6.3 and becomes 6030.
pub const fn version(hip: c_int) -> c_int {
    let (major, minor) = (hip / 10_000_000, hip / 100_000 % 100);
    major * 1000 + minor * 10
}

/// `hipMemoryType`, which ROCm 6.0 numbered anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryTypes {
    /// `hipMemoryTypeHost`.
    pub host: u32,
    /// `hipMemoryTypeDevice`.
    pub device: u32,
    /// `hipMemoryTypeManaged`.
    pub managed: u32,
    /// `hipMemoryTypeUnified`.
    pub unified: u32,
}

impl MemoryTypes {
    /// Before ROCm 6.0.
    pub const NARROW: Self = Self { host: 0, device: 1, managed: 4, unified: 3 };
    /// From ROCm 6.0 on.
    pub const WIDE: Self = Self { host: 1, device: 2, managed: 3, unified: 11 };

    /// Those of a version.
    pub const fn of(version: c_int) -> Self {
        if version < WIDE_FROM { Self::NARROW } else { Self::WIDE }
    }
}

/// `hipMemcpyDefault`: the runtime looks at the addresses.
pub const MEMCPY_DEFAULT: u32 = 4;

/// `hipDeviceAttribute_t`.
pub mod attribute {
    pub const CAN_MAP_HOST_MEMORY: u32 = 3;
    /// `CanUseHostPointerForRegisteredMem`.
    pub const HOST_POINTER_FOR_REGISTERED: u32 = 4;
    pub const CONCURRENT_MANAGED_ACCESS: u32 = 9;
    /// `ComputeCapabilityMajor`.
    pub const COMPUTE_MAJOR: u32 = 23;
    pub const MANAGED_MEMORY: u32 = 24;
    pub const MAX_PITCH: u32 = 58;
    /// `ComputeCapabilityMinor`.
    pub const COMPUTE_MINOR: u32 = 61;
    /// `MultiprocessorCount`.
    pub const MULTIPROCESSORS: u32 = 63;
    /// `StreamPrioritiesSupported`.
    pub const STREAM_PRIORITIES: u32 = 78;
    pub const UNIFIED_ADDRESSING: u32 = 85;
    /// `VirtualMemoryManagementSupported`.
    pub const VIRTUAL_MEMORY: u32 = 89;
    /// `HostRegisterSupported`, from ROCm 6.0 on.
    pub const HOST_REGISTER: u32 = 90;
    /// `HostNumaId`, from ROCm 7 on.
    pub const HOST_NUMA_NODE: u32 = 92;
}
