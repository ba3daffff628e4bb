//! What a `Buffer` or a `View` refers to: a whole allocation, or elements in a part of one.

use std::sync::Arc;

use forebay::Address;
use pyo3::prelude::*;

use crate::allocation::{Allocation, Pin};
use crate::array_view::ArrayView;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::open_device::StreamRef;
use crate::stream::stream_argument;
use crate::transfer::{self, MemoryRange};

/// The base class of ``Buffer`` and ``View``.
#[pyclass(name = "_Memory", module = "forebay", frozen, subclass, weakref)]
pub(crate) struct Memory(Kind);

enum Kind {
    /// A whole allocation, pinned for the time of each call.
    Buffer(DropDetached<Arc<Allocation>>),
    /// A part of an allocation, pinned as long as the view lives.
    View(DropDetached<Pin>, ArrayView),
}

impl Memory {
    /// The memory of a buffer.
    pub(crate) fn buffer(allocation: Arc<Allocation>) -> Self {
        Self(Kind::Buffer(DropDetached::new(allocation)))
    }

    /// The memory of a view.
    pub(crate) fn view(pin: Pin, array: ArrayView) -> Self {
        Self(Kind::View(DropDetached::new(pin), array))
    }

    /// Whether it is a buffer's.
    pub(crate) fn is_buffer(&self) -> bool {
        matches!(self.0, Kind::Buffer(_))
    }

    /// The allocation it is part of.
    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        match &self.0 {
            Kind::Buffer(allocation) => allocation,
            Kind::View(pin, _) => pin.allocation(),
        }
    }

    /// Its elements; of a buffer all bytes.
    pub(crate) fn array(&self) -> ArrayView {
        match &self.0 {
            Kind::Buffer(allocation) => ArrayView::whole(allocation),
            Kind::View(_, array) => array.clone(),
        }
    }

    /// How many bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match &self.0 {
            Kind::Buffer(allocation) => allocation.size().get(),
            Kind::View(_, array) => array.bytes(),
        }
    }

    /// Its first address; null for no bytes. An error where it was freed.
    pub(crate) fn first_address(&self, py: Python<'_>) -> Result<Address, Failure> {
        match &self.0 {
            Kind::Buffer(allocation) => py.detach(|| Ok(allocation.pin()?.allocation().address())),
            Kind::View(pin, array) => Ok(array.address(pin.allocation())),
        }
    }

    /// A new pin of the memory; an error where it was freed. May wait: call it with the GIL released.
    pub(crate) fn pin(&self) -> Result<Pin, Failure> {
        self.allocation().pin()
    }

    /// A new pin of the memory, and its elements.
    pub(crate) fn pinned(&self, py: Python<'_>) -> Result<(Pin, ArrayView), Failure> {
        Ok((py.detach(|| self.pin())?, self.array()))
    }

    /// Calls `work` while the memory is pinned: a view has its pin already, a buffer takes one.
    pub(crate) fn with_pin<R>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&Pin, &ArrayView) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        match &self.0 {
            Kind::Buffer(_) => {
                let (pin, array) = self.pinned(py)?;
                work(&pin, &array)
            }
            Kind::View(pin, array) => work(pin, array),
        }
    }

    /// Waits for copies that were recorded for it.
    pub(crate) fn settle(&self) -> Result<(), Failure> {
        let allocation = self.allocation();
        if allocation.is_pinned()
            && let Some(array) = allocation.pool_array()
        {
            array.wait()?;
        }
        Ok(())
    }

    /// Fills bytes from `offset` on, `size` of them or all that are left.
    pub(crate) fn fill(
        &self,
        py: Python<'_>,
        value: u8,
        (offset, size): (u64, Option<u64>),
        stream: Option<&Bound<'_, PyAny>>,
        wait: bool,
    ) -> Result<(), Failure> {
        self.with_pin(py, |pin, array| {
            let size = size.unwrap_or(array.bytes().saturating_sub(offset));
            let offset = array.span(offset, size)?;
            let stream_ref = stream_or_own(pin.allocation(), stream)?;
            let range = MemoryRange { pin, offset, size };
            py.detach(|| transfer::fill(range, value, &stream_ref, wait))
        })
    }
}

/// The stream of a call: the one that is named, or the memory's own.
pub(crate) fn stream_or_own(
    allocation: &Allocation,
    stream: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<StreamRef>, Failure> {
    match stream.filter(|stream| !stream.is_none()) {
        Some(stream) => stream_argument(allocation.device(), Some(stream)),
        None => Ok(allocation.stream_ref()),
    }
}

/// An error where the memory is of two devices.
pub(crate) fn same_device(from: &Allocation, to: &Allocation) -> Result<(), Failure> {
    if Arc::ptr_eq(from.device(), to.device()) {
        return Ok(());
    }
    let (from, to) = (from.device().name(), to.device().name());
    Err(Failure::invalid(format!(
        "cannot copy memory of {from} directly to {to}: copy_from() and copy_to() go through the host"
    )))
}
