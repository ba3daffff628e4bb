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
pub struct Location {
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
    pub location: Location,
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
    pub location: Location,
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
    pub source: Location,
    /// Where managed memory is written to.
    pub destination: Location,
    /// 0.
    pub flags: u32,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copy2d {
    /// Bytes to skip in each row read.
    pub src_x: u64,
    /// Rows to skip.
    pub src_y: u64,
    /// One of [`values::memory_type`](super::values::memory_type).
    pub src_type: u32,
    /// The source on the host.
    pub src_host: u64,
    /// The source on the device, or unified.
    pub src_device: u64,
    /// The source array.
    pub src_array: u64,
    /// From a row read to the next.
    pub src_pitch: u64,
    /// Bytes to skip in each row written.
    pub dst_x: u64,
    /// Rows to skip.
    pub dst_y: u64,
    /// One of [`values::memory_type`](super::values::memory_type).
    pub dst_type: u32,
    /// The destination on the host.
    pub dst_host: u64,
    /// The destination on the device, or unified.
    pub dst_device: u64,
    /// The destination array.
    pub dst_array: u64,
    /// From a row written to the next.
    pub dst_pitch: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
}

/// `CUDA_MEMCPY3D`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copy3d {
    /// Bytes to skip in each row read.
    pub src_x: u64,
    /// Rows to skip.
    pub src_y: u64,
    /// Slices to skip.
    pub src_z: u64,
    /// Level of detail.
    pub src_lod: u64,
    /// One of [`values::memory_type`](super::values::memory_type).
    pub src_type: u32,
    /// The source on the host.
    pub src_host: u64,
    /// The source on the device, or unified.
    pub src_device: u64,
    /// The source array.
    pub src_array: u64,
    /// Null.
    pub reserved0: u64,
    /// From a row read to the next.
    pub src_pitch: u64,
    /// Rows from a slice read to the next.
    pub src_height: u64,
    /// Bytes to skip in each row written.
    pub dst_x: u64,
    /// Rows to skip.
    pub dst_y: u64,
    /// Slices to skip.
    pub dst_z: u64,
    /// Level of detail.
    pub dst_lod: u64,
    /// One of [`values::memory_type`](super::values::memory_type).
    pub dst_type: u32,
    /// The destination on the host.
    pub dst_host: u64,
    /// The destination on the device, or unified.
    pub dst_device: u64,
    /// The destination array.
    pub dst_array: u64,
    /// Null.
    pub reserved1: u64,
    /// From a row written to the next.
    pub dst_pitch: u64,
    /// Rows from a slice written to the next.
    pub dst_height: u64,
    /// Bytes of a row.
    pub width: u64,
    /// Rows of a slice.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}
