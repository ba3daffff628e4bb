//! What Python calls on any memory: its bytes, exports to other libraries, and when it is let go.

use std::sync::Arc;

use forebay::hal::DeviceKind;
use pyo3::exceptions::{PyAttributeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::allocation::{Allocation, MemorySpace};
use crate::array_view::ArrayView;
use crate::dlpack::{self, ExportRequest};
use crate::failure::{Failure, leave};
use crate::memory::{Memory, Use, stream_or_own};
use crate::numpy;
use crate::open_device::PyDevice;
use crate::transfer::{self, Direction, HostPointer, MemoryRange};
use crate::value::dict;

#[pymethods]
impl Memory {
    /// How many bytes.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.array().bytes()
    }

    /// Its first address as a number; 0 for no bytes. Valid until the memory is freed.
    #[getter]
    fn address(&self, py: Python<'_>) -> Result<u64, Failure> {
        Ok(self.first_address(py)?.get())
    }

    /// Its device.
    #[getter]
    fn device(&self) -> PyDevice {
        PyDevice::new(Arc::clone(self.open_device()))
    }

    /// Whether it was freed.
    #[getter]
    fn freed(&self) -> bool {
        self.is_gone()
    }

    /// Free the memory in the order of ``stream``, by default its own: later work of that stream may reuse it.
    /// Raises while anything else uses it, such as an array, a memoryview or a transfer, and the second time.
    #[pyo3(signature = (stream = None))]
    #[pyo3(name = "free")]
    fn free_now(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> Result<(), Failure> {
        self.free(py, stream)
    }

    /// Free the memory as ``free()`` does. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> Result<(), Failure> {
        if self.is_gone() { Ok(()) } else { self.free(py, None) }
    }

    fn __enter__<'a, 'py>(slf: &'a Bound<'py, Self>) -> Result<&'a Bound<'py, Self>, Failure> {
        if slf.get().is_gone() {
            return Err(Failure::closed("the memory was freed before this with"));
        }
        Ok(slf)
    }

    /// The end of a ``with``: the memory is freed, or goes with the last view of it.
    #[pyo3(signature = (*error))]
    fn __exit__(&self, error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        leave(error, self.leave(error.py()))
    }

    /// Its contents as bytes.
    #[pyo3(signature = (stream = None))]
    fn to_bytes<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyBytes>, Failure> {
        let (pin, array) = self.pinned_for(py, Use::Read)?;
        self.settle(py)?;
        let stream_ref = stream_or_own(pin.allocation(), stream)?;
        let length = usize::try_from(array.bytes())?;
        let bytes = PyBytes::new_with(py, length, |bytes| {
            let (from, to) = (MemoryRange::of(&pin, &array), HostPointer::at(bytes.as_mut_ptr()));
            // SAFETY: the bytes are this call's own until it returns, after the copy is done.
            py.detach(|| unsafe { transfer::copy_host(Direction::Down, from, to, &stream_ref) })?;
            Ok(())
        });
        Ok(bytes?)
    }

    /// A DLPack capsule of it, with its elements and shape; of a buffer as bytes. The memory is kept until the
    /// consumer releases the tensor.
    ///
    /// ``stream`` waits for the memory's. When the memory is freed, that waits for ``stream`` too where it is
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
        let (pin, array) = self.pinned_for_device(py)?;
        self.settle(py)?;
        let request = ExportRequest { stream, max_version, device: dl_device, copy };
        dlpack::export(py, pin, &array, &request)
    }

    /// The device type and number, as DLPack defines them.
    fn __dlpack_device__(&self) -> Result<(i32, i32), Failure> {
        match self.as_unified() {
            Some(_) => dlpack::device_of(self.open_device()),
            None => {
                let allocation = self.allocation()?;
                dlpack::dlpack_device(&allocation)
            }
        }
    }

    /// The CUDA array interface of it, with its elements and shape; of a buffer as bytes. Only for memory of
    /// CUDA devices that does not move.
    #[getter]
    fn __cuda_array_interface__<'py>(
        &self,
        py: Python<'py>,
    ) -> Result<Bound<'py, PyDict>, Failure> {
        if self.as_unified().is_some() {
            let said = "__cuda_array_interface__ is for memory that stays where it is: on_device() is an array of it";
            return Err(PyAttributeError::new_err(said).into());
        }
        let (pin, array) = self.pinned(py)?;
        cuda_array_interface(py, pin.allocation(), &array)
    }

    /// A numpy array of it, which shares the memory where the host can reach it. Of other memory it is a copy, read-only
    /// unless one is asked for.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        &self,
        py: Python<'py>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let pinned = self.pinned_for(py, Use::Read)?;
        self.settle(py)?;
        let is_shared = pinned.0.allocation().space() != MemorySpace::Device;
        if !is_shared && copy == Some(false) {
            let name = self.open_device().name();
            let said = format!(
                "the host cannot reach memory of {name} without a copy: pass copy=True or None"
            );
            return Err(PyValueError::new_err(said).into());
        }
        if is_shared {
            let array = numpy::shared(py, pinned)?;
            return Ok(match dtype {
                Some(dtype) => {
                    let wanted = py.import("numpy")?.call_method1("dtype", (dtype,))?;
                    if copy == Some(false) && !array.getattr("dtype")?.eq(wanted)? {
                        let said = "another dtype needs a copy: pass copy=True or None";
                        return Err(PyValueError::new_err(said).into());
                    }
                    let words = dict!(py, { "copy": copy == Some(true), });
                    array.call_method("astype", (dtype,), Some(&words))?
                }
                None if copy == Some(true) => array.call_method0("copy")?,
                None => array,
            });
        }
        let array = numpy::copied(py, pinned)?;
        let array = dtype.map_or(Ok(array.clone()), |dtype| {
            array.call_method("astype", (dtype,), Some(&dict!(py, { "copy": false, })))
        })?;
        if copy != Some(true) {
            // What is written there would be lost.
            array.call_method("setflags", (), Some(&dict!(py, { "write": false, })))?;
        }
        Ok(array)
    }
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
    let strides: Vec<u64> =
        array.strides().iter().map(|stride| stride.saturating_mul(array.dtype().size())).collect();
    let interface = dict!(py, {
        "version": 3,
        "shape": array.shape_tuple(py)?,
        "typestr": typestr,
        "data": (array.address(allocation).get(), !array.writable()),
        "strides": array.contiguous().is_err().then(|| PyTuple::new(py, strides)).transpose()?,
    });
    // The interface does not allow 0: the legacy default stream is 1.
    interface.set_item("stream", allocation.stream_ref().handle().0.max(1))?;
    Ok(interface)
}
