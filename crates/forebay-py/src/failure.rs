//! Why a call failed, and the exception for it.
//!
//! Calls run with the GIL released, where no exception can be made. So they return a [`Failure`], which becomes
//! an exception of `forebay.errors` once the GIL is held again.

use core::cell::Cell;
use core::num::TryFromIntError;

use forebay::bindings::CountedError;
use forebay::config::ConfigError;
use forebay::hal;
use forebay::report::Shortage;
use forebay_capi::status::{forebay_status as Status, of_error};
use forebay_sync::fork::Forked;
use pyo3::PyErr;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// An error of the library.
    Library(forebay::Error),
    /// A class of `forebay.errors`, and what it says.
    Said(&'static str, String),
    /// An exception of Python's own.
    Python(PyErr),
}

/// Makes a function of [`Failure`] for each class.
macro_rules! classes {
    ($($(#[$what:meta])* $name:ident: $class:literal,)*) => {
        impl Failure {
            $($(#[$what])* pub(crate) fn $name(said: impl Into<String>) -> Self {
                Self::Said($class, said.into())
            })*
        }
    };
}

classes! {
    /// An invalid argument.
    invalid: "InvalidError",
    /// A value that was freed or closed.
    closed: "ClosedError",
    /// Memory that is still pinned.
    in_use: "InUseError",
    /// Memory that cannot be exported to another library, or to the host.
    export: "ExportError",
    /// A feature that this device, driver or machine lacks.
    unsupported: "UnsupportedError",
    /// Something that another has, and that may be free later.
    busy: "BusyError",
    /// A trace that cannot be read, written or replayed.
    trace: "TraceError",
}

impl Failure {
    /// An argument of the wrong type.
    pub(crate) fn wrong_type(said: impl Into<String>) -> Self {
        Self::Python(PyTypeError::new_err(said.into()))
    }

    /// Whether views or calls use the memory.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self, Self::Said("InUseError", _))
    }

    /// Whether there was not enough memory.
    pub(crate) fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Library(error) if class_of(error) == "OutOfMemoryError")
    }

    fn raise(self, py: Python<'_>) -> PyResult<PyErr> {
        let refused = self.is_out_of_memory();
        let error = self.exception(py)?;
        if refused && let Some(raised) = RAISED.take() {
            error.set_cause(py, Some(raised));
        }
        Ok(error)
    }

    fn exception(self, py: Python<'_>) -> PyResult<PyErr> {
        let (class, said, error) = match self {
            Self::Library(error) => (class_of(&error), error.to_string(), Some(error)),
            Self::Said(class, said) => (class, said, None),
            Self::Python(error) => return Ok(error),
        };
        let exception = py.import("forebay.errors")?.getattr(class)?.call1((said,))?;
        match error {
            Some(forebay::Error::ChunksNotFreed { error, .. }) => set_figures(&error, &exception)?,
            Some(error) => set_figures(&error, &exception)?,
            None => {}
        }
        Ok(PyErr::from_value(exception))
    }
}

thread_local! {
    /// What a callback of the request that this thread makes has raised: the cause if it is refused.
    static RAISED: Cell<Option<PyErr>> = const { Cell::new(None) };
}

/// Keeps what a callback of this thread's request raised, as the cause of its refusal.
pub(crate) fn raised_in_callback(py: Python<'_>, error: PyErr) {
    report_raised(py);
    RAISED.set(Some(error));
}

/// Tells `sys.unraisablehook` what a callback raised whose request was not refused.
pub(crate) fn report_raised(py: Python<'_>) {
    if let Some(error) = RAISED.take() {
        error.write_unraisable(py, None);
    }
}

/// The class in `forebay.errors`. It follows from C's status, but for a few.
fn class_of(error: &forebay::Error) -> &'static str {
    use forebay::Error;
    match error {
        Error::WrongClass { .. }
        | Error::CaptureRefused { .. }
        | Error::AddressRange { .. }
        | Error::WrongArena { .. }
        | Error::Quantity(_) => return "InvalidError",
        Error::Owned { .. }
        | Error::NotRestorable { .. }
        | Error::ReadOnly { .. }
        | Error::Differs { .. }
        | Error::Compressed(_) => return "Error",
        Error::Weights(_) | Error::FileChanged { .. } => return "WeightsError",
        _ => {}
    }
    match of_error(error) {
        Status::OutOfMemory | Status::Full => "OutOfMemoryError",
        Status::DoubleFree | Status::InvalidHandle => "ClosedError",
        Status::Unsupported => "UnsupportedError",
        Status::Corrupted => "CorruptionError",
        Status::Lost => "LostError",
        Status::Busy | Status::Transient | Status::TimedOut => "BusyError",
        Status::Lapsed => "LapsedError",
        Status::Forked => "ForkedError",
        Status::NotFound => "NotFoundError",
        Status::NameTaken => "NameTakenError",
        Status::Denied => "DeniedError",
        Status::Cancelled => "CancelledError",
        Status::Io => "Error",
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

/// An argument as the program wrote it, for a message.
pub(crate) fn shown(given: &Bound<'_, PyAny>) -> String {
    given.repr().map_or_else(|_| "it".to_owned(), |text| text.to_string())
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
        let said = "this was made before the process forked and cannot be used in the child; open the device again in the \
                    child, or start children with multiprocessing's \"spawn\"";
        Self::Said("ForkedError", said.to_owned())
    }
}

impl From<forebay::Error> for Failure {
    fn from(error: forebay::Error) -> Self {
        match error {
            forebay::Error::Forked => Forked.into(),
            error => Self::Library(error),
        }
    }
}

impl From<CountedError> for Failure {
    fn from(error: CountedError) -> Self {
        match error {
            CountedError::Library(error) => error.into(),
            CountedError::InUse(words) => Self::in_use(words),
            CountedError::Pinned(pins, name) => {
                let (views, live) = if pins == 1 { ("view", "lives") } else { ("views", "live") };
                Self::in_use(format!(
                    "{pins} {views} of the {name} still {live}: an array, memoryview or DLPack tensor has to be deleted first, a \
                     transfer under way waited for with wait() or ended with cancel()"
                ))
            }
            other => Self::closed(other.to_string()),
        }
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

/// A size beyond what this process can address.
impl From<TryFromIntError> for Failure {
    fn from(error: TryFromIntError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<forebay::quantity::QuantityError> for Failure {
    fn from(error: forebay::quantity::QuantityError) -> Self {
        Self::invalid(error.to_string())
    }
}
