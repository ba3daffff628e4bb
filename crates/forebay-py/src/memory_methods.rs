//! What Python calls on a `Buffer` or a `View`: parts of it, copies, transfers, and exports to other libraries.

use std::sync::Arc;

use forebay::hal::DeviceKind;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::allocation::{Allocation, MemorySpace, Pin};
use crate::array_view::{ArrayView, shape_argument};
use crate::dlpack::{self, ExportRequest};
use crate::dtype::Dtype;
use crate::engine::{Choices, PyTransfer};
use crate::failure::Failure;
use crate::ffi::HostBytes;
use crate::gil::DropDetached;
use crate::host_side::HostSide;
use crate::memory::{Memory, stream_or_own};
use crate::open_device::PyDevice;
use crate::quantity::integer;
use crate::stream::priority_argument;
use crate::transfer::{self, Direction, HostPointer, MemoryRange};
use crate::value::dict;
use crate::view::new_view;

#[pymethods]
impl Memory {
    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.bytes()
    }

    /// Its first address as a number; 0 for no bytes. Valid until the memory is freed.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<u64, Failure> {
        Ok(self.first_address(py)?.get())
    }

    /// Its device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(self.allocation().device()))
    }

    /// A view of a part of it: elements of ``dtype`` (a name, or numpy's) in ``shape``, from byte ``offset``
    /// on. Without a shape all that is left, in one dimension.
    #[pyo3(signature = (dtype = None, shape = None, offset = 0))]
    #[pyo3(name = "view")]
    fn part(
        &self,
        py: Python<'_>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
    ) -> Result<Py<PyAny>, Failure> {
        let (pin, array) = self.pinned(py)?;
        let dtype = dtype.map_or(Ok(array.dtype()), Dtype::of_argument)?;
        let shape = shape.map(shape_argument).transpose()?;
        new_view(py, pin, ArrayView::within(&array, dtype, shape, offset)?)
    }

    /// Copy all of ``source`` into it, from byte ``offset`` on, and wait. The source is anything with the buffer protocol,
    /// or a buffer or view of any device; that of another goes through the host.
    #[pyo3(signature = (source, offset = 0, stream = None))]
    fn copy_from(
        &self,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        self.copy(Direction::Up, source, offset, stream)
    }

    /// Copy from byte ``offset`` on into all of ``target``, and wait. The target is anything with the buffer protocol that
    /// can be written, or a buffer or view of any device; to that of another it goes through the host.
    #[pyo3(signature = (target, offset = 0, stream = None))]
    fn copy_to(
        &self,
        target: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        self.copy(Direction::Down, target, offset, stream)
    }

    /// Copy all of ``source`` into it with several threads, from byte ``offset`` on, after the work on ``stream`` (by default
    /// its own), and wait. The source is host memory: anything with the buffer protocol, such as a numpy array, or with
    /// DLPack, such as a tensor of PyTorch's. ``priority`` is "low", "normal" or "high".
    #[pyo3(signature = (source, offset = 0, *, stream = None, priority = "normal"))]
    fn upload(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<(), Failure> {
        Self::upload_async(slf, source, offset, stream, priority)?.finish(slf.py()).map(drop)
    }

    /// As ``upload()``, and does not wait: returns a ``Transfer``.
    #[pyo3(signature = (source, offset = 0, *, stream = None, priority = "normal"))]
    fn upload_async(
        slf: &Bound<'_, Self>,
        source: &Bound<'_, PyAny>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<PyTransfer, Failure> {
        let result = slf.clone().into_any().unbind();
        slf.get().transfer(Direction::Up, source, offset, (stream, priority), result)
    }

    /// Copy from byte ``offset`` on to all of ``into`` with several threads, after the work on ``stream`` (by default its
    /// own), wait, and return ``into``: host memory as for ``upload()`` that can be written, by default a new numpy array of
    /// the same elements.
    #[pyo3(signature = (into = None, offset = 0, *, stream = None, priority = "normal"))]
    fn download(
        slf: &Bound<'_, Self>,
        into: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<Py<PyAny>, Failure> {
        Self::download_async(slf, into, offset, stream, priority)?.finish(slf.py())
    }

    /// As ``download()``, and does not wait: returns a ``Transfer``.
    #[pyo3(signature = (into = None, offset = 0, *, stream = None, priority = "normal"))]
    fn download_async(
        slf: &Bound<'_, Self>,
        into: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = integer::<u64>)] offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
        priority: &str,
    ) -> Result<PyTransfer, Failure> {
        let into = match into.filter(|into| !into.is_none()) {
            Some(into) => into.clone(),
            None => empty_array(slf.py(), &slf.get().array())?,
        };
        let result = into.clone().unbind();
        slf.get().transfer(Direction::Down, &into, offset, (stream, priority), result)
    }

    /// Its contents as bytes.
    #[pyo3(signature = (stream = None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        self.with_pin(py, |pin, array| {
            let stream_ref = stream_or_own(pin.allocation(), stream)?;
            let size = array.bytes();
            let offset = array.span(0, size)?;
            let length = usize::try_from(size)?;
            let bytes = PyBytes::new_with(py, length, |bytes| {
                let (from, to) =
                    (MemoryRange { pin, offset, size }, HostPointer::at(bytes.as_mut_ptr()));
                // SAFETY: the bytes are this call's own until it returns, after the copy is done.
                py.detach(|| unsafe {
                    transfer::copy_host(Direction::Down, from, to, &stream_ref)
                })?;
                Ok(())
            });
            Ok(bytes?)
        })
    }

    /// A DLPack capsule of it, with its elements and shape; of a buffer as bytes. The memory is kept until the
    /// consumer releases the tensor.
    ///
    /// ``stream`` waits for the buffer's. When the memory is freed, that waits for ``stream`` too where it is
    /// the default stream, a ``forebay.Stream``, or was adopted. ``Device.adopt()`` a stream first that may
    /// still use the tensor when it is released: any other is not waited for.
    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let (pin, array) = self.pinned(py)?;
        let request = ExportRequest { stream, max_version, device: dl_device, copy };
        dlpack::export(py, pin, &array, &request)
    }

    /// The device type and number, as DLPack defines them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        dlpack::dlpack_device(self.allocation())
    }

    /// The CUDA array interface of it, with its elements and shape; of a buffer as bytes. Only for memory of
    /// CUDA devices.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyDict>, Failure> {
        self.with_pin(py, |pin, array| cuda_array_interface(py, pin.allocation(), array))
    }

    /// A numpy array of it. numpy calls this where an object has no buffer protocol.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let memory = py.import("builtins")?.call_method1("memoryview", (slf,))?;
        let words = dict!(py, {
            "dtype": dtype,
            "copy": copy.unwrap_or(false),
        });
        py.import("numpy")?.call_method("array", (memory,), Some(&words))
    }
}

