//! Errors that several handles return, and what they mean.

use forebay_core::QuantityError;
use forebay_hal::Call;

use crate::Error;

/// The error for sizes that do not add up, before anything was asked of an allocator.
pub(super) fn does_not_fit(argument: &'static str, error: &QuantityError) -> Error {
    Error::Device(forebay_hal::Error::quantity(Call::Allocate, argument, error))
}

/// Whether the same call, made again, may succeed without anything else being done.
pub(super) fn may_pass(error: &Error) -> bool {
    matches!(error, Error::Device(error) if error.may_pass())
}
