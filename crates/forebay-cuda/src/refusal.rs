//! Translates the driver's error codes to errors of the device contract.

use core::ffi::CStr;

use forebay_core::Bytes;
use forebay_hal::{Call, Error, MemoryInfo, invalid};

use crate::sys::{Code, Refusal, Table};

/// The class of an error code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorClass {
    /// Not enough memory is left.
    OutOfMemory,
    /// An argument is invalid.
    Invalid,
    /// The device or its context is gone, for this process at least.
    Lost,
    /// Something is in use or unfinished.
    Busy,
    /// This device, driver or system does not support it.
    Unsupported,
    /// It failed for a reason that may pass.
    Transient,
}

/// The class of a refusal. Codes not listed here are newer than this list. As nothing is known about them, the
/// device counts as lost rather than as usable.
pub(crate) fn meaning(refusal: Refusal) -> ErrorClass {
    match refusal.understood() {
        Code::ERROR_OUT_OF_MEMORY | Code::HIP_RUNTIME_MEMORY => ErrorClass::OutOfMemory,
        Code::ERROR_INVALID_VALUE
        | Code::ERROR_INVALID_DEVICE
        | Code::ERROR_INVALID_IMAGE
        | Code::ERROR_INVALID_CONTEXT
        | Code::ERROR_MAP_FAILED
        | Code::ERROR_UNMAP_FAILED
        | Code::ERROR_ALREADY_MAPPED
        | Code::ERROR_NOT_MAPPED
        | Code::ERROR_NO_BINARY_FOR_GPU
        | Code::ERROR_INVALID_PTX
        | Code::ERROR_INVALID_HANDLE
        | Code::ERROR_ILLEGAL_STATE
        | Code::ERROR_NOT_FOUND
        | Code::ERROR_PEER_ACCESS_ALREADY_ENABLED
        | Code::ERROR_PEER_ACCESS_NOT_ENABLED
        | Code::ERROR_PRIMARY_CONTEXT_ACTIVE
        | Code::ERROR_HOST_MEMORY_ALREADY_REGISTERED
        | Code::ERROR_HOST_MEMORY_NOT_REGISTERED
        | Code::ERROR_CAPTURED_EVENT
        | Code::HIP_INVALID_CONFIGURATION
        | Code::HIP_INVALID_PITCH
        | Code::HIP_INVALID_DEVICE_POINTER
        | Code::HIP_INVALID_COPY_DIRECTION => ErrorClass::Invalid,
        Code::ERROR_NOT_READY
        | Code::ERROR_DEVICE_UNAVAILABLE
        | Code::ERROR_CONTEXT_ALREADY_IN_USE
        // A stream is being captured into a graph, and the call cannot be part of one.
        | Code::ERROR_STREAM_CAPTURE_UNSUPPORTED
        | Code::ERROR_STREAM_CAPTURE_INVALIDATED
        | Code::ERROR_STREAM_CAPTURE_MERGE
        | Code::ERROR_STREAM_CAPTURE_UNMATCHED
        | Code::ERROR_STREAM_CAPTURE_UNJOINED
        | Code::ERROR_STREAM_CAPTURE_ISOLATION
        | Code::ERROR_STREAM_CAPTURE_IMPLICIT
        | Code::ERROR_STREAM_CAPTURE_WRONG_THREAD => ErrorClass::Busy,
        Code::MISSING
        | Code::ERROR_STUB_LIBRARY
        | Code::ERROR_NO_DEVICE
        | Code::ERROR_DEVICE_NOT_LICENSED
        | Code::ERROR_UNSUPPORTED_LIMIT
        | Code::ERROR_PEER_ACCESS_UNSUPPORTED
        | Code::ERROR_JIT_COMPILER_NOT_FOUND
        | Code::ERROR_UNSUPPORTED_PTX_VERSION
        | Code::ERROR_TOO_MANY_PEERS
        | Code::ERROR_NOT_PERMITTED
        | Code::ERROR_NOT_SUPPORTED
        | Code::ERROR_SYSTEM_DRIVER_MISMATCH
        | Code::ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE
        | Code::HIP_INSUFFICIENT_DRIVER => ErrorClass::Unsupported,
        Code::ERROR_OPERATING_SYSTEM
        | Code::ERROR_LAUNCH_OUT_OF_RESOURCES
        | Code::ERROR_SYSTEM_NOT_READY
        | Code::ERROR_MPS_CONNECTION_FAILED
        | Code::ERROR_MPS_SERVER_NOT_READY
        | Code::ERROR_MPS_MAX_CLIENTS_REACHED
        | Code::ERROR_MPS_MAX_CONNECTIONS_REACHED
        | Code::ERROR_TIMEOUT => ErrorClass::Transient,
        // Among them the errors that stay: once a kernel has broken a context, every call in it
        // answers so for the rest of the process.
        _ => ErrorClass::Lost,
    }
}

