//! Exports: memory of ours as tensors for other libraries.

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use forebay::StreamHandle;
#[cfg(target_os = "macos")]
use forebay::hal;
use forebay::opencl::OpenClDevice;
use pyo3::ffi;
use pyo3::prelude::*;

use super::{
    Managed, ManagedVersioned, PLAIN, READ_ONLY, Tensor, VERSION, VERSIONED, device_type,
    dlpack_device,
};
use crate::allocation::Allocation;
use crate::array_view::ArrayView;
use crate::failure::Failure;
use crate::memory::HeldPin;
use crate::open_device::StreamRef;
use crate::stream::raw_stream_argument;
use crate::transfer::pointer;

/// A tensor of ours, with everything that it refers to.
struct ExportedTensor<M> {
    managed: M,
    _pin: HeldPin,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// The arguments of `__dlpack__`.
pub(crate) struct ExportRequest<'a, 'py> {
    pub(crate) stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// A capsule with a tensor of `array`, in the memory that `pin` pins.
pub(crate) fn export<'py>(
    py: Python<'py>,
    pin: HeldPin,
    array: &ArrayView,
    request: &ExportRequest<'_, 'py>,
) -> Result<Bound<'py, PyAny>, Failure> {
    let device = dlpack_device(pin.allocation())?;
    if request.copy == Some(true) || request.device.is_some_and(|wanted| wanted != device) {
        let said = "a buffer is exported without a copy: pass copy=False or None and its own device, or \
                    copy it with to_bytes() or copy_to()";
        return Err(Failure::export(said));
    }
    order_streams(py, pin.allocation(), device, request.stream)?;
    if request.max_version.is_some_and(|(major, _)| major >= VERSION.0) {
        let exported = make_tensor(pin, array, device, |tensor| ManagedVersioned {
            major: VERSION.0,
            minor: VERSION.1,
            context: core::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: if array.writable() { 0 } else { READ_ONLY },
            tensor,
        })?;
        let exported = Box::into_raw(exported);
        // SAFETY: the box was just made; the struct that is handed out knows where its end is.
        unsafe { (*exported).managed.context = exported.cast() };
        // SAFETY: likewise: the pointer stays good until the deleter is called.
        return unsafe {
            capsule(py, (&raw mut (*exported).managed).cast(), VERSIONED, drop_versioned)
        };
    }
    if !array.writable() {
        let said = "the memory is read-only, which only DLPack 1 and later can express";
        return Err(Failure::export(said));
    }
    let exported = make_tensor(pin, array, device, |tensor| Managed {
        tensor,
        context: core::ptr::null_mut(),
        deleter: Some(delete),
    })?;
    let exported = Box::into_raw(exported);
    // SAFETY: as above.
    unsafe { (*exported).managed.context = exported.cast() };
    // SAFETY: as above.
    unsafe { capsule(py, (&raw mut (*exported).managed).cast(), PLAIN, drop_plain) }
}

/// Makes the consumer's stream wait for the memory's, and the free of the memory wait for the consumer's
/// stream where that is known. The host waits itself.
fn order_streams(
    py: Python<'_>,
    allocation: &Arc<Allocation>,
    (kind, _): (i32, i32),
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<(), Failure> {
    if kind != device_type::CUDA {
        return py.detach(|| allocation.stream_ref().synchronize());
    }
    let number = stream.and_then(|stream| stream.extract::<i64>().ok());
    let raw = match (stream, number) {
        // The consumer synchronises itself.
        (_, Some(-1)) => return Ok(()),
        // The legacy default stream, by either of its names.
        (None, _) | (_, Some(1)) => StreamHandle::DEFAULT.0,
        (Some(stream), _) => raw_stream_argument(stream)?,
    };
    py.detach(|| {
        let (consumer, known) = StreamRef::find_or_borrow(allocation.device(), raw)?;
        consumer.wait_for(&allocation.stream_ref())?;
        // The handle is valid during this call, but its stream may be destroyed before the tensor. Only
        // streams made here, or adopted by the program, are recorded for the free.
        if known { allocation.record_use(&consumer) } else { Ok(()) }
    })
}

fn make_tensor<M>(
    pin: HeldPin,
    array: &ArrayView,
    (device_type, device_id): (i32, i32),
    manage: impl FnOnce(Tensor) -> M,
) -> Result<Box<ExportedTensor<M>>, Failure> {
    let signed = |value: &u64| i64::try_from(*value).unwrap_or(i64::MAX);
    let mut shape: Box<[i64]> = array.shape().iter().map(signed).collect();
    let mut strides: Box<[i64]> = array.strides().iter().map(signed).collect();
    let (code, bits) = array.dtype().dlpack;
    let (data, byte_offset) = place_of(&pin, array, device_type)?;
    let tensor = Tensor {
        data,
        device_type,
        device_id,
        dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
        code,
        bits,
        lanes: 1,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset,
    };
    Ok(Box::new(ExportedTensor {
        managed: manage(tensor),
        _pin: pin,
        _shape: shape,
        _strides: strides,
    }))
}

/// What DLPack calls the data of an array, and the offset in it: its address, or of OpenCL and Metal the buffer object.
fn place_of(
    pin: &HeldPin,
    array: &ArrayView,
    device_type: i32,
) -> Result<(*mut c_void, u64), Failure> {
    let address = array.address(pin.allocation());
    // The device that the allocation's was opened as.
    let ordinal = pin.allocation().device().ordinal();
    match device_type {
        device_type::OPENCL => {
            let (buffer, offset) = OpenClDevice::shared(ordinal)?.buffer_at(address)?;
            Ok((buffer, offset.get()))
        }
        #[cfg(target_os = "macos")]
        device_type::METAL => {
            let device = forebay::metal::MetalDevice::shared(ordinal).map_err(hal::Error::from)?;
            let (buffer, offset) = device.buffer_at(address).ok_or_else(|| {
                Failure::export(format!("metal:{ordinal} has no buffer at {address}"))
            })?;
            // The allocation keeps it.
            Ok((core::ptr::from_ref(&*buffer).cast_mut().cast(), offset))
        }
        _ => Ok((pointer(address).cast(), 0)),
    }
}

/// # Safety
///
/// * `managed` points to a struct of the kind `name` says, whose deleter `destructor` calls.
unsafe fn capsule<'py>(
    py: Python<'py>,
    managed: *mut c_void,
    name: &'static CStr,
    destructor: ffi::PyCapsule_Destructor,
) -> Result<Bound<'py, PyAny>, Failure> {
    // SAFETY: the pointer is not null, the name lives for ever, and what is made is owned here.
    let made = unsafe {
        let made = ffi::PyCapsule_New(managed, name.as_ptr(), Some(destructor));
        Bound::from_owned_ptr_or_err(py, made)
    };
    Ok(made?)
}

/// # Safety
///
/// * `managed` is one that was given out here, and is given back once.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: as the contract says, its context is the box that holds it.
    drop(unsafe { Box::from_raw((*managed).context.cast::<ExportedTensor<Managed>>()) });
}

/// # Safety
///
/// * As for `delete`.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    drop(unsafe { Box::from_raw((*managed).context.cast::<ExportedTensor<ManagedVersioned>>()) });
}

/// # Safety
///
/// * As Python calls it: with a capsule of `export` that goes.
unsafe extern "C" fn drop_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is live during the call; under this name it holds a tensor that nobody took.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr());
            delete(managed.cast());
        }
    }
}

/// # Safety
///
/// * As for `drop_plain`.
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_plain`.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            let managed = ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr());
            delete_versioned(managed.cast());
        }
    }
}
