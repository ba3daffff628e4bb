//! DLPack: memory handed to other libraries, and theirs taken.
//!
//! A capsule holds a pointer to a struct with a deleter. Who takes the tensor renames the capsule, and calls
//! the deleter when it is done; a capsule that nobody took calls it itself.

mod export;
mod import;

use core::ffi::{CStr, c_void};

use forebay::DeviceKind;

use crate::lot::{Lot, Reach};
use crate::refusal::Refusal;

pub(crate) use export::{Wish, export};
pub(crate) use import::{Lent, import};

/// Kinds of devices.
mod place {
    pub(super) const CPU: i32 = 1;
    pub(super) const CUDA: i32 = 2;
    pub(super) const CUDA_HOST: i32 = 3;
}

/// The version that is spoken here.
const VERSION: (u32, u32) = (1, 0);
/// The tensor may be read alone.
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

/// A tensor with its end, as `DLManagedTensor`.
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

/// The kind and number of the device of some memory, as DLPack has them.
pub(crate) fn device_of(lot: &Lot) -> Result<(i32, i32), Refusal> {
    let ordinal = i32::try_from(lot.site().ordinal()).unwrap_or(i32::MAX);
    match (lot.reach(), lot.site().kind()) {
        (Reach::Host, DeviceKind::Cuda) => Ok((place::CUDA_HOST, 0)),
        (Reach::Host | Reach::Both, _) => Ok((place::CPU, 0)),
        (Reach::Device, DeviceKind::Cuda) => Ok((place::CUDA, ordinal)),
        (Reach::Device, kind) => {
            Err(Refusal::Export(format!("DLPack has no place for memory of a {kind} device")))
        }
    }
}