/// The arguments of a driver call, for its error message.
#[derive(Clone, Debug)]
pub(crate) struct CallInfo {
    /// The argument at fault, if there is one.
    pub(crate) argument: &'static str,
    /// The value given.
    pub(crate) given: String,
    /// What was expected.
    pub(crate) allowed: &'static str,
    /// The requested size; zero for calls that allocate nothing.
    pub(crate) size: Bytes,
}

impl CallInfo {
    /// A request for `size` bytes.
    pub(crate) fn size(size: Bytes) -> Self {
        let given = format!("{} B", size.get());
        Self { argument: "size", given, allowed: "a size that the driver can allocate", size }
    }

    /// A call with one argument that could be at fault.
    pub(crate) fn of(
        argument: &'static str,
        given: impl core::fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self { argument, given: given.to_string(), allowed, size: Bytes::ZERO }
    }
}

/// The function and its error code, in words.
pub(crate) fn words(refusal: Refusal, table: Option<&Table>) -> String {
    let Refusal { symbol, code } = refusal;
    if code == Code::MISSING {
        return format!("the driver has no {}, which {} introduced", symbol.name, symbol.since());
    }
    let interface = symbol.interface;
    let unknown = interface.name_of(code).is_none();
    match table.filter(|_| unknown).and_then(|table| name_of(table, code)) {
        Some(name) => format!("{} said {name} ({})", symbol.name, code.0),
        None => format!("{} said {}", symbol.name, interface.describe(code)),
    }
}

/// The driver's own name for a code that is newer than this list.
fn name_of(table: &Table, code: Code) -> Option<String> {
    let mut name = core::ptr::null();
    // SAFETY: the name is written to a place of our own.
    unsafe { table.get_error_name(code, &raw mut name) }.ok()?;
    if name.is_null() {
        return None;
    }
    // SAFETY: the driver gives a string that ends with a zero and is never freed.
    Some(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

/// The error for a refused call, with `figures` in case memory ran out.
pub(crate) fn error(
    call: Call,
    refusal: Refusal,
    asked: &CallInfo,
    figures: impl FnOnce() -> MemoryInfo,
    table: Option<&Table>,
) -> Error {
    let said = words(refusal, table);
    match meaning(refusal) {
        ErrorClass::OutOfMemory => {
            let MemoryInfo { free, total, .. } = figures();
            Error::OutOfMemory { call, requested: asked.size, free, total }
        }
        ErrorClass::Invalid => {
            invalid(call, asked.argument, format!("{}; {said}", asked.given), asked.allowed)
        }
        ErrorClass::Lost => Error::Lost { call, reason: said.into() },
        ErrorClass::Busy => Error::Busy { call, what: said.into() },
        ErrorClass::Unsupported => Error::Unsupported { call, missing: said.into() },
        ErrorClass::Transient => Error::Transient { call, reason: said.into() },
    }
}

/// The error for a refused call that allocates nothing.
pub(crate) fn plain_error(
    call: Call,
    refusal: Refusal,
    (argument, allowed): (&'static str, &'static str),
) -> Error {
    let asked = CallInfo::of(argument, "what was given", allowed);
    error(call, refusal, &asked, MemoryInfo::default, None)
}

#[cfg(test)]
mod tests;
