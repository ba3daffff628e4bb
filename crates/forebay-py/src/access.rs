//! What buffers and views have in common: copies, and what other libraries are told of their memory.

use std::sync::Arc;

use forebay::DeviceKind;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::buffer::BufferCore;
use crate::dtype::Dtype;
use crate::face::{Face, shape_of};
use crate::ffi::HostBytes;
use crate::lot::{Lot, Pin, Reach};
use crate::making::new_view;
use crate::protocol::Shown;
use crate::refusal::Refusal;
use crate::stream::{Course, course_of};
use crate::transfer::{self, HostPart, Part};
use crate::view::ViewCore;

/// The stream of a call: the one that is named, or the memory's own.
pub(crate) fn course(lot: &Lot, stream: Option<&Bound<'_, PyAny>>) -> Result<Arc<Course>, Refusal> {
    match stream.filter(|stream| !stream.is_none()) {
        Some(stream) => course_of(lot.site(), Some(stream)),
        None => Ok(lot.course()),
    }
}

/// The memory of a buffer or view of ours.
fn ours(object: &Bound<'_, PyAny>) -> Option<Result<(Pin, Face), Refusal>> {
    if let Ok(buffer) = object.cast::<BufferCore>() {
        let buffer = buffer.get();
        return Some(object.py().detach(|| buffer.show()));
    }
    let view = object.cast::<ViewCore>().ok()?.get();
    Some(object.py().detach(|| view.show()))
}

/// Copies all of `source` into memory, from byte `offset` on.
pub(crate) fn copy_from(
    (pin, face): (&Pin, &Face),
    source: &Bound<'_, PyAny>,
    offset: u64,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<(), Refusal> {
    let py = source.py();
    if !face.writable() {
        return Err(Refusal::invalid("the memory may be read alone"));
    }
    let course = course(pin.lot(), stream)?;
    if let Some(other) = ours(source) {
        let (from_pin, from_face) = other?;
        if from_pin.lot().reach() == Reach::Device {
            same_device(from_pin.lot(), pin.lot())?;
            let size = from_face.bytes();
            let to = Part { pin, offset: face.span(offset, size)?, size };
            let from = Part { pin: &from_pin, offset: from_face.span(0, size)?, size };
            return py.detach(|| transfer::between(from, to, &course));
        }
    }
    let bytes = HostBytes::of(source, false)?;
    let (from, size) = (HostPart::at(bytes.start()), bytes.length());
    let offset = face.span(offset, size)?;
    // SAFETY: the object shows that many bytes until `bytes` goes, after the copy is done. Who writes to
    // them from another thread meanwhile gets a mixture of both, as with any copy in Python.
    py.detach(|| unsafe { transfer::write(Part { pin, offset, size }, from, &course) })
}

/// Copies memory into `target`, as much as that holds, from byte `offset` on.
pub(crate) fn copy_to(
    (pin, face): (&Pin, &Face),
    target: &Bound<'_, PyAny>,
    offset: u64,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<(), Refusal> {
    let py = target.py();
    let course = course(pin.lot(), stream)?;
    if let Some(other) = ours(target) {
        let (to_pin, to_face) = other?;
        if to_pin.lot().reach() == Reach::Device {
            same_device(pin.lot(), to_pin.lot())?;
            let size = to_face.bytes();
            let from = Part { pin, offset: face.span(offset, size)?, size };
            let to = Part { pin: &to_pin, offset: to_face.span(0, size)?, size };
            return py.detach(|| transfer::between(from, to, &course));
        }
    }
    let bytes = HostBytes::of(target, true)?;
    let (to, size) = (HostPart::at(bytes.start()), bytes.length());
    let offset = face.span(offset, size)?;
    // SAFETY: as in `copy_from`; the object lets its memory be written.
    py.detach(|| unsafe { transfer::read(Part { pin, offset, size }, to, &course) })
}

fn same_device(from: &Lot, to: &Lot) -> Result<(), Refusal> {
    if Arc::ptr_eq(from.site(), to.site()) {
        return Ok(());
    }
    let (from, to) = (from.site().name(), to.site().name());
    Err(Refusal::invalid(format!(
        "memory of {from} is not copied straight to {to}: copy it to the host first, with to_bytes()"
    )))
}

/// What the memory holds.
pub(crate) fn to_bytes<'py>(
    py: Python<'py>,
    (pin, face): (&Pin, &Face),
    stream: Option<&Bound<'py, PyAny>>,
) -> Result<Bound<'py, PyBytes>, Refusal> {
    let course = course(pin.lot(), stream)?;
    let size = face.bytes();
    let offset = face.span(0, size)?;
    let length = usize::try_from(size).map_err(|error| Refusal::invalid(error.to_string()))?;
    let bytes = PyBytes::new_with(py, length, |bytes| {
        let to = HostPart::at(bytes.as_mut_ptr());
        // SAFETY: the bytes are this call's own until it returns, after the copy is done.
        py.detach(|| unsafe { transfer::read(Part { pin, offset, size }, to, &course) })?;
        Ok(())
    });
    Ok(bytes?)
}

/// What CUDA libraries want to know of the memory.
pub(crate) fn cuda_array_interface<'py>(
    py: Python<'py>,
    (pin, face): (&Pin, &Face),
) -> Result<Bound<'py, PyDict>, Refusal> {
    let lot = pin.lot();
    let typestr = face.dtype().typestr;
    let (DeviceKind::Cuda, Reach::Device, Some(typestr)) =
        (lot.site().kind(), lot.reach(), typestr)
    else {
        // As for any attribute that is not there: libraries ask by hasattr().
        let (name, dtype) = (lot.site().name(), face.dtype().name);
        let said = format!(
            "__cuda_array_interface__ is for memory of CUDA devices, not {dtype} on {name}"
        );
        return Err(PyAttributeError::new_err(said).into());
    };
    let interface = PyDict::new(py);
    interface.set_item("version", 3)?;
    interface.set_item("shape", face.shape_tuple(py)?)?;
    interface.set_item("typestr", typestr)?;
    interface.set_item("data", (face.address(lot).get(), !face.writable()))?;
    interface.set_item("strides", py.None())?;
    // 0 is not allowed there: the legacy default stream is 1.
    interface.set_item("stream", lot.course().handle().0.max(1))?;
    Ok(interface)
}

/// A numpy array over the memory of `object`, for numpy itself: it asks when there is no buffer protocol.
pub(crate) fn array<'py>(
    object: &Bound<'py, PyAny>,
    dtype: Option<&Bound<'py, PyAny>>,
    copy: Option<bool>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let memory = py.import("builtins")?.call_method1("memoryview", (object,))?;
    let words = PyDict::new(py);
    words.set_item("dtype", dtype)?;
    words.set_item("copy", copy.unwrap_or(false))?;
    py.import("numpy")?.call_method("array", (memory,), Some(&words))
}

/// A view of a part of memory.
pub(crate) fn part_of(
    py: Python<'_>,
    (pin, face): (Pin, &Face),
    dtype: Option<&Bound<'_, PyAny>>,
    (shape, offset): (Option<&Bound<'_, PyAny>>, u64),
) -> Result<Py<PyAny>, Refusal> {
    let dtype = dtype.map_or(Ok(face.dtype()), Dtype::of_argument)?;
    let shape = shape.map(shape_of).transpose()?;
    let part = Face::within(face, dtype, shape, offset)?;
    new_view(py, pin, part)
}
