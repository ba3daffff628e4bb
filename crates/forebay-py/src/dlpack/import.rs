//! Imports: tensors of other libraries.

use core::ffi::c_void;
use std::sync::Arc;

use forebay::hal::DeviceKind;
use forebay::{Address, Bytes};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};

use super::{
    Managed, ManagedVersioned, PLAIN, PLAIN_TAKEN, READ_ONLY, Tensor, VERSION, VERSIONED,
    VERSIONED_TAKEN, device_type,
};
use crate::allocation::{Allocation, MemorySpace, Pin};
use crate::array_view::ArrayView;
use crate::dtype::Dtype;
use crate::failure::Failure;
use crate::open_device::OpenDevice;

/// A tensor of another library; dropping this calls its deleter.
enum ImportedTensor {
    /// `DLManagedTensor`.
    Plain(*mut c_void),
    /// `DLManagedTensorVersioned`, since version 1.
    Versioned(*mut c_void),
}

// SAFETY: the pointers are followed once, in the drop, and DLPack lets deleters be called by any thread.
unsafe impl Send for ImportedTensor {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for ImportedTensor {}

impl ImportedTensor {
    /// The tensor.
    fn tensor(&self) -> &Tensor {
        // SAFETY: it was taken from a capsule that holds such a struct, which stays good until its deleter
        // is called, by the drop of this value.
        unsafe {
            match *self {
                Self::Plain(managed) => &(*managed.cast::<Managed>()).tensor,
                Self::Versioned(managed) => &(*managed.cast::<ManagedVersioned>()).tensor,
            }
        }
    }

    fn writable(&self) -> bool {
        match *self {
            Self::Plain(_) => true,
            // SAFETY: as in `tensor`.
            Self::Versioned(managed) => unsafe {
                (*managed.cast::<ManagedVersioned>()).flags & READ_ONLY == 0
            },
        }
    }
}

impl Drop for ImportedTensor {
    fn drop(&mut self) {
        // A deleter may need the GIL. While the interpreter shuts down it is not called, and the memory is
        // leaked.
        Python::try_attach(|_| {
            // SAFETY: the tensor was taken from its capsule, so this is the only call of its deleter.
            unsafe {
                match *self {
                    Self::Plain(managed) => {
                        let managed = managed.cast::<Managed>();
                        if let Some(deleter) = (*managed).deleter {
                            deleter(managed);
                        }
                    }
                    Self::Versioned(managed) => {
                        let managed = managed.cast::<ManagedVersioned>();
                        if let Some(deleter) = (*managed).deleter {
                            deleter(managed);
                        }
                    }
                }
            }
        });
    }
}

/// Imports an object that supports DLPack.
pub(crate) fn import(object: &Bound<'_, PyAny>) -> Result<(Pin, ArrayView), Failure> {
    let capsule = ask(object)?;
    let imported = take(&capsule)?;
    let (array, address, device, space) = describe(&imported)?;
    let allocation = Allocation::foreign(
        &device,
        (address, Bytes::new(array.in_rows().extent()), space),
        imported,
    );
    Ok((allocation.pin()?, array))
}

/// A capsule from an object: of the newest form that it has.
fn ask<'py>(object: &Bound<'py, PyAny>) -> Result<Bound<'py, PyCapsule>, Failure> {
    let py = object.py();
    if let Ok(capsule) = object.cast::<PyCapsule>() {
        return Ok(capsule.clone());
    }
    let Ok(method) = object.getattr(intern!(py, "__dlpack__")) else {
        let kind = object.get_type().name()?;
        let said = format!(
            "{kind} has no __dlpack__: expected an object with __dlpack__, or a DLPack capsule"
        );
        return Err(Failure::invalid(said));
    };
    let request = PyDict::new(py);
    request.set_item("max_version", VERSION)?;
    let made = match method.call((), Some(&request)) {
        // Libraries from before version 1 do not know the argument.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => method.call0(),
        made => made,
    };
    Ok(made?.cast_into::<PyCapsule>().map_err(PyErr::from)?)
}

/// Takes the tensor out of a capsule.
fn take(capsule: &Bound<'_, PyCapsule>) -> Result<ImportedTensor, Failure> {
    let raw = capsule.as_ptr();
    // SAFETY: the capsule is live, and the GIL is held. The pointer is read under the capsule's name, and the
    // capsule is renamed so that nobody takes the tensor again. The names are static.
    unsafe {
        for (name, taken) in [(VERSIONED, VERSIONED_TAKEN), (PLAIN, PLAIN_TAKEN)] {
            if ffi::PyCapsule_IsValid(raw, name.as_ptr()) != 1 {
                continue;
            }
            let managed = ffi::PyCapsule_GetPointer(raw, name.as_ptr());
            if managed.is_null() || ffi::PyCapsule_SetName(raw, taken.as_ptr()) != 0 {
                return Err(PyErr::fetch(capsule.py()).into());
            }
            if name == PLAIN {
                return Ok(ImportedTensor::Plain(managed));
            }
            let imported = ImportedTensor::Versioned(managed);
            let major = (*managed.cast::<ManagedVersioned>()).major;
            if major != VERSION.0 {
                let said = format!("DLPack version {major} is not supported; version 1 is");
                return Err(Failure::unsupported(said));
            }
            return Ok(imported);
        }
    }
    Err(Failure::invalid("the capsule holds no DLPack tensor, or one that was taken already"))
}

