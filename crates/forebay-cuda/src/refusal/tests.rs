use forebay_hal::{Call, Error, MemoryInfo};

use forebay_core::Bytes;

use super::*;
use crate::sys::SYMBOLS;

fn refusal(code: Code) -> DriverError {
    let symbol = SYMBOLS.iter().find(|symbol| symbol.name == "cuMemAlloc");
    DriverError { symbol: symbol.unwrap_or(&SYMBOLS[0]), code }
}

fn error_of(code: Code) -> Error {
    let figures =
        || MemoryInfo { total: Bytes::gib(8), free: Bytes::gib(1), ..MemoryInfo::default() };
    error(Call::Allocate, refusal(code), &Asked::size(Bytes::gib(2)), figures, None)
}

#[test]
fn a_lack_of_memory_has_all_figures() {
    let right = Error::OutOfMemory {
        call: Call::Allocate,
        requested: Bytes::gib(2),
        free: Bytes::gib(1),
        total: Bytes::gib(8),
    };
    assert_eq!(error_of(Code::ERROR_OUT_OF_MEMORY), right);
}

#[test]
fn every_other_error_names_the_function_and_the_code() {
    for &(code, name) in Code::ALL {
        if matches!(code, Code::SUCCESS | Code::ERROR_OUT_OF_MEMORY) {
            continue;
        }
        let text = error_of(code).to_string();
        assert!(text.contains("cuMemAlloc") && text.contains(name), "{name}: {text}");
        assert!(text.contains(&format!("({})", code.0)), "{name}: {text}");
    }
}

#[test]
fn what_stays_broken_is_lost_and_what_may_pass_may_pass() {
    for code in [
        Code::ERROR_ILLEGAL_ADDRESS,
        Code::ERROR_LAUNCH_FAILED,
        Code::ERROR_LAUNCH_TIMEOUT,
        Code::ERROR_MISALIGNED_ADDRESS,
        Code::ERROR_ILLEGAL_INSTRUCTION,
        Code::ERROR_HARDWARE_STACK_ERROR,
        Code::ERROR_ECC_UNCORRECTABLE,
        Code::ERROR_NVLINK_UNCORRECTABLE,
        Code::ERROR_CONTAINED,
        Code::ERROR_ASSERT,
        Code::ERROR_CONTEXT_IS_DESTROYED,
        Code::ERROR_DEINITIALIZED,
        Code::ERROR_UNKNOWN,
        // A code of a driver newer than the list.
        Code(4711),
    ] {
        let error = error_of(code);
        assert!(matches!(error, Error::Lost { .. }), "{code}: {error}");
        assert!(!error.may_pass());
    }
    for code in [Code::ERROR_NOT_READY, Code::ERROR_DEVICE_UNAVAILABLE, Code::ERROR_TIMEOUT] {
        assert!(error_of(code).may_pass(), "{code}");
    }
    assert!(matches!(error_of(Code::ERROR_STREAM_CAPTURE_UNSUPPORTED), Error::Busy { .. }));
    assert!(matches!(error_of(Code::ERROR_INVALID_VALUE), Error::Invalid { .. }));
    assert!(matches!(error_of(Code::ERROR_NOT_SUPPORTED), Error::Unsupported { .. }));
}

#[test]
fn codes_that_only_hip_has_are_understood() {
    assert!(matches!(error_of(Code::HIP_RUNTIME_MEMORY), Error::OutOfMemory { .. }));
    assert!(matches!(error_of(Code::HIP_INVALID_DEVICE_POINTER), Error::Invalid { .. }));
    assert!(matches!(error_of(Code::HIP_INVALID_PITCH), Error::Invalid { .. }));
    assert!(matches!(error_of(Code::HIP_INSUFFICIENT_DRIVER), Error::Unsupported { .. }));
}

#[test]
fn a_function_the_driver_lacks_is_named_with_the_version_that_brought_it() {
    let text = error_of(Code::MISSING).to_string();
    assert!(text.contains("the driver has no cuMemAlloc, which CUDA 3.2 introduced"), "{text}");
}
