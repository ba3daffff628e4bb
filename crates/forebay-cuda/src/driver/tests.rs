use forebay_hal::{Call, Error};

use super::*;
use crate::vendor::DRIVER_VARIABLE;

#[test]
fn a_library_that_is_not_there_is_a_value_that_says_so() {
    let missing = CudaDriver::load_from("libforebay-no-such-driver.so.1").unwrap_err();
    let text = missing.to_string();
    assert!(text.starts_with("no CUDA driver: tried libforebay-no-such-driver.so.1 ("), "{text}");
    assert!(text.contains("No such file") || text.contains("cannot open"), "{text}");
    assert!(text.contains("install NVIDIA's driver") && text.contains(DRIVER_VARIABLE), "{text}");
    let error = Error::from(missing);
    assert!(matches!(error, Error::Unsupported { call: Call::Open, .. }), "{error}");
}

#[test]
fn a_library_that_is_no_driver_is_named_with_what_it_lacks() {
    // The C library is everywhere, and no CUDA driver.
    let missing = CudaDriver::load_from("libc.so.6").unwrap_err();
    let text = missing.to_string();
    assert!(text.contains("libc.so.6 has no cuInit"), "{text}");
}
