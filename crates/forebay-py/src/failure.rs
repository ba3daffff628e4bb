//! Why a call failed, and the exception for it.
//!
//! Calls run with the GIL released, where no exception can be made. So they return a [`Failure`], which becomes
//! an exception of `forebay.errors` once the GIL is held again.

use forebay::config::ConfigError;
use forebay::hal;
use forebay::named::SharedError;
use forebay::report::Shortage;
use forebay_sync::fork::Forked;
use pyo3::PyErr;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library.
    Library(forebay::Error),
    /// An invalid argument.
    Invalid(String),
    /// A value that was freed or closed.
    Closed(String),
    /// Memory that is still pinned.
    InUse(String),
    /// Memory that cannot be exported to another library, or to the host.
    Export(String),
    /// A feature that this device, driver or machine lacks.
    Unsupported(String),
    /// Something that another has, and that may be free later.
    Busy(String),
    /// A value made before a fork, used in the child.
    Forked,
    /// A trace that cannot be read, written or replayed.
    Trace(String),
    /// An exception of Python's own.
    Python(PyErr),
}

impl Failure {
    /// An invalid argument.
    pub(crate) fn invalid(said: impl Into<String>) -> Self {
        Self::Invalid(said.into())
    }

    /// A value that was freed or closed.
    pub(crate) fn closed(said: impl Into<String>) -> Self {
        Self::Closed(said.into())
    }

    fn text(&self) -> String {
        match self {
            Self::Library(error) => error.to_string(),
            Self::Invalid(said)
            | Self::Closed(said)
            | Self::InUse(said)
            | Self::Export(said)
            | Self::Unsupported(said)
            | Self::Busy(said)
            | Self::Trace(said) => said.clone(),
            Self::Forked => {
                "this was made before the process forked and cannot be used in the child; \
                             open the device again in the child, or start children with \
                             multiprocessing's \"spawn\""
                    .to_owned()
            }
            Self::Python(error) => error.to_string(),
        }
    }

    /// The class in `forebay.errors`.
    fn class(&self) -> &'static str {
        match self {
            Self::Library(error) => class_of(error),
            Self::Invalid(_) => "InvalidError",
            Self::Closed(_) => "ClosedError",
            Self::InUse(_) => "InUseError",
            Self::Export(_) => "ExportError",
            Self::Unsupported(_) => "UnsupportedError",
            Self::Busy(_) => "BusyError",
            Self::Forked => "ForkedError",
            Self::Trace(_) => "TraceError",
            Self::Python(_) => "Error",
        }
    }

    /// The underlying error of the library, where there is one.
    fn library(&self) -> Option<&forebay::Error> {
        match self {
            Self::Library(forebay::Error::ChunksNotFreed { error, .. }) => Some(error),
            Self::Library(error) => Some(error),
            _ => None,
        }
    }

    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let class = py.import("forebay.errors")?.getattr(self.class())?;
        let exception = class.call1((self.text(),))?;
        if let Some(error) = self.library() {
            set_figures(error, &exception)?;
        }
        Ok(PyErr::from_value(exception))
    }
}

fn class_of(error: &forebay::Error) -> &'static str {
    use forebay::Error;
    match error {
        Error::OutOfMemory(_) | Error::Device(hal::Error::OutOfMemory { .. }) => "OutOfMemoryError",
        Error::DoubleFree { .. } | Error::StaleBlock { .. } | Error::PoolGone { .. } => {
            "ClosedError"
        }
        Error::ClassUnavailable { .. }
        | Error::AidUnavailable { .. }
        | Error::Device(hal::Error::Unsupported { .. }) => "UnsupportedError",
        Error::Overrun { .. } | Error::UnorderedFree { .. } | Error::WrittenAfterFree { .. } => {
            "CorruptionError"
        }
        Error::Device(hal::Error::Lost { .. }) => "LostError",
        Error::Device(hal::Error::Busy { .. } | hal::Error::Transient { .. }) => "BusyError",
        Error::NotABlock { .. }
        | Error::WrongClass { .. }
        | Error::CaptureRefused { .. }
        | Error::WrongPool { .. }
        | Error::WrongSize { .. }
        | Error::AddressRange { .. }
        | Error::Quantity(_)
        | Error::WrongArena { .. }
        | Error::Config(_)
        | Error::Device(hal::Error::Invalid { .. }) => "InvalidError",
        Error::ArenaFull(_) => "OutOfMemoryError",
        Error::ArenaLapsed(_) => "LapsedError",
        Error::ChunksNotFreed { error, .. } => class_of(error),
        Error::Forked => "ForkedError",
        Error::Shared(error) => class_of_shared(error),
        Error::Cancelled { .. } => "CancelledError",
        _ => "Error",
    }
}

