//! Translates the driver's error codes to errors of the device contract.

use core::ffi::CStr;

use forebay_hal::{Asked, Call, DriverErrorKind, Error, MemoryInfo};

use crate::sys::{Code, DriverError, Symbols};

/// The class of a refusal. Codes not listed here are newer than this list. As nothing is known about them, the
/// device counts as lost rather than as usable.
pub(crate) fn meaning(refusal: DriverError) -> DriverErrorKind {
    match refusal.understood() {
        Code::ERROR_OUT_OF_MEMORY | Code::HIP_RUNTIME_MEMORY => DriverErrorKind::OutOfMemory,
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
        | Code::HIP_INVALID_COPY_DIRECTION => DriverErrorKind::Invalid,
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
        | Code::ERROR_STREAM_CAPTURE_WRONG_THREAD => DriverErrorKind::Busy,
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
        | Code::HIP_INSUFFICIENT_DRIVER => DriverErrorKind::Unsupported,
        Code::ERROR_OPERATING_SYSTEM
        | Code::ERROR_LAUNCH_OUT_OF_RESOURCES
        | Code::ERROR_SYSTEM_NOT_READY
        | Code::ERROR_MPS_CONNECTION_FAILED
        | Code::ERROR_MPS_SERVER_NOT_READY
        | Code::ERROR_MPS_MAX_CLIENTS_REACHED
        | Code::ERROR_MPS_MAX_CONNECTIONS_REACHED
        | Code::ERROR_TIMEOUT => DriverErrorKind::Transient,
        // Among them the errors that stay: once a kernel has broken a context, every call in it
        // answers so for the rest of the process.
        _ => DriverErrorKind::Lost,
    }
}

/// The function and its error code, in words.
pub(crate) fn words(refusal: DriverError, table: Option<&Symbols>) -> String {
    let DriverError { symbol, code } = refusal;
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
fn name_of(table: &Symbols, code: Code) -> Option<String> {
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
    refusal: DriverError,
    asked: &Asked,
    figures: impl FnOnce() -> MemoryInfo,
    table: Option<&Symbols>,
) -> Error {
    asked.refused(call, meaning(refusal), words(refusal, table), figures)
}

/// The error for a refused call that allocates nothing.
pub(crate) fn plain_error(
    call: Call,
    refusal: DriverError,
    (argument, allowed): (&'static str, &'static str),
) -> Error {
    let asked = Asked::of(argument, "what was given", allowed);
    error(call, refusal, &asked, MemoryInfo::default, None)
}

#[cfg(test)]
mod tests;
