//! Copies between memory of ours and anything that Python has: the way of each, and what is refused.
//!
//! ```text
//!   source         target        the copy is made by
//!   host           device        the transfer engine; of rows that lie apart, the device
//!   device         host          the device
//!   same device, pinned          the device, without waiting if the caller wants
//!   device         other device  both, a part up while the next comes down
//!   host           host          the host, and so where the two overlap
//! ```

use std::sync::Arc;

use forebay::bindings::host_vec;
use forebay::hal::Call;
use pyo3::prelude::*;

use crate::allocation::{Allocation, MemorySpace};
use crate::array_view::ArrayView;
use crate::dlpack;
use crate::engine::PyTransfer;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::host_side::HostSide;
use crate::memory::{Memory, Pinned, Use, stream_or_own};
use crate::open_device::StreamRef;
use crate::stream::stream_argument;
use crate::transfer::{self, Direction, HostPointer, MemoryRange};

/// The least bytes for which the transfer engine copies: it cuts a transfer into pieces, and fewer are one piece.
const MIN_FOR_ENGINE: u64 = 64 << 10;

/// An error unless the elements are of the same type and shape.
pub(crate) fn same_elements(ours: &ArrayView, theirs: &ArrayView) -> Result<(), Failure> {
    if ours.dtype() != theirs.dtype() {
        let (own, other) = (ours.dtype().name, theirs.dtype().name);
        return Err(Failure::invalid(format!(
            "the array has elements of {own} and the other side of {other}: convert them, with .astype(\"{own}\") of numpy or \
             .cast(\"{own}\") of forebay, or say with .view() which type the bytes have"
        )));
    }
    if ours.shape() != theirs.shape() {
        return Err(Failure::invalid(format!(
            "the array is {ours} and the other side {theirs}: the shapes have to be the same; take a slice, or .reshape() one"
        )));
    }
    Ok(())
}

/// The memory of a `Buffer` or `Array`, or of another library's tensor on a device; `None` for what is on the host and of
/// another library.
pub(crate) fn memory_of(object: &Bound<'_, PyAny>) -> Result<Option<Pinned>, Failure> {
    if let Ok(memory) = object.cast::<Memory>() {
        return memory.get().pinned_for(object.py(), Use::Read).map(Some);
    }
    if !dlpack::is_on_a_device(object) {
        return Ok(None);
    }
    let (pin, array) = dlpack::import(object)?;
    Ok(Some((DropDetached::new(Arc::new(pin)), array)))
}

/// Copies one range of memory to another of as many bytes. Waits, unless `wait` is false and the device makes the copy alone.
pub(crate) fn between(
    py: Python<'_>,
    from: MemoryRange<'_>,
    to: MemoryRange<'_>,
    stream: Option<&Bound<'_, PyAny>>,
    wait: bool,
) -> Result<(), Failure> {
    let (source, target) = (from.pin.allocation(), to.pin.allocation());
    let (source_is_host, target_is_host) =
        (source.space() == MemorySpace::Host, target.space() == MemorySpace::Host);
    // The stream is the target's, or the source's if that alone is on a device.
    let source_leads = target_is_host && !source_is_host;
    let leads = if source_leads { source } else { target };
    let stream_ref = stream_of(leads, stream)?;
    let is_same = Arc::ptr_eq(source.device(), target.device());
    let overlap = transfer::overlaps(from, to)?;
    if is_same && !overlap && !(source_is_host && target_is_host) {
        return py.detach(|| transfer::copy_between(from, to, &stream_ref, wait));
    }
    let (from_stream, to_stream) = if source_leads {
        (stream_ref, target.stream_ref())
    } else {
        (source.stream_ref(), stream_ref)
    };
    let way = if overlap { transfer::copy_through_host } else { transfer::copy_across };
    py.detach(|| way((from, &from_stream), (to, &to_stream)))
}

