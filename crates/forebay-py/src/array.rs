//! `forebay.Array`: elements in a part of an allocation, or of a unified buffer. See `array_methods` for what it can do.

use pyo3::prelude::*;

use crate::failure::Failure;
use crate::memory::Memory;
use crate::protocol::{BufferType, Family};

/// Elements of one type in a shape, in memory of a device, in pinned memory, or on both sides.
///
/// Made by ``forebay.empty()``, ``zeros()``, ``full()``, ``array()`` and ``asarray()``, and the same of a ``Pool``; by
/// ``PinnedPool.empty()``, ``Buffer.view()`` and ``from_dlpack()``. It keeps its memory, which is freed with the last array
/// that has it, by ``free()``, or at the end of its ``with``.
#[pyclass(name = "_Array", module = "forebay", extends = Memory, frozen, subclass)]
pub(crate) struct ArrayCore;

/// `forebay.Array`.
pub(crate) static ARRAY: BufferType<ArrayCore> = BufferType::new(c"forebay.Array", Family::Parent);

/// A new `forebay.Array`.
pub(crate) fn new_array(py: Python<'_>, memory: Memory) -> Result<Py<PyAny>, Failure> {
    ARRAY.construct(py, memory)
}
