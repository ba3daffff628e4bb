//! Error codes of OpenCL, and what they mean for the device contract.

use core::ffi::c_void;
use core::fmt;
use std::sync::{Arc, OnceLock};

use cl3::error_codes as cl;
use forebay_hal::{Asked, Call, DriverErrorKind, Error, MemoryInfo, Result};

/// An error code of OpenCL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub i32);

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The name, as in the headers; a code that the list does not have comes with its number.
        write!(f, "{} ({})", cl::ClError(self.0), self.0)
    }
}

/// A refused call: the function and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DriverError {
    pub(crate) function: &'static str,
    pub(crate) code: Code,
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.code.0 == cl::CL_SUCCESS {
            // A driver that agrees and gives nothing.
            return write!(f, "{} said {} and gave nothing", self.function, self.code);
        }
        write!(f, "{} said {}", self.function, self.code)
    }
}

/// Why work that was accepted could not be done, if it could not: from then on every query and wait of its device
/// says so. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lost(Arc<OnceLock<DriverError>>);

impl Lost {
    /// Takes note of it; the first stays.
    pub(crate) fn note(&self, refusal: DriverError) {
        let _ = self.0.set(refusal);
    }

    pub(crate) fn check(&self, call: Call) -> Result<()> {
        self.0.get().map_or(Ok(()), |refusal| {
            let reason = format!("a copy that was enqueued could not be made: {refusal}");
            Err(Error::Lost { call, reason: reason.into() })
        })
    }
}

/// A call's outcome.
pub(crate) type Outcome<T> = core::result::Result<T, DriverError>;

/// Names the function of a call that may be refused.
pub(crate) trait Named<T> {
    /// The same, with the function's name.
    fn of(self, function: &'static str) -> Outcome<T>;
}

impl<T> Named<T> for core::result::Result<T, i32> {
    fn of(self, function: &'static str) -> Outcome<T> {
        self.map_err(|code| DriverError { function, code: Code(code) })
    }
}

/// Names the function of a call that makes something.
pub(crate) trait Made {
    /// The same, with the function's name. A driver that agrees and gives nothing counts as refusing.
    fn made(self, function: &'static str) -> Outcome<*mut c_void>;
}

impl Made for core::result::Result<*mut c_void, i32> {
    fn made(self, function: &'static str) -> Outcome<*mut c_void> {
        let nothing = DriverError { function, code: Code(cl::CL_SUCCESS) };
        self.of(function).and_then(|raw| if raw.is_null() { Err(nothing) } else { Ok(raw) })
    }
}

impl DriverError {
    /// The error of a refused call, with `figures` in case memory ran out.
    pub(crate) fn error(
        self,
        call: Call,
        asked: &Asked,
        figures: impl FnOnce() -> MemoryInfo,
    ) -> Error {
        asked.refused(call, self.kind(!asked.size.is_zero()), self.to_string(), figures)
    }

    fn kind(self, is_allocation: bool) -> DriverErrorKind {
        match self.code.0 {
            cl::CL_OUT_OF_HOST_MEMORY
            | cl::CL_MEM_OBJECT_ALLOCATION_FAILURE
            | cl::CL_MAP_FAILURE => DriverErrorKind::OutOfMemory,
            // Some drivers answer so where the device has no memory left.
            cl::CL_OUT_OF_RESOURCES if is_allocation => DriverErrorKind::OutOfMemory,
            cl::CL_OUT_OF_RESOURCES => DriverErrorKind::Transient,
            cl::CL_DEVICE_NOT_AVAILABLE
            | cl::CL_COMPILER_NOT_AVAILABLE
            | cl::CL_DEVICE_NOT_FOUND
            | cl::CL_PLATFORM_NOT_FOUND_KHR
            | cl::CL_PROFILING_INFO_NOT_AVAILABLE
            | cl::CL_INVALID_OPERATION
            | cl::CL_INVALID_QUEUE_PROPERTIES
            | cl::DLOPEN_FUNCTION_NOT_AVAILABLE
            | cl::DLOPEN_RUNTIME_LOAD_FAILED => DriverErrorKind::Unsupported,
            cl::CL_INVALID_VALUE
            | cl::CL_INVALID_BUFFER_SIZE
            | cl::CL_INVALID_MEM_OBJECT
            | cl::CL_MEM_COPY_OVERLAP
            | cl::CL_MISALIGNED_SUB_BUFFER_OFFSET
            | cl::CL_INVALID_EVENT
            | cl::CL_INVALID_EVENT_WAIT_LIST
            | cl::CL_INVALID_HOST_PTR
            | cl::CL_INVALID_COMMAND_QUEUE => DriverErrorKind::Invalid,
            // A command that failed on the device or came without an event, and what no list has: nothing
            // is known about memory that it used, so the device does not count as usable.
            _ => DriverErrorKind::Lost,
        }
    }
}
