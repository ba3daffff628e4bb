//! Buffers and views: memory in Python's hands.

use std::sync::{Arc, Mutex};

use forebay::DeviceKind;
use pyo3::exceptions::{PyAttributeError, PyTypeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyTuple, PyType};

use crate::device::PyDevice;
use crate::dlpack::{self, Wish};
use crate::dtype::Dtype;
use crate::face::{Face, shape_of};
use crate::ffi::HostBytes;
use crate::lot::{Lot, Pin, Reach};
use crate::protocol::{Shown, showing_type};
use crate::refusal::Refusal;
use crate::site::lock;
use crate::stream::{Course, PyStream, course_of};
use crate::transfer::{self, HostPart, Part};

static BUFFER: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static VIEW: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The type of buffers.
pub(crate) fn buffer_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = BUFFER.get_or_try_init(py, || showing_type::<BufferCore>(py, c"forebay.Buffer"));
    Ok(made?.bind(py))
}

/// The type of views.
pub(crate) fn view_type(py: Python<'_>) -> PyResult<&Bound<'_, PyType>> {
    let made = VIEW.get_or_try_init(py, || showing_type::<ViewCore>(py, c"forebay.View"));
    Ok(made?.bind(py))
}

/// A buffer over `lot`.
pub(crate) fn new_buffer(py: Python<'_>, lot: Arc<Lot>) -> Result<Py<PyAny>, Refusal> {
    let parcel = Bound::new(py, Parcel::of(Cargo::Buffer(lot)))?;
    Ok(buffer_type(py)?.call1((parcel,))?.unbind())
}

/// A view of memory in use.
pub(crate) fn new_view(py: Python<'_>, pin: Pin, face: Face) -> Result<Py<PyAny>, Refusal> {
    let parcel = Bound::new(py, Parcel::of(Cargo::View(pin, face)))?;
    Ok(view_type(py)?.call1((parcel,))?.unbind())
}

/// What a new object is made of, on its way through Python's own call of the type. Of no use to others.
#[pyclass(frozen, module = "forebay")]
struct Parcel(Mutex<Option<Cargo>>);

enum Cargo {
    Buffer(Arc<Lot>),
    View(Pin, Face),
}

impl Parcel {
    fn of(cargo: Cargo) -> Self {
        Self(Mutex::new(Some(cargo)))
    }

    fn unpack(parcel: Option<&Bound<'_, PyAny>>) -> Option<Cargo> {
        let parcel = parcel?.cast::<Self>().ok()?;
        lock(&parcel.get().0).take()
    }
}

/// Memory of a device: made by ``Pool.allocate()``, ``Arena.allocate()`` and ``Device.pinned()``.
///
/// It goes back to where it came from by ``free()``, at the end of its ``with``, or when the last reference
/// to it and to its views is gone. Memory that the host can reach has the buffer protocol, so that
/// ``memoryview(buffer)`` and ``numpy.asarray(buffer)`` share it.
#[pyclass(name = "_Buffer", module = "forebay", frozen, subclass, weakref)]
pub(crate) struct BufferCore {
    lot: Arc<Lot>,
}

/// A part of a buffer as elements of one type, in a shape. Its memory is kept as long as it lives.
///
/// Made by ``Buffer.view()`` and ``forebay.from_dlpack()``.
#[pyclass(name = "_View", module = "forebay", frozen, subclass, weakref)]
pub(crate) struct ViewCore {
    pin: Pin,
    face: Face,
}

impl Shown for BufferCore {
    fn of<'a>(object: &'a Bound<'_, Self>) -> &'a Self {
        object.get()
    }

    fn show(&self) -> Result<(Pin, Face), Refusal> {
        Ok((self.lot.pin()?, Face::whole(&self.lot)))
    }
}

impl Shown for ViewCore {
    fn of<'a>(object: &'a Bound<'_, Self>) -> &'a Self {
        object.get()
    }

    fn show(&self) -> Result<(Pin, Face), Refusal> {
        Ok((self.pin.lot().pin()?, self.face.clone()))
    }
}

/// The stream of a call: the one that is named, or the memory's own.
fn course(lot: &Lot, stream: Option<&Bound<'_, PyAny>>) -> Result<Arc<Course>, Refusal> {
    match stream.filter(|stream| !stream.is_none()) {
        Some(stream) => course_of(lot.site(), Some(stream)),
        None => Ok(Arc::clone(lot.course())),
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
fn copy_from(
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
fn copy_to(
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

fn to_bytes<'py>(
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

fn cuda_array_interface<'py>(
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
fn array<'py>(
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

#[pymethods]
impl BufferCore {
    #[new]
    #[pyo3(signature = (parcel = None))]
    fn new(parcel: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        match Parcel::unpack(parcel) {
            Some(Cargo::Buffer(lot)) => Ok(Self { lot }),
            _ => Err(PyTypeError::new_err(
                "buffers are made by Pool.allocate(), Arena.allocate() and Device.pinned()",
            )),
        }
    }

    /// How many bytes: what was asked for.
    #[getter]
    fn size(&self) -> u64 {
        self.lot.size().get()
    }

    /// The same, by the name that arrays have for it.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.lot.size().get()
    }

    /// Where it begins, as a number; 0 for a buffer of no bytes. Good until it is freed.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<u64, Refusal> {
        py.detach(|| Ok(self.lot.pin()?.lot().address().get()))
    }

    /// The stream in whose order it was allocated and is freed.
    #[getter]
    fn stream(&self) -> PyStream {
        PyStream::new(Arc::clone(self.lot.course()))
    }

    /// The device it is of.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(self.lot.site()))
    }

    /// Whether it was freed.
    #[getter]
    fn freed(&self) -> bool {
        self.lot.is_freed()
    }

    /// Give the memory back, in the order of ``stream``; of its own unless said. What comes next on that
    /// stream may use it. Refused while views of it live, and a second time.
    #[pyo3(signature = (stream = None))]
    fn free(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> Result<(), Refusal> {
        let course = course(&self.lot, stream)?;
        py.detach(|| self.lot.free(&course))
    }

    /// The same as ``free()``, but that closing twice does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Refusal> {
        if self.lot.is_freed() { Ok(()) } else { self.free(py, None) }
    }

    /// A part of it as elements: ``dtype`` by name or as numpy's, in ``shape``, from byte ``offset`` on.
    /// Without a shape all that is left, in a row.
    #[pyo3(signature = (dtype = None, shape = None, offset = 0))]
    fn view(
        &self,
        py: Python<'_>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        offset: u64,
    ) -> Result<Py<PyAny>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        part_of(py, (pin, &face), dtype, (shape, offset))
    }

    /// Copy all of ``source`` into it, from byte ``offset`` on, and wait for that. The source is anything
    /// with the buffer protocol, or a buffer or view of the same device.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        let (pin, face) = source.py().detach(|| self.show())?;
        copy_from((&pin, &face), source, offset, stream)
    }

    /// Fill all of ``target`` with what is here from byte ``offset`` on, and wait for that. The target is
    /// anything with the buffer protocol that can be written, or a buffer or view of the same device.
    #[pyo3(signature = (target, offset = 0, stream = None))]
    fn copy_to(
        &self,
        target: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        let (pin, face) = target.py().detach(|| self.show())?;
        copy_to((&pin, &face), target, offset, stream)
    }

    /// What it holds, as bytes.
    #[pyo3(signature = (stream = None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyBytes>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        to_bytes(py, (&pin, &face), stream)
    }

    /// Fill it with a byte, from ``offset`` on, ``size`` bytes or all that is left. Without ``wait`` the
    /// call returns before it is done, and the device keeps the order.
    #[pyo3(signature = (value, offset = 0, size = None, stream = None, wait = true))]
    fn fill(
        &self,
        py: Python<'_>,
        value: u8,
        offset: u64,
        size: Option<u64>,
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        let size = size.unwrap_or(face.bytes().saturating_sub(offset));
        let offset = face.span(offset, size)?;
        let course = course(&self.lot, stream)?;
        py.detach(|| transfer::fill(Part { pin: &pin, offset, size }, value, &course, wait))
    }

    /// A DLPack capsule of it, as bytes. The memory is kept until whoever takes the tensor lets it go.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        dlpack::export(py, pin, &face, &Wish { stream, max_version, device: dl_device, copy })
    }

    /// The kind and number of its device, as DLPack has them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Refusal> {
        dlpack::device_of(&self.lot)
    }

    /// Its memory as CUDA libraries want it, as bytes. For memory of CUDA devices alone.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyDict>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        cuda_array_interface(py, (&pin, &face))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, copy)
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.lot.size().get()).unwrap_or(usize::MAX)
    }

    /// A buffer is true, however small it is.
    fn __bool__(&self) -> bool {
        true
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Refusal> {
        self.close(py)
    }

    fn __repr__(&self) -> String {
        let (size, name) = (self.lot.size().get(), self.lot.site().name());
        let freed = if self.lot.is_freed() { ", freed" } else { "" };
        format!("<forebay.Buffer of {size} B on {name}{freed}>")
    }
}

