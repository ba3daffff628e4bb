//! numpy's arrays of our memory: shared where the host can reach it, else copied.

use pyo3::prelude::*;

use crate::array::new_array;
use crate::array_view::ArrayView;
use crate::copies;
use crate::dtype::Dtype;
use crate::failure::Failure;
use crate::host_side::HostSide;
use crate::memory::{Memory, Pinned};
use crate::transfer::Direction;

/// A numpy array that shares memory which the host can reach.
pub(crate) fn shared(py: Python<'_>, (pin, array): Pinned) -> Result<Bound<'_, PyAny>, Failure> {
    let (numpy, dtype) = (py.import("numpy")?, array.dtype());
    let memory = py.import("builtins")?.getattr("memoryview")?;
    if dtype.format.is_some() {
        let view = new_array(py, Memory::shared(pin, array))?;
        return Ok(numpy.call_method1("asarray", (memory.call1((view,))?,))?);
    }
    // The buffer protocol has no such elements, so they go as integers of their size.
    let own = dtype.numpy_or_refuse(py)?;
    let plain = array.reinterpreted(Dtype::plain(dtype.size()))?;
    let view = new_array(py, Memory::shared(pin, plain))?;
    let made = numpy.call_method1("asarray", (memory.call1((view,))?,))?;
    Ok(made.call_method1("view", (own,))?)
}

/// A new numpy array with a copy of pinned memory.
pub(crate) fn copied<'py>(py: Python<'py>, pinned: Pinned) -> Result<Bound<'py, PyAny>, Failure> {
    let made = empty(py, &pinned.1)?;
    copies::host_copy(py, Direction::Down, pinned, HostSide::of(&made, true)?, None)?;
    Ok(made)
}

/// A new numpy array of the same elements.
pub(crate) fn empty<'py>(py: Python<'py>, array: &ArrayView) -> Result<Bound<'py, PyAny>, Failure> {
    let dtype = array.dtype().numpy_or_refuse(py)?;
    Ok(py.import("numpy")?.call_method1("empty", (array.shape_tuple(py)?, dtype))?)
}

/// What a download goes into: what the program gives, or a new numpy array.
pub(crate) fn target<'py>(
    py: Python<'py>,
    into: Option<&Bound<'py, PyAny>>,
    array: &ArrayView,
) -> Result<Bound<'py, PyAny>, Failure> {
    match into.filter(|into| !into.is_none()) {
        Some(into) => Ok(into.clone()),
        None => empty(py, array),
    }
}
