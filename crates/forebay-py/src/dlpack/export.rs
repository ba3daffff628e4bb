//! Memory handed out.

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use forebay::StreamHandle;
use pyo3::ffi;
use pyo3::prelude::*;

use super::{
    Managed, ManagedVersioned, PLAIN, READ_ONLY, Tensor, VERSION, VERSIONED, device_of, place,
};
use crate::face::Face;
use crate::fork::Held;
use crate::lot::{Lot, Pin};
use crate::refusal::Refusal;
use crate::stream::{Course, raw_of};
use crate::transfer::pointer;

/// A tensor of ours, with all that it needs as long as it lives.
struct Given<M> {
    managed: M,
    _pin: Held<Pin>,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
}

/// What a consumer asks for.
pub(crate) struct Wish<'a, 'py> {
    pub(crate) stream: Option<&'a Bound<'py, PyAny>>,
    pub(crate) max_version: Option<(u32, u32)>,
    pub(crate) device: Option<(i32, i32)>,
    pub(crate) copy: Option<bool>,
}

/// A capsule with a tensor over `face` of the memory that `pin` keeps.
pub(crate) fn export<'py>(
    py: Python<'py>,
    pin: Pin,
    face: &Face,
    wish: &Wish<'_, 'py>,
) -> Result<Bound<'py, PyAny>, Refusal> {
    let device = device_of(pin.lot())?;
    if wish.copy == Some(true) || wish.device.is_some_and(|wanted| wanted != device) {
        let said = "a buffer is lent where it is: ask with copy=False or None and its own device, or \
                    copy it with to_bytes() or copy_to()";
        return Err(Refusal::Export(said.to_owned()));
    }
    order(py, pin.lot(), device, wish.stream)?;
    if wish.max_version.is_some_and(|(major, _)| major >= VERSION.0) {
        let given = give(pin, face, device, |tensor| ManagedVersioned {
            major: VERSION.0,
            minor: VERSION.1,
            context: core::ptr::null_mut(),
            deleter: Some(delete_versioned),
            flags: if face.writable() { 0 } else { READ_ONLY },
            tensor,
        });
        let given = Box::into_raw(given);
        // SAFETY: the box was just made; the struct that is handed out knows where its end is.
        unsafe { (*given).managed.context = given.cast() };
        // SAFETY: likewise: the pointer stays good until the deleter is called.
        return unsafe {
            capsule(py, (&raw mut (*given).managed).cast(), VERSIONED, drop_versioned)
        };
    }
    if !face.writable() {
        let said = "the memory may be read alone, which only DLPack from version 1 on can say";
        return Err(Refusal::Export(said.to_owned()));
    }
    let given = give(pin, face, device, |tensor| Managed {
        tensor,
        context: core::ptr::null_mut(),
        deleter: Some(delete),
    });
    let given = Box::into_raw(given);
    // SAFETY: as above.
    unsafe { (*given).managed.context = given.cast() };
    // SAFETY: as above.
    unsafe { capsule(py, (&raw mut (*given).managed).cast(), PLAIN, drop_plain) }
}

/// Has the consumer's stream wait for the memory's, and the memory for it where it is known; on the host,
/// waits.
fn order(
    py: Python<'_>,
    lot: &Arc<Lot>,
    (kind, _): (i32, i32),
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<(), Refusal> {
    if kind != place::CUDA {
        return py.detach(|| lot.course().synchronize());
    }
    let number = stream.and_then(|stream| stream.extract::<i64>().ok());
    let raw = match (stream, number) {
        // The consumer keeps order itself.
        (_, Some(-1)) => return Ok(()),
        // The legacy default stream, by either of its names.
        (None, _) | (_, Some(1)) => StreamHandle::DEFAULT.0,
        (Some(stream), _) => raw_of(stream)?,
    };
    py.detach(|| {
        let (consumer, known) = Course::passing(lot.site(), raw)?;
        lot.course().lead(&consumer)?;
        // A number is good during this call, and the stream may be gone when the tensor is: what is noted
        // for later are streams that are made here, or that the program said live.
        if known { lot.used_on(&consumer) } else { Ok(()) }
    })
}

fn give<M>(
    pin: Pin,
    face: &Face,
    (device_type, device_id): (i32, i32),
    manage: impl FnOnce(Tensor) -> M,
) -> Box<Given<M>> {
    let signed = |value: &u64| i64::try_from(*value).unwrap_or(i64::MAX);
    let mut shape: Box<[i64]> = face.shape().iter().map(signed).collect();
    let mut strides: Box<[i64]> = face.strides().iter().map(signed).collect();
    let (code, bits) = face.dtype().dlpack;
    let tensor = Tensor {
        data: pointer(face.address(pin.lot())).cast(),
        device_type,
        device_id,
        dimensions: i32::try_from(shape.len()).unwrap_or(i32::MAX),
        code,
        bits,
        lanes: 1,
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    Box::new(Given {
        managed: manage(tensor),
        _pin: Held::new(pin),
        _shape: shape,
        _strides: strides,
    })
}

/// # Safety
///
/// * `managed` points to a struct of the kind `name` says, whose deleter `destructor` calls.
unsafe fn capsule<'py>(
    py: Python<'py>,
    managed: *mut c_void,
    name: &'static CStr,
    destructor: ffi::PyCapsule_Destructor,
) -> Result<Bound<'py, PyAny>, Refusal> {
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
    drop(unsafe { Box::from_raw((*managed).context.cast::<Given<Managed>>()) });
}

/// # Safety
///
/// * As for `delete`.
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as in `delete`.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Given<ManagedVersioned>>()) });
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
