//! Errors common to several handles.

use forebay_core::QuantityError;
use forebay_hal::Call;

use crate::Error;

/// The error for sizes whose sum overflows, before any allocator is called.
pub(crate) fn does_not_fit(argument: &'static str, error: &QuantityError) -> Error {
    Error::Device(forebay_hal::Error::quantity(Call::Allocate, argument, error))
}
