//! Forked children.
//!
//! Nothing that a parent opened can be used in a child, on any device (`forebay_sync::fork` has the reasons):
//! every call that would is refused with `FOREBAY_STATUS_FORKED`, before any lock is taken. A process that
//! forks first and opens its first device afterwards is not a child in this sense.
//!
//! The fast paths do not check for a fork. Instead the hook below runs in every child and invalidates all
//! handles: the fast path fails as for any closed handle, and the slow path calls [`check`], before it asks the table.

use core::ffi::CStr;
use core::sync::atomic::Ordering;

use forebay_sync::fork::set_child_hook;

use crate::slow_path::{FLAGS, FORKED, forked};
use crate::status::{Failure, forebay_status as Status};
use crate::table;

/// Runs in every child. Any lock may be held for ever there, so this only stores to atomics.
static IN_CHILD: fn() = || {
    FLAGS.fetch_or(FORKED, Ordering::Relaxed);
    table::invalidate_all();
};

/// Makes children that are forked from now on refuse every call. To be called before anything is opened.
pub(crate) fn register() {
    set_child_hook(&IN_CHILD);
}

/// Why every call is refused in a forked child.
const REASON: &CStr =
    c"this process was forked from one that had opened a device, and nothing of that is its own: \
    open devices after the fork, or start the child by exec";

/// An error in a forked child. Allocates nothing: a lock of the program's allocator may be held for ever there.
pub(crate) fn check() -> Result<(), Failure> {
    let Some(reason) = reason() else { return Ok(()) };
    Err(Failure::new(Status::Forked, reason.to_str().unwrap_or_default()))
}

/// The last error of every thread of a forked child.
pub(crate) fn reason() -> Option<&'static CStr> {
    forked().then_some(REASON)
}