impl Memory {
    /// Copies between it, from byte `offset` on, and all of a Python object, and waits.
    fn copy(
        &self,
        direction: Direction,
        object: &Bound<'_, PyAny>,
        offset: u64,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        let py = object.py();
        self.with_pin(py, |pin, array| {
            if direction == Direction::Up && !array.writable() {
                return Err(Failure::invalid("the memory is read-only"));
            }
            let stream_ref = stream_or_own(pin.allocation(), stream)?;
            if let Some((other_pin, other)) = device_memory(object)? {
                let size = other.bytes();
                let far = MemoryRange { pin, offset: array.span(offset, size)?, size };
                let near = MemoryRange { pin: &other_pin, offset: other.span(0, size)?, size };
                if Arc::ptr_eq(other_pin.allocation().device(), pin.allocation().device()) {
                    let (to, from) = direction.ends(far, near);
                    return py.detach(|| transfer::copy_between(from, to, &stream_ref));
                }
                let other_stream = other_pin.allocation().stream_ref();
                let (to, from) = direction.ends((far, &*stream_ref), (near, &*other_stream));
                return py.detach(|| transfer::copy_across(from, to));
            }
            let bytes = HostBytes::of(object, direction == Direction::Down)?;
            let (host, size) = (HostPointer::at(bytes.start()), bytes.length());
            let range = MemoryRange { pin, offset: array.span(offset, size)?, size };
            // SAFETY: the object exports that many bytes, to be written where they are, until `bytes` is dropped, after the
            // copy is done. A thread that uses them meanwhile gets a mixture of both, as with any copy in Python.
            py.detach(|| unsafe { transfer::copy_host(direction, range, host, &stream_ref) })
        })
    }

