//! Streams: created here, or adopted from another library.

use std::sync::Arc;

use forebay::Priority;
use forebay::bindings::Counted;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::open_device::{OpenDevice, PyDevice, StreamRef};

/// The stream an argument names: `None`, a `Stream`, a number, or an object of another library.
pub(crate) fn stream_argument(
    device: &Arc<OpenDevice>,
    argument: Option<&Bound<'_, PyAny>>,
) -> Result<Arc<StreamRef>, Failure> {
    let Some(argument) = argument.filter(|argument| !argument.is_none()) else {
        return Ok(StreamRef::default_of(device));
    };
    if let Ok(stream) = argument.cast::<PyStream>() {
        let stream_ref = stream.get().stream_ref()?;
        if !Arc::ptr_eq(stream_ref.device(), device) {
            let (theirs, ours) = (stream_ref.device().name(), device.name());
            let said = format!("the stream belongs to {theirs}; expected a stream of {ours}");
            return Err(Failure::invalid(said));
        }
        stream_ref.check()?;
        return Ok(stream_ref);
    }
    let raw = raw_stream_argument(argument)?;
    let maker = argument.clone().unbind();
    argument.py().detach(|| StreamRef::adopt(device, raw, Some(maker)))
}

/// The driver's handle of the stream that an argument names.
pub(crate) fn raw_stream_argument(argument: &Bound<'_, PyAny>) -> Result<u64, Failure> {
    let refused = || {
        let said = format!(
            "{argument:?} is not a stream: expected None, a forebay.Stream, a driver's handle as a whole \
             number, or an object with __cuda_stream__, cuda_stream or ptr"
        );
        let is_number = argument.hasattr("__index__").unwrap_or(false);
        if is_number { Failure::invalid(said) } else { Failure::wrong_type(said) }
    };
    let number = if let Ok(protocol) = argument.getattr("__cuda_stream__") {
        // A method since the first version of the protocol; an attribute in drafts.
        let told = if protocol.is_callable() { protocol.call0()? } else { protocol };
        told.cast::<PyTuple>().map_err(|_| refused())?.get_item(1)?
    } else if let Ok(number) = argument.getattr("cuda_stream") {
        number
    } else if let Ok(number) = argument.getattr("ptr") {
        number
    } else {
        argument.clone()
    };
    number.extract().map_err(|_| refused())
}

/// The priority that an argument names.
pub(crate) fn priority_argument(name: &str) -> Result<Priority, Failure> {
    match name {
        "low" => Ok(Priority::Low),
        "normal" => Ok(Priority::Normal),
        "high" => Ok(Priority::High),
        other => Err(Failure::invalid(format!("a priority is low, normal or high, not {other:?}"))),
    }
}

/// A stream of a device: its work runs in order.
///
/// Made by ``Device.stream()``; ``Device.adopt()`` takes one that another library made. As a context
/// manager it waits for its work at the end.
#[pyclass(name = "Stream", module = "forebay", frozen)]
pub(crate) struct PyStream {
    /// The last reference tells pools of the stream's end, which may wait for their locks.
    stream_ref: DropDetached<Counted<Arc<StreamRef>>>,
}

impl PyStream {
    pub(crate) fn new(stream_ref: Arc<StreamRef>) -> Self {
        Self { stream_ref: DropDetached::new(Counted::new("stream", stream_ref)) }
    }

    pub(crate) fn stream_ref(&self) -> Result<Arc<StreamRef>, Failure> {
        self.stream_ref.with(|stream_ref| Ok(Arc::clone(stream_ref)))
    }

    /// The stream, where it was neither closed nor forgotten.
    fn usable(&self) -> Result<Arc<StreamRef>, Failure> {
        let stream_ref = self.stream_ref()?;
        stream_ref.check()?;
        Ok(stream_ref)
    }
}

#[pymethods]
impl PyStream {
    /// The driver's handle; 0 for the default stream.
    #[getter]
    fn handle(&self) -> Result<u64, Failure> {
        self.stream_ref()?.raw()
    }

    /// Its device.
    #[getter]
    fn device(&self) -> Result<PyDevice, Failure> {
        Ok(PyDevice::new(Arc::clone(self.stream_ref()?.device())))
    }

    /// Whether close() was called.
    #[getter]
    fn closed(&self) -> bool {
        self.stream_ref.is_closed()
    }

    /// The version of the protocol and the handle, for other libraries.
    fn __cuda_stream__(&self) -> Result<(u32, u64), Failure> {
        Ok((0, self.stream_ref()?.raw()?))
    }

    /// Wait until all its work is done.
    fn synchronize(&self, py: Python<'_>) -> Result<(), Failure> {
        let stream_ref = self.usable()?;
        py.detach(|| stream_ref.synchronize())
    }

    /// Whether all its work is done.
    fn done(&self, py: Python<'_>) -> Result<bool, Failure> {
        let stream_ref = self.usable()?;
        py.detach(|| stream_ref.is_done())
    }

    /// Make later work of this stream wait for all work that ``other`` has now, on the device.
    fn wait_for(&self, py: Python<'_>, other: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let stream_ref = self.usable()?;
        let other = stream_argument(stream_ref.device(), Some(other))?;
        py.detach(|| stream_ref.wait_for(&other))
    }

    /// Close the stream. It is destroyed with the last buffer in its order.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(self.stream_ref.close()));
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) -> Result<(), Failure> {
        if self.closed() { Ok(()) } else { self.synchronize(py) }
    }

    fn __repr__(&self) -> String {
        match self.stream_ref() {
            Ok(stream_ref) => {
                format!(
                    "<forebay.Stream {:#x} of {}>",
                    stream_ref.handle().0,
                    stream_ref.device().name()
                )
            }
            Err(_) => "<forebay.Stream, closed>".to_owned(),
        }
    }
}
