//! DLPack: exports of memory to other libraries, and imports of theirs.
//!
//! A capsule holds a pointer to a struct with a deleter. The consumer that takes the tensor renames the capsule
//! and calls the deleter when it is done. A capsule that was never taken calls the deleter itself.

mod export;
mod import;

use core::ffi::{CStr, c_void};

use forebay::hal::DeviceKind;
use pyo3::intern;
use pyo3::prelude::*;

use crate::allocation::{Allocation, MemorySpace};
use crate::failure::Failure;
use crate::open_device::OpenDevice;

pub(crate) use export::{ExportRequest, export};
pub(crate) use import::import;

/// Device types of dlpack.h.
mod device_type {
    pub(super) const CPU: i32 = 1;
    pub(super) const CUDA: i32 = 2;
    pub(super) const CUDA_HOST: i32 = 3;
    pub(super) const OPENCL: i32 = 4;
    pub(super) const METAL: i32 = 8;
    pub(super) const ROCM: i32 = 10;
    pub(super) const ROCM_HOST: i32 = 11;
}

/// The DLPack version of exports.
const VERSION: (u32, u32) = (1, 0);
/// The flag of a read-only tensor.
const READ_ONLY: u64 = 1;

const PLAIN: &CStr = c"dltensor";
const PLAIN_TAKEN: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_TAKEN: &CStr = c"used_dltensor_versioned";

/// A tensor, as `DLTensor` of dlpack.h.
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// A tensor with its deleter, as `DLManagedTensor`.
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// The same since version 1, as `DLManagedTensorVersioned`.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// Whether an object says by DLPack that its memory is on a device.
pub(crate) fn is_on_a_device(object: &Bound<'_, PyAny>) -> bool {
    let told = object.call_method0(intern!(object.py(), "__dlpack_device__"));
    let told = told.and_then(|told| told.extract::<(i32, i32)>());
    told.is_ok_and(|(kind, _)| {
        !matches!(kind, device_type::CPU | device_type::CUDA_HOST | device_type::ROCM_HOST)
    })
}

/// The device type and number of memory of a device.
pub(crate) fn device_of(device: &OpenDevice) -> Result<(i32, i32), Failure> {
    let space = if device.is_host() { MemorySpace::HostDevice } else { MemorySpace::Device };
    numbers_of(space, device)
}

/// The device type and number of an allocation, as DLPack defines them.
pub(crate) fn dlpack_device(allocation: &Allocation) -> Result<(i32, i32), Failure> {
    numbers_of(allocation.space(), allocation.device())
}

fn numbers_of(space: MemorySpace, device: &OpenDevice) -> Result<(i32, i32), Failure> {
    let ordinal = i32::try_from(device.ordinal()).unwrap_or(i32::MAX);
    match (space, device.kind()) {
        (MemorySpace::Host, DeviceKind::Cuda) => Ok((device_type::CUDA_HOST, 0)),
        (MemorySpace::Host, DeviceKind::Hip) => Ok((device_type::ROCM_HOST, 0)),
        (MemorySpace::Host | MemorySpace::HostDevice, _) => Ok((device_type::CPU, 0)),
        (MemorySpace::Device, DeviceKind::Cuda) => Ok((device_type::CUDA, ordinal)),
        (MemorySpace::Device, DeviceKind::Hip) => Ok((device_type::ROCM, ordinal)),
        (MemorySpace::Device, DeviceKind::OpenCl) => Ok((device_type::OPENCL, ordinal)),
        (MemorySpace::Device, DeviceKind::Metal) => Ok((device_type::METAL, ordinal)),
        (MemorySpace::Device, kind) => {
            Err(Failure::export(format!("DLPack has no device type for memory of a {kind} device")))
        }
    }
}
