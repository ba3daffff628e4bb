//! `forebay.Transfer`: an upload or download that the transfer engine of a device makes with several threads.
//!
//! It holds the memory of both sides until nothing uses it: an export of the Python object, and a pin of the device's.
//! Waiting, and dropping it, releases the GIL. The engine's threads never need it.

use std::sync::Arc;

use forebay::bindings::Counted;
use forebay::hal::{Copy, Location};
use forebay::transfer::raw::RawTicket;
use forebay::{Bytes, Priority, Span};
use forebay_sync::fork::LeakOnFork;
use pyo3::prelude::*;

use crate::allocation::MemorySpace;
use crate::array_view::ArrayView;
use crate::failure::Failure;
use crate::gil::{DropDetached, MayBlockOnDrop};
use crate::host_side::{Held, HostSide};
use crate::memory::{HeldPin, Pinned, stream_or_own};
use crate::open_device::StreamRef;
use crate::stream::priority_argument;
use crate::transfer::Direction;

/// How a transfer is made.
pub(crate) struct Choices {
    /// Whose earlier work comes first.
    pub(crate) stream_ref: Arc<StreamRef>,
    pub(crate) priority: Priority,
}

/// A transfer under way, or done.
///
/// It keeps the memory of both sides: a buffer cannot be freed and an array not be resized before it is done. Dropping it
/// cancels what is not yet with the device. Made by ``upload_async()`` and ``download_async()``.
#[pyclass(name = "Transfer", module = "forebay", frozen, weakref)]
pub(crate) struct PyTransfer {
    /// Dropped first: the ticket waits until nothing uses what is held, which goes afterwards.
    submitted: DropDetached<Submitted>,
    /// Let go of when the transfer is done.
    held: Counted<(Held, HeldPin)>,
    result: Py<PyAny>,
}

/// A ticket and its stream, whose end is told to pools.
struct Submitted {
    ticket: LeakOnFork<RawTicket>,
    stream_ref: Arc<StreamRef>,
}

impl MayBlockOnDrop for Submitted {}

impl PyTransfer {
    /// As `begin`, with what a call of Python's says: a stream, by default the memory's own, and a priority.
    pub(crate) fn with(
        py: Python<'_>,
        direction: Direction,
        ((pin, array), offset): (Pinned, u64),
        host: HostSide,
        (stream, priority): (Option<&Bound<'_, PyAny>>, &str),
        result: Py<PyAny>,
    ) -> Result<Self, Failure> {
        let priority = priority_argument(priority)?;
        let stream_ref = stream_or_own(pin.allocation(), stream)?;
        if direction == Direction::Up && !array.writable() {
            return Err(Failure::invalid("the memory is read-only"));
        }
        let choices = Choices { stream_ref, priority };
        Self::begin(py, direction, (pin, &array, offset), host, choices, result)
    }

    /// Begins a transfer between host memory and the bytes of `array` from `offset` on. `result` is what waiting for it
    /// returns.
    pub(crate) fn begin(
        py: Python<'_>,
        direction: Direction,
        (pin, array, offset): (HeldPin, &ArrayView, u64),
        host: HostSide,
        choices: Choices,
        result: Py<PyAny>,
    ) -> Result<Self, Failure> {
        let (Choices { stream_ref, priority }, allocation) = (choices, pin.allocation());
        let near = Span::new(host.address, Bytes::new(host.size))?;
        array.contiguous()?;
        let offset = array.span(offset, host.size)?;
        let far = allocation.address().checked_add(Bytes::new(offset));
        let far = far.ok_or_else(|| Failure::invalid("the range ends past the last address"))?;
        match allocation.space() {
            MemorySpace::Host => {
                let said = "the memory is the host's, so nothing is to be transferred: use copy_() or numpy()";
                return Err(Failure::invalid(said));
            }
            MemorySpace::HostDevice if Span::new(far, near.size())?.overlaps(near) => {
                let said = "both sides of the transfer are the same memory: use copy_() or numpy()";
                return Err(Failure::invalid(said));
            }
            MemorySpace::HostDevice | MemorySpace::Device => {}
        }
        let (to, from) = direction.ends(Location::Device(far), Location::Host(host.address));
        let copy = Copy::linear(to, from, near.size())?;
        let ticket = py.detach(|| {
            stream_ref.wait_for(&allocation.stream_ref())?;
            let engine = allocation.device().transfers()?;
            // SAFETY: what is held below keeps both sides until the ticket was waited for, by this object's drop at the
            // latest, and the object has the stream. A program that uses the memory meanwhile gets a mixture, as with
            // any copy in Python. Pinned memory is of this device.
            let transfer = unsafe { engine.copy_raw(copy, stream_ref.handle()) };
            Ok::<_, Failure>(transfer.priority(priority).submit()?)
        })?;
        let submitted =
            DropDetached::new(Submitted { ticket: LeakOnFork::new(ticket), stream_ref });
        Ok(Self { submitted, held: Counted::new("transfer", (host.held, pin)), result })
    }

    fn ticket(&self) -> Result<&RawTicket, Failure> {
        Ok(self.submitted.ticket.get()?)
    }

    /// Lets go of the memory of both sides.
    fn release(&self) {
        drop(self.held.close());
    }

    /// Waits until it is done, and returns its result.
    pub(crate) fn finish(&self, py: Python<'_>) -> Result<Py<PyAny>, Failure> {
        let outcome = py.detach(|| Ok::<_, Failure>(self.ticket()?.wait()))?;
        self.release();
        outcome?;
        Ok(self.result.clone_ref(py))
    }
}

#[pymethods]
impl PyTransfer {
    /// Wait until it is done. Returns the array that an upload filled or made, or what a download filled. Raises what it
    /// failed with; the memory is free then too.
    fn wait(&self, py: Python<'_>) -> Result<Py<PyAny>, Failure> {
        self.finish(py)
    }

