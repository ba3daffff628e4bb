//! DLPack: memory handed to other libraries, and theirs taken.
//!
//! A capsule holds a pointer to a struct with a deleter. Who takes the tensor renames the capsule, and calls
//! the deleter when it is done; a capsule that nobody took calls it itself.

use core::ffi::{CStr, c_void};
use std::sync::Arc;

use forebay::{Address, Bytes, DeviceKind};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use pyo3::{ffi, intern};

use crate::dtype::Dtype;
use crate::face::Face;
use crate::lot::{Lot, Pin, Reach};
use crate::refusal::Refusal;
use crate::site::Site;
use crate::stream::{Course, course_of};
use crate::transfer::pointer;

/// Kinds of devices.
pub(crate) mod place {
    pub(crate) const CPU: i32 = 1;
    pub(crate) const CUDA: i32 = 2;
    pub(crate) const CUDA_HOST: i32 = 3;
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

/// A tensor of ours, with all that it needs as long as it lives.
struct Given<M> {
    managed: M,
    _pin: Pin,
    _shape: Box<[i64]>,
    _strides: Box<[i64]>,
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

/// Has the consumer's stream wait for the memory's; on the host, waits.
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
    let consumer = match (stream, number) {
        // The consumer keeps order itself.
        (_, Some(-1)) => return Ok(()),
        // The legacy default stream, by either of its names.
        (None, _) | (_, Some(1)) => Course::default_of(lot.site()),
        (Some(stream), _) => course_of(lot.site(), Some(stream))?,
    };
    py.detach(|| lot.course().lead(&consumer))?;
    lot.used_on(&consumer);
    Ok(())
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
    Box::new(Given { managed: manage(tensor), _pin: pin, _shape: shape, _strides: strides })
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

/// A tensor of another library, given back when this goes.
pub(crate) enum Lent {
    /// Of the first form.
    Plain(*mut c_void),
    /// Of the form since version 1.
    Versioned(*mut c_void),
}

// SAFETY: the pointers are followed once, in the drop, and DLPack lets deleters be called by any thread.
unsafe impl Send for Lent {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for Lent {}

impl Lent {
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

impl Drop for Lent {
    fn drop(&mut self) {
        // Deleters of libraries of Python's may need its lock; where Python is at its end they are let be,
        // and the memory with them.
        Python::try_attach(|_| {
            // SAFETY: the tensor was taken, so its end is ours, and comes once.
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

/// The memory and the face of an object that speaks DLPack.
pub(crate) fn import(object: &Bound<'_, PyAny>) -> Result<(Pin, Face), Refusal> {
    let capsule = ask(object)?;
    let lent = take(&capsule)?;
    let (face, address, site, reach) = understand(&lent)?;
    let lot = Lot::lent(&site, (address, Bytes::new(face.bytes()), reach), lent);
    Ok((lot.pin()?, face))
}

/// A capsule from an object: of the newest form that it has.
fn ask<'py>(object: &Bound<'py, PyAny>) -> Result<Bound<'py, PyCapsule>, Refusal> {
    let py = object.py();
    if let Ok(capsule) = object.cast::<PyCapsule>() {
        return Ok(capsule.clone());
    }
    let Ok(method) = object.getattr(intern!(py, "__dlpack__")) else {
        let kind = object.get_type().name()?;
        let said =
            format!("{kind} has no __dlpack__: allowed are objects that have, and its capsules");
        return Err(Refusal::invalid(said));
    };
    let wish = PyDict::new(py);
    wish.set_item("max_version", VERSION)?;
    let made = match method.call((), Some(&wish)) {
        // Libraries from before version 1 do not know the word.
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => method.call0(),
        made => made,
    };
    Ok(made?.cast_into::<PyCapsule>().map_err(PyErr::from)?)
}

/// Takes the tensor out of a capsule.
fn take(capsule: &Bound<'_, PyCapsule>) -> Result<Lent, Refusal> {
    let raw = capsule.as_ptr();
    // SAFETY: the capsule is live, and Python's lock is held; a pointer is taken under the name it has, and
    // under its new name nobody takes it again. The names live for ever.
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
                return Ok(Lent::Plain(managed));
            }
            let lent = Lent::Versioned(managed);
            let major = (*managed.cast::<ManagedVersioned>()).major;
            if major != VERSION.0 {
                let said = format!("DLPack of version {major} is not known here; version 1 is");
                return Err(Refusal::Unsupported(said));
            }
            return Ok(lent);
        }
    }
    Err(Refusal::invalid("the capsule holds no DLPack tensor, or one that was taken already"))
}

/// What a tensor is; refused where it is in pieces or of elements that there are no names for.
fn understand(lent: &Lent) -> Result<(Face, Address, Arc<Site>, Reach), Refusal> {
    let tensor = lent.tensor();
    let dtype = Dtype::of_dlpack(tensor.code, tensor.bits).filter(|_| tensor.lanes == 1);
    let dtype = dtype.ok_or_else(|| {
        let Tensor { code, bits, lanes, .. } = *tensor;
        Refusal::Unsupported(format!("elements of kind {code} with {bits} bits, {lanes} at a time"))
    })?;
    let dimensions = usize::try_from(tensor.dimensions).unwrap_or(0);
    // SAFETY: a tensor has as many lengths as dimensions, and as many strides where it has any.
    let (shape, strides) =
        unsafe { (list(tensor.shape, dimensions), list(tensor.strides, dimensions)) };
    let lengths: Option<Vec<u64>> =
        shape.unwrap_or_default().iter().map(|&length| u64::try_from(length).ok()).collect();
    let lengths = lengths.ok_or_else(|| Refusal::invalid("the tensor has a length below zero"))?;
    let bytes = lengths.iter().try_fold(dtype.size(), |sum, &next| sum.checked_mul(next));
    let bytes = bytes.ok_or_else(|| Refusal::invalid("the tensor is larger than memory can be"))?;
    let face = Face::lent(dtype, lengths, bytes, lent.writable());
    if let Some(strides) = strides.filter(|_| bytes > 0) {
        let ours = face.strides();
        let differs = |index: usize| {
            let (ours, theirs) = (ours.get(index).copied(), strides.get(index).copied());
            // The stride of a single element is never taken.
            face.shape().get(index).is_some_and(|&length| length > 1)
                && ours != theirs.and_then(|stride| u64::try_from(stride).ok())
        };
        if (0..dimensions).any(differs) {
            let said = "the tensor is not in one piece with the last index running fastest; make a \
                        contiguous copy of it first";
            return Err(Refusal::invalid(said));
        }
    }
    let start = Address::new(tensor.data.expose_provenance() as u64);
    let address = start.checked_add(Bytes::new(tensor.byte_offset)).unwrap_or(Address::NULL);
    let (site, reach) = match tensor.device_type {
        place::CPU => (Site::named("host")?, Reach::Host),
        place::CUDA_HOST => (Site::named("host")?, Reach::Host),
        place::CUDA => (Site::named(&format!("cuda:{}", tensor.device_id))?, Reach::Device),
        other => {
            let said =
                format!("memory of DLPack's device kind {other}: the host and CUDA are known");
            return Err(Refusal::Unsupported(said));
        }
    };
    Ok((face, address, site, reach))
}

/// # Safety
///
/// * A pointer that is not null points to `length` values, which live as long as is made use of them.
unsafe fn list<'a>(start: *const i64, length: usize) -> Option<&'a [i64]> {
    // SAFETY: as the caller promised.
    (!start.is_null()).then(|| unsafe { core::slice::from_raw_parts(start, length) })
}