fn class_of_shared(error: &SharedError) -> &'static str {
    match error {
        SharedError::NotFound { .. } => "NotFoundError",
        SharedError::Taken { .. } => "NameTakenError",
        SharedError::OtherUser { .. } => "DeniedError",
        SharedError::NoAnswer { .. } | SharedError::AlreadyLocked | SharedError::System { .. } => {
            "BusyError"
        }
        SharedError::Unsupported { .. } => "UnsupportedError",
        _ => "InvalidError",
    }
}

/// Sets the figures of an error as attributes of its exception.
fn set_figures(error: &forebay::Error, exception: &Bound<'_, PyAny>) -> PyResult<()> {
    match error {
        forebay::Error::OutOfMemory(shortage) => {
            for (name, value) in shortage_figures(shortage) {
                exception.setattr(name, value)?;
            }
            exception.setattr("owners", owners(exception.py(), shortage)?)
        }
        forebay::Error::Device(hal::Error::OutOfMemory { requested, free, total, .. }) => {
            exception.setattr("requested", requested.get())?;
            exception.setattr("device_free", free.get())?;
            exception.setattr("limit", total.get())
        }
        _ => Ok(()),
    }
}

/// The end of a `with`. Where its body raised, that is what the program has to see, not that closing failed after it.
pub(crate) fn leave(
    raised: &Bound<'_, PyTuple>,
    closed: Result<(), Failure>,
) -> Result<(), Failure> {
    let has_raised = raised.get_item(0).is_ok_and(|kind| !kind.is_none());
    if has_raised { Ok(()) } else { closed }
}

/// The figures of a shortage by their names in Python.
pub(crate) fn shortage_figures(shortage: &Shortage) -> [(&'static str, u64); 9] {
    [
        ("requested", shortage.requested.get()),
        ("needed", shortage.needed.get()),
        ("limit", shortage.limit.get()),
        ("held", shortage.held.get()),
        ("live", shortage.live.get()),
        ("free", shortage.free.get()),
        ("largest_free", shortage.largest_free.get()),
        ("device_free", shortage.device_free.get()),
        ("held_elsewhere", shortage.held_elsewhere.get()),
    ]
}

/// The tags with the most bytes.
pub(crate) fn owners<'py>(py: Python<'py>, shortage: &Shortage) -> PyResult<Bound<'py, PyDict>> {
    let owners = PyDict::new(py);
    for (name, bytes) in &shortage.owners {
        owners.set_item(name, bytes.get())?;
    }
    Ok(owners)
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        if let Failure::Python(error) = failure {
            return error;
        }
        // Where the class cannot be imported, the error of that import is raised instead.
        Python::attach(|py| failure.raise(py).unwrap_or_else(|error| error))
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Forked> for Failure {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

impl From<forebay::Error> for Failure {
    fn from(error: forebay::Error) -> Self {
        Self::Library(error)
    }
}

impl From<hal::Error> for Failure {
    fn from(error: hal::Error) -> Self {
        Self::Library(forebay::Error::Device(error))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Self::Library(error.into())
    }
}

impl From<forebay::quantity::QuantityError> for Failure {
    fn from(error: forebay::quantity::QuantityError) -> Self {
        Self::Invalid(error.to_string())
    }
}