/// Reads the description of a tensor. An error where it is not contiguous, or where its dtype is unknown here.
fn describe(
    imported: &ImportedTensor,
) -> Result<(ArrayView, Address, Arc<OpenDevice>, MemorySpace), Failure> {
    let tensor = imported.tensor();
    let dtype = Dtype::of_dlpack(tensor.code, tensor.bits).filter(|_| tensor.lanes == 1);
    let dtype = dtype.ok_or_else(|| {
        let Tensor { code, bits, lanes, .. } = *tensor;
        Failure::unsupported(format!("elements of kind {code} with {bits} bits, {lanes} at a time"))
    })?;
    let dimensions = usize::try_from(tensor.dimensions).map_err(|_| {
        Failure::invalid(format!("the tensor has {} dimensions", tensor.dimensions))
    })?;
    // SAFETY: a tensor has as many lengths as dimensions, and as many strides where it has any.
    let (shape, strides) =
        unsafe { (list(tensor.shape, dimensions), list(tensor.strides, dimensions)) };
    if shape.is_none() && dimensions > 0 {
        return Err(Failure::invalid("the tensor has dimensions but no shape"));
    }
    let lengths: Option<Vec<u64>> =
        shape.unwrap_or_default().iter().map(|&length| u64::try_from(length).ok()).collect();
    let lengths = lengths.ok_or_else(|| Failure::invalid("the tensor has a negative length"))?;
    let bytes = lengths.iter().try_fold(dtype.size(), |sum, &next| sum.checked_mul(next));
    let bytes = bytes.ok_or_else(|| Failure::invalid("the tensor is larger than any memory"))?;
    let array = ArrayView::imported(dtype, lengths, bytes, imported.writable());
    let step = strides.filter(|_| bytes > 0).map_or(Some(1), |strides| step_of(&array, strides));
    let step = step.ok_or_else(|| {
        let said = "the tensor is not contiguous in C order; make a contiguous copy of it first";
        Failure::invalid(said)
    })?;
    let array = array.with_step(step);
    let bytes = array.in_rows().extent();
    let start = Address::new(tensor.data.expose_provenance() as u64);
    let address = start.checked_add(Bytes::new(tensor.byte_offset));
    let address = address.filter(|address| {
        let end = address.checked_add(Bytes::new(bytes));
        bytes == 0 || (!start.is_null() && end.is_some())
    });
    let address = address.ok_or_else(|| {
        Failure::invalid(format!("the tensor of {bytes} B has no memory at {start}"))
    })?;
    let numbered = |kind: DeviceKind| {
        let device = OpenDevice::named(&format!("{kind}:{}", tensor.device_id))?;
        Ok::<_, Failure>((device, MemorySpace::Device))
    };
    let (device, space) = match tensor.device_type {
        device_type::CPU | device_type::CUDA_HOST | device_type::ROCM_HOST => {
            (OpenDevice::named("host")?, MemorySpace::Host)
        }
        device_type::CUDA => numbered(DeviceKind::Cuda)?,
        device_type::ROCM => numbered(DeviceKind::Hip)?,
        device_type::OPENCL | device_type::METAL => {
            let said = "a tensor of OpenCL or Metal is a buffer object of another library, and has no address here; copy \
                        it through the host";
            return Err(Failure::unsupported(said));
        }
        other => {
            let said =
                format!("DLPack device type {other} is not supported; host, CUDA and ROCm are");
            return Err(Failure::unsupported(said));
        }
    };
    Ok((array, address, device, space))
}

/// How many rows are from one row of the first dimension to the next; `None` if the strides say anything else.
fn step_of(array: &ArrayView, strides: &[i64]) -> Option<u64> {
    let mut step = 1;
    for (index, (ours, theirs)) in array.strides().into_iter().zip(strides).enumerate() {
        // The stride of a single element is never taken.
        if array.shape().get(index).is_none_or(|&length| length <= 1) {
            continue;
        }
        let theirs = u64::try_from(*theirs).ok()?;
        if index == 0 && theirs.is_multiple_of(ours) && theirs > 0 {
            step = theirs / ours;
        } else if theirs != ours {
            return None;
        }
    }
    Some(step)
}

/// # Safety
///
/// * A pointer that is not null points to `length` values, which live as long as is made use of them.
unsafe fn list<'a>(start: *const i64, length: usize) -> Option<&'a [i64]> {
    // SAFETY: as the caller promised.
    (!start.is_null()).then(|| unsafe { core::slice::from_raw_parts(start, length) })
}
