//! Arrays of a pool: empty, of one value, and of what a program has.

use std::sync::Arc;

use forebay::{Bytes, OwnedBlock, Pool, Request};
use pyo3::prelude::*;

use crate::allocation::Allocation;
use crate::array::new_array;
use crate::array_view::ArrayView;
use crate::copies;
use crate::dlpack;
use crate::dtype::Dtype;
use crate::failure::Failure;
use crate::host_side::HostSide;
use crate::live_blocks;
use crate::memory::Memory;
use crate::open_device::{OpenDevice, StreamRef};
use crate::stream::stream_argument;
use crate::tag;
use crate::transfer::{self, MemoryRange};
use crate::value::dict;

/// A pool's memory in the order of a stream: where arrays are made.
pub(crate) struct Maker<'a> {
    pub(crate) device: &'a Arc<OpenDevice>,
    pub(crate) pool: Pool,
    pub(crate) stream_ref: Arc<StreamRef>,
    /// A tag, if the call names one.
    pub(crate) tag: Option<&'a str>,
}

impl<'a> Maker<'a> {
    /// Of a pool, in the order of the stream that an argument names.
    pub(crate) fn new(
        device: &'a Arc<OpenDevice>,
        pool: Pool,
        stream: Option<&Bound<'_, PyAny>>,
        tag: Option<&'a str>,
    ) -> Result<Self, Failure> {
        Ok(Self { device, pool, stream_ref: stream_argument(device, stream)?, tag })
    }

    /// New memory for these elements.
    pub(crate) fn allocation(
        &self,
        py: Python<'_>,
        elements: &ArrayView,
    ) -> Result<Arc<Allocation>, Failure> {
        let origin = live_blocks::origin(py);
        tag::request(py, self.tag, || {
            let request = Request::new(Bytes::new(elements.bytes()), self.stream_ref.handle());
            let block = OwnedBlock::new(&self.pool, request)?;
            Ok(Allocation::block(self.device, &self.stream_ref, block, origin))
        })
    }

    /// A new array of these elements, whatever their values.
    pub(crate) fn empty<'py>(
        &self,
        py: Python<'py>,
        elements: ArrayView,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let allocation = self.allocation(py, &elements)?;
        let pin = py.detach(|| allocation.pin())?;
        Ok(new_array(py, Memory::part(pin, elements))?.into_bound(py))
    }

    /// A new array of one value.
    pub(crate) fn full<'py>(
        &self,
        py: Python<'py>,
        elements: ArrayView,
        pattern: &[u8],
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let made = self.empty(py, elements)?;
        let (pin, array) = memory(&made)?.pinned(py)?;
        let range = MemoryRange::of(&pin, &array);
        py.detach(|| transfer::fill(range, pattern, &self.stream_ref, false))?;
        Ok(made)
    }

    /// A new array with a copy of `source`, converted to `dtype` if that is another.
    pub(crate) fn copy<'py>(
        &self,
        source: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let (py, dtype) = (source.py(), dtype.map(Dtype::of_argument).transpose()?);
        let source = match elements(source).ok().flatten() {
            Some(found) if dtype.is_none_or(|dtype| dtype == found.dtype()) => source.clone(),
            _ => contiguous_array(source, dtype)?,
        };
        let found = elements(&source)?.ok_or_else(|| {
            let kind = source.get_type();
            Failure::wrong_type(format!("{kind} cannot be made an array"))
        })?;
        let made = self.empty(py, found.anew(found.dtype())?)?;
        copies::copy_to_array(memory(&made)?, &source, None, true)?;
        Ok(made)
    }

    /// An array of `source`: itself or one that shares its memory if that is on this device and of `dtype`, else a copy.
    pub(crate) fn shared<'py>(
        &self,
        source: &Bound<'py, PyAny>,
        dtype: Option<&Bound<'py, PyAny>>,
    ) -> Result<Bound<'py, PyAny>, Failure> {
        let py = source.py();
        let wanted = dtype.map(Dtype::of_argument).transpose()?;
        let fits = |array: &ArrayView| wanted.is_none_or(|dtype| dtype == array.dtype());
        if let Ok(own) = source.cast::<Memory>() {
            let own = own.get();
            if Arc::ptr_eq(own.open_device(), self.device) && !own.is_whole() && fits(&own.array())
            {
                return Ok(source.clone());
            }
        } else if source.hasattr("__dlpack__")?
            && let Ok((pin, array)) = dlpack::import(source)
            && Arc::ptr_eq(pin.allocation().device(), self.device)
            && array.writable()
            && fits(&array)
        {
            return Ok(new_array(py, Memory::part(pin, array))?.into_bound(py));
        }
        self.copy(source, dtype)
    }
}

/// The type of a value, as numpy has it.
pub(crate) fn dtype_of_value(value: &Bound<'_, PyAny>) -> Result<&'static Dtype, Failure> {
    if let Ok(dtype) = value.getattr("dtype") {
        return Dtype::of_argument(&dtype);
    }
    Dtype::of_argument(value.get_type().as_any())
}

/// What makes a numpy array of anything, contiguous and of a type.
fn contiguous_array<'py>(
    source: &Bound<'py, PyAny>,
    dtype: Option<&'static Dtype>,
) -> Result<Bound<'py, PyAny>, Failure> {
    let py = source.py();
    let dtype = dtype.map(|dtype| dtype.numpy_or_refuse(py)).transpose()?;
    // Not `ascontiguousarray`, which makes one dimension of none.
    let words = dict!(py, { "dtype": dtype, "order": "C", });
    let array = py.import("numpy")?.call_method("asarray", (source,), Some(&words))?;
    let own = array.getattr("dtype")?;
    if own.getattr("isnative")?.extract()? {
        return Ok(array);
    }
    Ok(array.call_method1("astype", (own.call_method1("newbyteorder", ("=",))?,))?)
}

/// The elements of what can be copied as it is; `None` for all else, such as a list or an array that is not contiguous.
fn elements(source: &Bound<'_, PyAny>) -> Result<Option<ArrayView>, Failure> {
    if let Ok(memory) = source.cast::<Memory>() {
        return Ok(Some(memory.get().array()));
    }
    if dlpack::is_on_a_device(source) {
        return Ok(Some(dlpack::import(source)?.1));
    }
    match HostSide::of(source, false) {
        Ok(host) => host.elements(source).map(Some),
        Err(_) => Ok(None),
    }
}

/// The memory of an array.
pub(crate) fn memory<'a>(array: &'a Bound<'_, PyAny>) -> Result<&'a Memory, Failure> {
    Ok(array.cast::<Memory>().map_err(PyErr::from)?.get())
}

/// An ``Array`` that shares the memory of an object with DLPack: a tensor on the host or on a GPU, contiguous but for the
/// first dimension.
#[pyfunction]
pub(crate) fn from_dlpack(object: &Bound<'_, PyAny>) -> Result<Py<PyAny>, Failure> {
    let (pin, array) = dlpack::import(object)?;
    new_array(object.py(), Memory::part(pin, array))
}
