//! Ranges of elements, checked.

use core::ops::{Bound, Range, RangeBounds};

use forebay_hal::{Call, invalid};

use crate::{Error, Result};

/// Resolves range bounds against `length` elements.
pub(crate) fn resolve(bounds: impl RangeBounds<usize>, length: usize) -> Result<Range<usize>> {
    let start = match bounds.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&start) => start.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match bounds.end_bound() {
        Bound::Included(&end) => end.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    if start > end || end > length {
        return Err(out_of_range(&(start..end), length));
    }
    Ok(start..end)
}

/// The error for a range outside the buffer.
pub(crate) fn out_of_range(range: &Range<usize>, length: usize) -> Error {
    let given = format!("elements {} to {}", range.start, range.end);
    let allowed = format!("elements 0 to {length}, the first not after the last");
    invalid(Call::Copy, "range", given, allowed).into()
}
