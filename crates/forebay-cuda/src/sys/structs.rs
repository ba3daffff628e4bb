//! Handles and structures, laid out as the driver reads them.

use core::ffi::c_int;

/// Makes a type for an opaque handle: a number the driver gave, meaning nothing here.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl $name {
            /// The null handle; for streams, the default stream.
            pub const NULL: Self = Self(0);
        }
    )+};
}

handles! {
    /// `CUcontext`.
    RawContext;
    /// `CUstream`. 0 and 1 are the legacy default stream, 2 is the calling thread's own.
    RawStream;
    /// `CUevent`.
    RawEvent;
    /// `CUmemGenericAllocationHandle`.
    RawPage;
    /// `CUmemoryPool`.
    RawMemoryPool;
    /// `CUmodule`.
    RawModule;
    /// `CUfunction`.
    RawFunction;
}

impl RawStream {
    /// The legacy default stream by its explicit name.
    pub const LEGACY: Self = Self(1);
    /// The default stream of the calling thread.
    pub const PER_THREAD: Self = Self(2);
}

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLocation {
    /// One of [`values::location`](super::values::location).
    pub kind: u32,
    /// The number within its kind.
    pub id: c_int,
}

/// The bits of `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationFlags {
    /// Whether memory is compressible.
    pub compression: u8,
    /// Whether network cards may reach it.
    pub gpu_direct: u8,
    /// What it is for.
    pub usage: u16,
    /// Zero.
    pub reserved: [u8; 4],
}

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationProperties {
    /// One of [`values::allocation`](super::values::allocation).
    pub kind: u32,
    /// Of [`values::handle_type`](super::values::handle_type).
    pub handle_types: u32,
    /// The location of the memory.
    pub location: MemoryLocation,
    /// Null except on Windows.
    pub win32_metadata: u64,
    /// The flags.
    pub flags: AllocationFlags,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessDescription {
    /// The device that gets access.
    pub location: MemoryLocation,
    /// One of [`values::access`](super::values::access).
    pub flags: u32,
}

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyAttributes {
    /// One of [`values::access_order`](super::values::access_order).
    pub source_order: u32,
    /// Where managed memory is read from.
    pub source: MemoryLocation,
    /// Where managed memory is written to.
    pub destination: MemoryLocation,
    /// 0.
    pub flags: u32,
}

/// `CUDA_MEMCPY2D`.
#[allow(missing_docs, reason = "the fields are those of the vendor's header")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copy2d {
    pub src_x: u64,
    pub src_y: u64,
    pub src_type: u32,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub src_pitch: u64,
    pub dst_x: u64,
    pub dst_y: u64,
    pub dst_type: u32,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub dst_pitch: u64,
    pub width: u64,
    pub height: u64,
}

/// `CUDA_MEMCPY3D`.
#[allow(missing_docs, reason = "the fields are those of the vendor's header")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copy3d {
    pub src_x: u64,
    pub src_y: u64,
    pub src_z: u64,
    pub src_lod: u64,
    pub src_type: u32,
    pub src_host: u64,
    pub src_device: u64,
    pub src_array: u64,
    pub reserved0: u64,
    pub src_pitch: u64,
    pub src_height: u64,
    pub dst_x: u64,
    pub dst_y: u64,
    pub dst_z: u64,
    pub dst_lod: u64,
    pub dst_type: u32,
    pub dst_host: u64,
    pub dst_device: u64,
    pub dst_array: u64,
    pub reserved1: u64,
    pub dst_pitch: u64,
    pub dst_height: u64,
    pub width: u64,
    pub height: u64,
    pub depth: u64,
}
