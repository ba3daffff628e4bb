//! Structures whose layout differs from CUDA's.

use core::ffi::c_int;

/// `hipPointerAttribute_t`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PointerAttributes {
    /// A [`MemoryTypes`](super::values::MemoryTypes) of the version.
    pub kind: u32,
    /// The device it belongs to.
    pub device: c_int,
    /// Its address on the device.
    pub device_pointer: u64,
    /// Its address on the host.
    pub host_pointer: u64,
    /// Whether it is managed memory.
    pub is_managed: c_int,
    /// The flags it was allocated with.
    pub flags: u32,
}

/// Makes `HIP_MEMCPY3D`, whose sizes have `$size` bits.
macro_rules! copy_3d {
    ($(#[$doc:meta])* $name:ident $size:ty) => {
        $(#[$doc])*
        #[allow(missing_docs, reason = "the fields are those of the vendor's header")]
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            pub src_x: $size,
            pub src_y: $size,
            pub src_z: $size,
            pub src_lod: $size,
            pub src_type: u32,
            pub src_host: u64,
            pub src_device: u64,
            pub src_array: u64,
            pub src_pitch: $size,
            pub src_height: $size,
            pub dst_x: $size,
            pub dst_y: $size,
            pub dst_z: $size,
            pub dst_lod: $size,
            pub dst_type: u32,
            pub dst_host: u64,
            pub dst_device: u64,
            pub dst_array: u64,
            pub dst_pitch: $size,
            pub dst_height: $size,
            pub width: $size,
            pub height: $size,
            pub depth: $size,
        }
    };
}

copy_3d! {
    /// `HIP_MEMCPY3D` from ROCm 6.0 on.
    Copy3d u64
}

copy_3d! {
    /// `HIP_MEMCPY3D` before ROCm 6.0.
    NarrowCopy3d u32
}

impl NarrowCopy3d {
    /// The same copy with narrow sizes; `None` where they do not fit.
    pub fn of(copy: &Copy3d) -> Option<Self> {
        let narrow = |size: u64| u32::try_from(size).ok();
        Some(Self {
            src_type: copy.src_type,
            src_device: copy.src_device,
            src_pitch: narrow(copy.src_pitch)?,
            src_height: narrow(copy.src_height)?,
            dst_type: copy.dst_type,
            dst_device: copy.dst_device,
            dst_pitch: narrow(copy.dst_pitch)?,
            dst_height: narrow(copy.dst_height)?,
            width: narrow(copy.width)?,
            height: narrow(copy.height)?,
            depth: narrow(copy.depth)?,
            ..Self::default()
        })
    }
}