/// Copies all of `source` to an array, of the same type and shape.
pub(crate) fn copy_to_array(
    target: &Memory,
    source: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
    wait: bool,
) -> Result<(), Failure> {
    let py = source.py();
    if let Some(done) = copy_unified(target, source, stream)? {
        return Ok(done);
    }
    if let Some((from_pin, from)) = memory_of(source)? {
        same_elements(&target.array(), &from)?;
        let (to_pin, to) = target.pinned_for(py, Use::Overwrite)?;
        let (from, to) = (MemoryRange::of(&from_pin, &from), MemoryRange::of(&to_pin, &to));
        return between(py, from, to, stream, wait);
    }
    let host = HostSide::of(source, false)?;
    same_elements(&target.array(), &host.elements(source)?)?;
    let (to_pin, to) = target.pinned_for(py, Use::Overwrite)?;
    target.settle(py)?;
    host_copy(py, Direction::Up, (to_pin, to), host, stream)
}

/// Copies between all of an array and host memory of as many bytes, and waits.
pub(crate) fn host_copy(
    py: Python<'_>,
    direction: Direction,
    (pin, array): Pinned,
    host: HostSide,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<(), Failure> {
    let is_device = pin.allocation().space() == MemorySpace::Device;
    if is_device && array.contiguous().is_ok() && array.bytes() >= MIN_FOR_ENGINE {
        let (pinned, choices) = (((pin, array), 0), (stream, "normal"));
        let transfer = PyTransfer::with(py, direction, pinned, host, choices, py.None())?;
        return transfer.finish(py).map(drop);
    }
    let stream_ref = stream_of(pin.allocation(), stream)?;
    let range = MemoryRange::of(&pin, &array);
    // SAFETY: `host` keeps the object's memory, which is as long and, downwards, was asked for to be written. A thread of
    // Python that uses it meanwhile gets a mixture of both, as with any copy in Python.
    py.detach(|| unsafe { transfer::copy_host(direction, range, host.pointer(), &stream_ref) })
}

/// The stream of a copy with memory. Plain host memory is in the order of none.
fn stream_of(
    allocation: &Allocation,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<StreamRef>, Failure> {
    let is_plain = allocation.space() == MemorySpace::Host && !allocation.is_pinned();
    stream_or_own(allocation, stream.filter(|_| !is_plain))
}

/// Copies one whole unified buffer to another of the same size, on the device where that has the newer elements, or one slice
/// of a buffer to another. `None` for any other two.
fn copy_unified(
    target: &Memory,
    source: &Bound<'_, PyAny>,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<Option<()>, Failure> {
    let Ok(memory) = source.cast::<Memory>() else { return Ok(None) };
    let (Some((to, to_array)), Some((from, from_array))) =
        (target.as_unified(), memory.get().as_unified())
    else {
        return Ok(None);
    };
    same_elements(&to_array, &from_array)?;
    if to.is_of_same(&from) && (to.is_slice() || from.is_slice()) {
        return copy_slice(source.py(), memory.get(), target).map(Some);
    }
    if to.is_slice() || from.is_slice() {
        return Ok(None);
    }
    let stream = stream_argument(target.open_device(), stream)?.handle();
    source.py().detach(|| Ok(Some(to.buffer().copy_from(from.buffer(), stream)?)))
}

/// Copies rows of a unified buffer to others of the same buffer, of which there is one view at a time.
fn copy_slice(py: Python<'_>, from: &Memory, to: &Memory) -> Result<(), Failure> {
    let between = {
        let (pin, array) = from.pinned_for(py, Use::Read)?;
        let mut between = host_vec::zeroed(usize::try_from(array.bytes())?, Call::Copy)?;
        let (range, host) = (MemoryRange::of(&pin, &array), HostPointer::at(between.as_mut_ptr()));
        let stream_ref = pin.allocation().stream_ref();
        // SAFETY: the vector is as long as the rows, and nobody else has it.
        py.detach(|| unsafe { transfer::copy_host(Direction::Down, range, host, &stream_ref) })?;
        between
    };
    let (pin, array) = to.pinned_for(py, Use::Overwrite)?;
    let (range, host) =
        (MemoryRange::of(&pin, &array), HostPointer::at(between.as_ptr().cast_mut()));
    let stream_ref = pin.allocation().stream_ref();
    // SAFETY: as above, and the vector is read alone.
    py.detach(|| unsafe { transfer::copy_host(Direction::Up, range, host, &stream_ref) })
}
