//! `forebay.UnifiedBuffer`: an array with a replica on the host and one on a device. See `unified_methods` for what it can
//! do beside what every array can.

use pyo3::prelude::*;

use crate::array::{ARRAY, ArrayCore};
use crate::failure::Failure;
use crate::memory::Memory;
use crate::protocol::{BufferType, Family};

/// An array with a replica on the host and one on a device, copied when and as far as a use needs it.
///
/// Made by ``BufferManager.buffer()`` and ``BufferManager.buffer_from()``. Arrays of either side share its memory; while one
/// lives, a call that conflicts with it raises ``InUseError``, which is a ``BufferError``.
///
/// ``buffer[10:20]`` is a slice: a buffer of these elements, rows of the first dimension, in the same memory. Only their
/// bytes are copied, and arrays of other slices do not conflict with it. It keeps the memory.
#[pyclass(name = "_UnifiedBuffer", module = "forebay", extends = ArrayCore, frozen, subclass)]
pub(crate) struct UnifiedCore;

/// `forebay.UnifiedBuffer`, which is a `forebay.Array`.
pub(crate) static UNIFIED: BufferType<UnifiedCore> =
    BufferType::new(c"forebay.UnifiedBuffer", Family::KindOf(|py| ARRAY.get(py)));

/// A new `forebay.UnifiedBuffer`.
pub(crate) fn new_unified(py: Python<'_>, memory: Memory) -> Result<Py<PyAny>, Failure> {
    UNIFIED.construct(py, memory)
}
