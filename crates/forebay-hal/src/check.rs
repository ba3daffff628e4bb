//! Argument checks that devices share, so that the same mistake gets the same message.

use core::fmt::Display;

use forebay_core::{Address, Alignment, Bytes, Span};

use crate::{Call, Error, Result};

/// Builds an [`Error::Invalid`] from its parts.
pub fn invalid(
    call: Call,
    argument: &'static str,
    given: impl Display,
    allowed: impl Display,
) -> Error {
    Error::Invalid {
        call,
        argument,
        given: given.to_string().into(),
        allowed: allowed.to_string().into(),
    }
}

/// Returns an error for a size of 0 bytes, for calls where that is meaningless.
pub fn nonzero(call: Call, argument: &'static str, size: Bytes) -> Result<Bytes> {
    if size.is_zero() {
        return Err(invalid(call, argument, "0 B", "1 byte or more"));
    }
    Ok(size)
}

/// Returns an error for a size of 0 bytes, and for one that is not a multiple of `unit`.
pub fn multiple(call: Call, argument: &'static str, size: Bytes, unit: Alignment) -> Result<()> {
    nonzero(call, argument, size)?;
    if size.is_aligned_to(unit) {
        return Ok(());
    }
    let allowed = format!("a multiple of {unit} ({} B)", unit.get());
    Err(invalid(call, argument, format!("{} B", size.get()), allowed))
}

/// The span of `size` bytes at `address`; an error if it would pass the end of the address space.
pub fn valid_span(
    call: Call,
    argument: &'static str,
    address: Address,
    size: Bytes,
) -> Result<Span> {
    Span::new(address, size).map_err(|error| Error::quantity(call, argument, &error))
}