/// A view of a part of memory.
fn part_of(
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

#[pymethods]
impl ViewCore {
    #[new]
    #[pyo3(signature = (parcel = None))]
    fn new(parcel: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        match Parcel::unpack(parcel) {
            Some(Cargo::View(pin, face)) => Ok(Self { pin, face }),
            _ => Err(PyTypeError::new_err(
                "views are made by Buffer.view() and forebay.from_dlpack()",
            )),
        }
    }

    /// The type of its elements, by name.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.face.dtype().name
    }

    /// How many elements in each direction.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        self.face.shape_tuple(py)
    }

    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.face.bytes()
    }

    /// Whether it may be read alone.
    #[getter]
    fn readonly(&self) -> bool {
        !self.face.writable()
    }

    /// Where it begins, as a number.
    #[getter]
    fn address(&self) -> u64 {
        self.face.address(self.pin.lot()).get()
    }

    /// The device it is of.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(self.pin.lot().site()))
    }

    /// A part of it, as ``Buffer.view()`` makes them.
    #[pyo3(signature = (dtype = None, shape = None, offset = 0))]
    fn view(
        &self,
        py: Python<'_>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        offset: u64,
    ) -> Result<Py<PyAny>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        part_of(py, (pin, &face), dtype, (shape, offset))
    }

    /// As ``Buffer.copy_from()``.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        copy_from((&self.pin, &self.face), source, offset, stream)
    }

    /// As ``Buffer.copy_to()``.
    #[pyo3(signature = (target, offset = 0, stream = None))]
    fn copy_to(
        &self,
        target: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Refusal> {
        copy_to((&self.pin, &self.face), target, offset, stream)
    }

    /// What it holds, as bytes.
    #[pyo3(signature = (stream = None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyBytes>, Refusal> {
        to_bytes(py, (&self.pin, &self.face), stream)
    }

    /// As of a buffer, with its elements and shape.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Refusal> {
        let (pin, face) = py.detach(|| self.show())?;
        dlpack::export(py, pin, &face, &Wish { stream, max_version, device: dl_device, copy })
    }

    /// The kind and number of its device, as DLPack has them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Refusal> {
        dlpack::device_of(self.pin.lot())
    }

    /// As of a buffer, with its elements and shape.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyDict>, Refusal> {
        cuda_array_interface(py, (&self.pin, &self.face))
    }

    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        array(slf.as_any(), dtype, copy)
    }

    fn __repr__(&self) -> String {
        let (name, shape) = (self.face.dtype().name, self.face.shape());
        format!("<forebay.View of {name} {shape:?} on {}>", self.pin.lot().site().name())
    }
}

/// The memory of an object that speaks DLPack, shared, as a ``View``: a tensor in one piece, on the host or
/// on a GPU.
#[pyfunction]
pub(crate) fn from_dlpack(object: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Refusal> {
    let (pin, face) = dlpack::import(object)?;
    new_view(object.py(), pin, face)
}
