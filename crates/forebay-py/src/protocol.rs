//! The types of Python that show memory to the host.
//!
//! `Buffer` and `View` are made in two steps: a class of the bindings with all methods, and beneath it the
//! type that Python sees, which adds the two slots of the buffer protocol. See [`ffi`](crate::ffi) for why.

use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::ptr::null_mut;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::types::{PyTuple, PyType};
use pyo3::{PyClass, ffi};

use crate::face::Face;
use crate::ffi::{FORMAT, FORTRAN, HIDE, RawView, SHAPE, SHOW, STRIDES, WRITABLE};
use crate::fork::Held;
use crate::lot::{Pin, Reach};
use crate::refusal::Refusal;
use crate::transfer::pointer;

/// A class of the bindings whose memory can be shown.
pub(crate) trait Shown: PyClass + Sync {
    /// The class behind an object: what it is, as nothing of it changes.
    fn of<'a>(object: &'a Bound<'_, Self>) -> &'a Self;

    /// A use of its memory, and the face to show.
    fn show(&self) -> Result<(Pin, Face), Refusal>;
}

/// What a view that was handed out needs as long as it lives.
struct Showing {
    _pin: Held<Pin>,
    shape: Vec<isize>,
    strides: Vec<isize>,
    format: CString,
}

/// Where memory of no bytes begins: consumers do not like null.
static NOWHERE: u8 = 0;

/// The type `name`, which is `T` with the buffer protocol.
pub(crate) fn showing_type<T: Shown>(py: Python<'_>, name: &'static CStr) -> PyResult<Py<PyType>> {
    let mut slots = [
        ffi::PyType_Slot { slot: SHOW, pfunc: show::<T> as *mut c_void },
        ffi::PyType_Slot { slot: HIDE, pfunc: hide as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: core::ptr::null_mut() },
    ];
    // The flag is within 32 bits, as all flags that a specification can have.
    let flags = u32::try_from(ffi::Py_TPFLAGS_DEFAULT & c_ulong::from(u32::MAX)).unwrap_or(0);
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        // As large as what it extends.
        basicsize: 0,
        itemsize: 0,
        flags,
        slots: slots.as_mut_ptr(),
    };
    let bases = PyTuple::new(py, [py.get_type::<T>()])?;
    // SAFETY: the specification and its slots live until the call ends, the name for ever; the functions
    // have the signatures of their slots.
    let made = unsafe {
        let made = ffi::PyType_FromSpecWithBases(&raw mut spec, bases.as_ptr());
        Bound::from_owned_ptr_or_err(py, made)
    }?;
    let made = made.cast_into::<PyType>()?;
    made.setattr("__module__", "forebay")?;
    made.setattr("__doc__", py.get_type::<T>().getattr("__doc__")?)?;
    Ok(made.unbind())
}

/// The slot that fills in a view.
///
/// # Safety
///
/// * As Python calls it: with its lock, an object of the type made above, and a view to be filled in.
unsafe extern "C" fn show<T: Shown>(
    object: *mut ffi::PyObject,
    view: *mut RawView,
    flags: c_int,
) -> c_int {
    let work = || {
        Python::attach(|py| {
            // SAFETY: Python hands over a live object.
            let object = unsafe { Bound::from_borrowed_ptr(py, object) };
            match showing::<T>(&object, flags) {
                Ok(filled) => {
                    // SAFETY: Python hands over a view to be filled in.
                    unsafe { view.write(filled) };
                    0
                }
                Err(refusal) => {
                    PyErr::from(refusal).restore(py);
                    // SAFETY: as above. A view that was not filled in has no owner.
                    unsafe { (&raw mut (*view).owner).write(core::ptr::null_mut()) };
                    -1
                }
            }
        })
    };
    // A panic goes no further: what called is C.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(-1)
}

fn showing<T: Shown>(object: &Bound<'_, PyAny>, flags: c_int) -> Result<RawView, Refusal> {
    let py = object.py();
    let class = T::of(object.cast::<T>().map_err(PyErr::from)?);
    let (pin, face) = py.detach(|| visible(class))?;
    if flags & WRITABLE != 0 && !face.writable() {
        return Err(Refusal::Export("the memory may be read alone".to_owned()));
    }
    let dtype = face.dtype();
    let format = dtype.format.ok_or_else(|| {
        let name = dtype.name;
        Refusal::Export(format!(
            "the buffer protocol has no {name}; DLPack has, as uint16 by .view()"
        ))
    })?;
    let signed = |value: &u64| isize::try_from(*value).unwrap_or(isize::MAX);
    let item_size = signed(&dtype.size());
    let shape: Vec<isize> = face.shape().iter().map(signed).collect();
    if flags & FORTRAN == FORTRAN && shape.iter().filter(|&&length| length > 1).count() > 1 {
        let said = "the last index runs fastest here, and the first was asked to";
        return Err(Refusal::Export(said.to_owned()));
    }
    let strides = face.strides();
    let strides = strides.iter().map(|stride| signed(stride).saturating_mul(item_size)).collect();
    let start = match face.address(pin.lot()) {
        address if address.is_null() => (&raw const NOWHERE).cast_mut().cast(),
        address => pointer(address).cast::<c_void>(),
    };
    // Who asks for no shape gets bytes in a row. A single element has neither lengths nor strides.
    let dimensions = if flags & SHAPE == 0 { 1 } else { shape.len() };
    let (shaped, strided) = match shape.len() {
        0 => (false, false),
        _ => (flags & SHAPE != 0, flags & STRIDES == STRIDES),
    };
    let showing = Box::into_raw(Box::new(Showing {
        _pin: Held::new(pin),
        shape,
        strides,
        format: format.to_owned(),
    }));
    // SAFETY: the box was just made, and nobody else has it.
    let kept = unsafe { &mut *showing };
    Ok(RawView {
        start,
        owner: object.clone().into_ptr(),
        length: signed(&face.bytes()),
        item_size,
        read_only: c_int::from(!face.writable()),
        dimensions: c_int::try_from(dimensions).unwrap_or(c_int::MAX),
        format: if flags & FORMAT == 0 { null_mut() } else { kept.format.as_ptr().cast_mut() },
        shape: if shaped { kept.shape.as_mut_ptr() } else { null_mut() },
        strides: if strided { kept.strides.as_mut_ptr() } else { null_mut() },
        suboffsets: null_mut(),
        internal: showing.cast(),
    })
}

/// A use of memory that the host can reach, once all work before it is done.
fn visible(class: &impl Shown) -> Result<(Pin, Face), Refusal> {
    let (pin, face) = class.show()?;
    let lot = pin.lot();
    if lot.reach() == Reach::Device {
        return Err(Refusal::Export(format!(
            "the host cannot reach memory of {}: copy it with copy_to() or to_bytes(), or hand it to a \
             library of that device by DLPack or __cuda_array_interface__",
            lot.site().name()
        )));
    }
    // What was there before may still be written by work that was enqueued: the host waits, as it is not
    // in the order of any stream.
    lot.course().synchronize()?;
    Ok((pin, face))
}

/// The slot that ends a view.
///
/// # Safety
///
/// * As Python calls it: with a view that `show` filled in, once.
unsafe extern "C" fn hide(_object: *mut ffi::PyObject, view: *mut RawView) {
    // SAFETY: the view is Python's to hand over, and what is internal to it is the box of `show`, of which
    // this is the only end.
    let showing = unsafe { Box::from_raw((*view).internal.cast::<Showing>()) };
    // A panic goes no further: what called is C.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(showing)));
}