    /// Whether it is done, or has failed. Does not wait.
    fn done(&self, py: Python<'_>) -> Result<bool, Failure> {
        let done = py.detach(|| Ok::<_, Failure>(self.ticket()?.is_done()))?;
        if done {
            self.release();
        }
        Ok(done)
    }

    /// The bytes that were copied on the host and handed over, and all bytes.
    #[getter]
    fn progress(&self, py: Python<'_>) -> Result<(u64, u64), Failure> {
        let progress = py.detach(|| Ok::<_, Failure>(self.ticket()?.progress()))?;
        Ok((progress.moved.get(), progress.total.get()))
    }

    /// End it early: no further piece begins, and waiting for it raises ``CancelledError``. What was copied stays. Returns
    /// ``False`` if all was handed over already.
    fn cancel(&self, py: Python<'_>) -> Result<bool, Failure> {
        py.detach(|| Ok(self.ticket()?.cancel()))
    }

    /// Wait until all of it was handed to the device, and make later work on the stream wait for it there: so it overlaps
    /// with kernels. The source of an upload may change then, unless it is pinned memory.
    fn order(&self, py: Python<'_>) -> Result<(), Failure> {
        let outcome = py.detach(|| {
            let (ticket, stream_ref) = (self.ticket()?, &self.submitted.stream_ref);
            let outcome = ticket.order();
            // Where the memory is freed next, that comes after the transfer.
            let held = self.held.with(|(_, pin)| Ok::<_, Failure>(Arc::clone(pin.allocation())));
            if let (Ok(()), Ok(allocation)) = (&outcome, held) {
                // Else the memory would be freed before.
                allocation.record_use(stream_ref).inspect_err(|_| drop(ticket.wait()))?;
            }
            Ok::<_, Failure>((outcome, ticket.is_direct()))
        })?;
        let (outcome, is_direct) = outcome;
        if !is_direct {
            self.release();
        }
        Ok(outcome?)
    }

    /// ``await transfer`` is ``wait()`` on a thread of the event loop's executor.
    fn __await__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let current = py.import("asyncio")?.call_method0("get_running_loop")?;
        let wait = slf.getattr("wait")?;
        current.call_method1("run_in_executor", (py.None(), wait))?.call_method0("__await__")
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        let (moved, total) = self.progress(py).unwrap_or_default();
        format!("<forebay.Transfer of {moved} of {total} B>")
    }
}
