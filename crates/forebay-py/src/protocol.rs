//! The buffer protocol of `Buffer`, `Array` and `UnifiedBuffer`, and how their objects are constructed.
//!
//! Each of them is a class of PyO3 with all methods, and a subclass of it with the two slots of the buffer
//! protocol, which is the type that Python sees. See [`ffi`](crate::ffi) for why. PyO3 cannot construct objects of
//! such a type. So the type is called as Python calls it, and the object's [`Memory`] waits in a thread-local
//! until the constructor takes it.

use core::cell::Cell;
use core::ffi::{CStr, c_int, c_ulong, c_void};
use core::marker::PhantomData;
use core::ptr::null_mut;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};
use pyo3::{PyClass, ffi};

use crate::allocation::MemorySpace;
use crate::failure::Failure;
use crate::ffi::{FORMAT, FORTRAN, GET_BUFFER, RELEASE_BUFFER, RawView, SHAPE, STRIDES, WRITABLE};
use crate::memory::{HeldPin, Memory, Use};
use crate::transfer::pointer;

/// The type that Python sees of `T`, a class over [`Memory`]. Created by the first use.
pub(crate) struct BufferType<T> {
    name: &'static CStr,
    created: PyOnceLock<Py<PyType>>,
    class: PhantomData<fn() -> T>,
    family: Family,
}

/// How types are kinds of each other.
#[derive(Clone, Copy)]
pub(crate) enum Family {
    /// A kind of no other, and none is a kind of it.
    Alone,
    /// Others are a kind of it.
    Parent,
    /// A kind of the type that this gives.
    KindOf(fn(Python<'_>) -> PyResult<&Bound<'_, PyType>>),
}

thread_local! {
    /// The memory of the object that this thread constructs next.
    static NEXT: Cell<Option<Memory>> = const { Cell::new(None) };
}

/// The memory for the constructor that runs on this thread; `None` where a program called the type itself.
pub(crate) fn take_next() -> Option<Memory> {
    NEXT.take()
}

impl<T: PyClass> BufferType<T> {
    pub(crate) const fn new(name: &'static CStr, family: Family) -> Self {
        Self { name, created: PyOnceLock::new(), class: PhantomData, family }
    }

    /// The type, for the module.
    pub(crate) fn get<'py>(&self, py: Python<'py>) -> PyResult<&Bound<'py, PyType>> {
        let make = || buffer_protocol_type::<T>(py, self.name, self.family);
        Ok(self.created.get_or_try_init(py, make)?.bind(py))
    }

    /// A new object of this type with `memory`.
    pub(crate) fn construct(&self, py: Python<'_>, memory: Memory) -> Result<Py<PyAny>, Failure> {
        let class = self.get(py)?;
        // A value that waits already belongs to a construction that this one interrupted: the garbage collector
        // may run any code.
        let interrupted = NEXT.replace(Some(memory));
        let object = class.call0();
        NEXT.set(interrupted);
        Ok(object?.unbind())
    }
}

/// What an exported buffer refers to, kept until it is released.
struct ExportedBuffer {
    _pin: HeldPin,
    shape: Vec<isize>,
    strides: Vec<isize>,
    format: CString,
}

/// The address of an export of no bytes: consumers do not like null.
static EMPTY: u8 = 0;