    /// Begins a transfer between it, from byte `offset` on, and all of a Python object.
    fn transfer(
        &self,
        direction: Direction,
        object: &Bound<'_, PyAny>,
        offset: u64,
        (stream, priority): (Option<&Bound<'_, PyAny>>, &str),
        result: Py<PyAny>,
    ) -> Result<PyTransfer, Failure> {
        let py = object.py();
        let priority = priority_argument(priority)?;
        let (pin, array) = self.pinned(py)?;
        if direction == Direction::Up && !array.writable() {
            return Err(Failure::invalid("the memory is read-only"));
        }
        let stream_ref = stream_or_own(pin.allocation(), stream)?;
        let host = HostSide::of(object, direction == Direction::Down)?;
        let (pin, choices) = (DropDetached::new(pin), Choices { stream_ref, priority });
        PyTransfer::begin(py, direction, (pin, &array, offset), host, choices, result)
    }
}

/// A new numpy array of the same elements.
fn empty_array<'py>(py: Python<'py>, array: &ArrayView) -> Result<Bound<'py, PyAny>, Failure> {
    let name = array.dtype().name;
    if array.dtype().typestr.is_none() {
        return Err(Failure::invalid(format!(
            "numpy has no {name}: pass memory to download into, such as torch.empty(shape, dtype=torch.{name})"
        )));
    }
    Ok(py.import("numpy")?.call_method1("empty", (array.shape_tuple(py)?, name))?)
}

/// The memory of a buffer or view that the host cannot reach; `None` for any other object. Memory that the
/// host can reach is copied through the buffer protocol.
fn device_memory(object: &Bound<'_, PyAny>) -> Result<Option<(Pin, ArrayView)>, Failure> {
    let Ok(memory) = object.cast::<Memory>() else { return Ok(None) };
    let (pin, array) = memory.get().pinned(object.py())?;
    Ok((pin.allocation().space() == MemorySpace::Device).then_some((pin, array)))
}

/// The `__cuda_array_interface__` of an array.
fn cuda_array_interface<'py>(
    py: Python<'py>,
    allocation: &Allocation,
    array: &ArrayView,
) -> Result<Bound<'py, PyDict>, Failure> {
    let typestr = array.dtype().typestr;
    let (DeviceKind::Cuda, MemorySpace::Device, Some(typestr)) =
        (allocation.device().kind(), allocation.space(), typestr)
    else {
        // As for any attribute that is not there: libraries ask by hasattr().
        let (name, dtype) = (allocation.device().name(), array.dtype().name);
        let said = format!(
            "__cuda_array_interface__ is for memory of CUDA devices, not {dtype} on {name}"
        );
        return Err(PyAttributeError::new_err(said).into());
    };
    let interface = dict!(py, {
        "version": 3,
        "shape": array.shape_tuple(py)?,
        "typestr": typestr,
        "data": (array.address(allocation).get(), !array.writable()),
        "strides": py.None(),
    });
    // The interface does not allow 0: the legacy default stream is 1.
    interface.set_item("stream", allocation.stream_ref().handle().0.max(1))?;
    Ok(interface)
}
