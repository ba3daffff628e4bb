//! Which version of the library this is, and whether a header fits it.

use core::ffi::c_char;

use crate::error::status_of;
use crate::status::{Failure, forebay_status};

/// The version of the interface that this header describes. It changes where a function or structure
/// does so that programs built before cannot go on; what is only added leaves it as it is.
pub const FOREBAY_ABI_VERSION: u32 = 0;

/// The version of this header: the first part of "0.1.0". `forebay_version` has that of the library.
pub const FOREBAY_VERSION_MAJOR: u32 = 0;
/// The second part.
pub const FOREBAY_VERSION_MINOR: u32 = 1;
/// The third part.
pub const FOREBAY_VERSION_PATCH: u32 = 0;

/// The version of the interface of the library that is loaded.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_abi_version() -> u32 {
    FOREBAY_ABI_VERSION
}

/// Whether a program that was built with a header of this version can use the library that is loaded:
/// `forebay_check_abi(FOREBAY_ABI_VERSION)`.
#[must_use = "a library that does not fit must not be called"]
#[unsafe(no_mangle)]
pub extern "C" fn forebay_check_abi(header: u32) -> forebay_status {
    status_of(|| {
        if header == FOREBAY_ABI_VERSION {
            return Ok(());
        }
        Err(Failure::new(
            forebay_status::AbiMismatch,
            format!(
                "the header has version {header} of the interface, and the library that was loaded \
                 has {FOREBAY_ABI_VERSION}: build the program again with the header of this library"
            ),
        ))
    })
}

/// The version of the library, for people: "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn forebay_version() -> *const c_char {
    const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    TEXT.as_ptr().cast()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_has_the_version_of_the_crate() {
        let header =
            format!("{FOREBAY_VERSION_MAJOR}.{FOREBAY_VERSION_MINOR}.{FOREBAY_VERSION_PATCH}");
        assert_eq!(header, env!("CARGO_PKG_VERSION"));
    }
}