/// The type `name`: a subclass of `T`, a class over [`Memory`], with the buffer protocol.
fn buffer_protocol_type<T: PyClass>(
    py: Python<'_>,
    name: &'static CStr,
    family: Family,
) -> PyResult<Py<PyType>> {
    let mut slots = [
        ffi::PyType_Slot { slot: GET_BUFFER, pfunc: get_buffer as *mut c_void },
        ffi::PyType_Slot { slot: RELEASE_BUFFER, pfunc: release_buffer as *mut c_void },
        ffi::PyType_Slot { slot: 0, pfunc: core::ptr::null_mut() },
    ];
    // The flag is within 32 bits, as all flags that a specification can have.
    let base = if matches!(family, Family::Parent) { ffi::Py_TPFLAGS_BASETYPE } else { 0 };
    let flags = ffi::Py_TPFLAGS_DEFAULT | base;
    let flags = u32::try_from(flags & c_ulong::from(u32::MAX)).unwrap_or(0);
    let mut spec = ffi::PyType_Spec {
        name: name.as_ptr(),
        // The same as the base's.
        basicsize: 0,
        itemsize: 0,
        flags,
        slots: slots.as_mut_ptr(),
    };
    let mut bases = vec![py.get_type::<T>()];
    if let Family::KindOf(parent) = family {
        bases.push(parent(py)?.clone());
    }
    let bases = PyTuple::new(py, bases)?;
    // SAFETY: the specification and its slots live until the call returns, the name for ever; the functions
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

/// The slot `bf_getbuffer`: fills in a view.
///
/// # Safety
///
/// * As Python calls it: with the GIL, an object of a type made above, and a view to be filled in.
unsafe extern "C" fn get_buffer(
    object: *mut ffi::PyObject,
    view: *mut RawView,
    flags: c_int,
) -> c_int {
    let work = || {
        Python::attach(|py| {
            // SAFETY: Python hands over a live object.
            let object = unsafe { Bound::from_borrowed_ptr(py, object) };
            match export(&object, flags) {
                Ok(filled) => {
                    // SAFETY: Python hands over a view to be filled in.
                    unsafe { view.write(filled) };
                    0
                }
                Err(failure) => {
                    PyErr::from(failure).restore(py);
                    // SAFETY: as above. A view that was not filled in has no owner.
                    unsafe { (&raw mut (*view).owner).write(core::ptr::null_mut()) };
                    -1
                }
            }
        })
    };
    // A panic must not unwind into C.
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(-1)
}

fn export(object: &Bound<'_, PyAny>, flags: c_int) -> Result<RawView, Failure> {
    let py = object.py();
    let memory = object.cast::<Memory>().map_err(PyErr::from)?.get();
    let is_written = flags & WRITABLE != 0;
    if is_written && memory.as_unified().is_none() && !memory.array().writable() {
        return Err(Failure::export("the memory is read-only"));
    }
    let (pin, array) = memory.pinned_for(py, if is_written { Use::Update } else { Use::Read })?;
    memory.settle(py)?;
    py.detach(|| ready_for_host(&pin))?;
    if flags & STRIDES != STRIDES && array.contiguous().is_err() {
        return Err(Failure::export(
            "the rows lie apart, and the consumer wants contiguous memory: copy them with forebay.array(x)",
        ));
    }
    let dtype = array.dtype();
    let format = dtype.format.ok_or_else(|| {
        let name = dtype.name;
        Failure::export(format!(
            "the buffer protocol has no {name}; use DLPack, or view it as uint16 with .view()"
        ))
    })?;
    let signed = |value: &u64| isize::try_from(*value).unwrap_or(isize::MAX);
    let item_size = signed(&dtype.size());
    let shape: Vec<isize> = array.shape().iter().map(signed).collect();
    if flags & FORTRAN == FORTRAN && shape.iter().filter(|&&length| length > 1).count() > 1 {
        let said = "Fortran order was requested, but the memory is in C order";
        return Err(Failure::export(said));
    }
    let strides = array.strides();
    let strides = strides.iter().map(|stride| signed(stride).saturating_mul(item_size)).collect();
    let start = match array.address(pin.allocation()) {
        address if address.is_null() => (&raw const EMPTY).cast_mut().cast(),
        address => pointer(address).cast::<c_void>(),
    };
    // A consumer that asks for no shape gets bytes in one dimension. A scalar has neither shape nor strides.
    let dimensions = if flags & SHAPE == 0 { 1 } else { shape.len() };
    let (shaped, strided) = match shape.len() {
        0 => (false, false),
        _ => (flags & SHAPE != 0, flags & STRIDES == STRIDES),
    };
    let exported = Box::into_raw(Box::new(ExportedBuffer {
        _pin: pin,
        shape,
        strides,
        format: format.to_owned(),
    }));
    // SAFETY: the box was just made, and nobody else has it.
    let kept = unsafe { &mut *exported };
    Ok(RawView {
        start,
        owner: object.clone().into_ptr(),
        length: signed(&array.bytes()),
        item_size,
        read_only: c_int::from(!array.writable()),
        dimensions: c_int::try_from(dimensions).unwrap_or(c_int::MAX),
        format: if flags & FORMAT == 0 { null_mut() } else { kept.format.as_ptr().cast_mut() },
        shape: if shaped { kept.shape.as_mut_ptr() } else { null_mut() },
        strides: if strided { kept.strides.as_mut_ptr() } else { null_mut() },
        suboffsets: null_mut(),
        internal: exported.cast(),
    })
}

/// Waits until all work before an access of the host is done; an error where the host cannot reach the memory.
fn ready_for_host(pin: &HeldPin) -> Result<(), Failure> {
    let allocation = pin.allocation();
    if allocation.space() == MemorySpace::Device {
        return Err(Failure::export(format!(
            "the host cannot reach memory of {}: copy it with numpy(), download() or to_bytes(), or hand it to a \
             library of that device by DLPack or __cuda_array_interface__",
            allocation.device().name()
        )));
    }
    // Enqueued work may still write to the memory. The host waits for it, since it runs in no stream's order.
    allocation.stream_ref().synchronize()
}

/// The slot `bf_releasebuffer`: ends a view.
///
/// # Safety
///
/// * As Python calls it: with a view that `get_buffer` filled in, once.
unsafe extern "C" fn release_buffer(_object: *mut ffi::PyObject, view: *mut RawView) {
    // SAFETY: Python passes the view that `get_buffer` filled in, and `internal` is the box that it leaked
    // there, which only this call frees.
    let exported = unsafe { Box::from_raw((*view).internal.cast::<ExportedBuffer>()) };
    // A panic must not unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(exported)));
}
