//! Arguments of copies, checked: ranges, lengths and devices.

use core::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use forebay_hal::{Call, Device, invalid};

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

/// Fails unless `given` elements are as many as the `due` ones on the other side.
pub(crate) fn check_length(argument: &'static str, given: usize, due: usize) -> Result<()> {
    if given == due {
        return Ok(());
    }
    let allowed = format!("{due} elements, as many as the other side has");
    Err(invalid(Call::Copy, argument, format!("{given} elements"), allowed).into())
}

/// Fails unless `given` is the device that the other side is on.
pub(crate) fn check_device(given: &Arc<dyn Device>, due: &Arc<dyn Device>) -> Result<()> {
    if core::ptr::addr_eq(Arc::as_ptr(given), Arc::as_ptr(due)) {
        return Ok(());
    }
    let given = format!("elements on {}", given.descriptor());
    let allowed = format!(
        "elements on {}, opened by the same call; TransferEngine::copy_between copies between devices",
        due.descriptor()
    );
    Err(invalid(Call::Copy, "device", given, allowed).into())
}
