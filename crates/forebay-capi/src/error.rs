//! The last error of each thread, and panics that become errors.

use core::any::Any;
use core::ffi::{c_char, c_int};
use core::fmt::Display;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fork;
use crate::status::{Failure, forebay_status as Status};

thread_local! {
    static LAST_ERROR: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Sets this thread's last error. In a forked child it is always [`fork::reason`].
pub(crate) fn set_last_error(reason: &dyn Display) {
    if fork::reason().is_some() {
        return;
    }
    // No message of forebay's has a zero byte; one of the caller's might.
    let text = CString::new(reason.to_string().replace('\0', " ")).ok();
    // A thread that is ending reads no errors any more.
    let _ = LAST_ERROR.try_with(|last| last.replace(text));
}

/// Calls `work`; a panic becomes the last error and returns `otherwise`.
#[inline(always)]
pub(crate) fn catch_panic<R>(otherwise: R, work: impl FnOnce() -> R) -> R {
    // The pool stays consistent when a call panics.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => {
            report_panic(panic);
            otherwise
        }
    }
}

#[cold]
#[inline(never)]
fn report_panic(panic: Box<dyn Any + Send>) {
    set_last_error(&format_args!("a defect in forebay: {}", panic_message(&*panic)));
    // Dropping the payload may panic again.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        core::mem::forget(again);
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// The status of a call: does `work` unless this is a forked child, sets the last error where it fails, and
/// stops panics.
pub(crate) fn status_of(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    catch_panic(Status::Defect, || match fork::check().and_then(|()| work()) {
        Ok(()) => Status::Ok,
        Err(failure) => fail(&failure),
    })
}

/// Calls `work` as [`catch_panic`] does; in a forked child sets the last error and returns `otherwise`, before
/// any lock is taken.
pub(crate) fn guarded<R: Copy>(otherwise: R, work: impl FnOnce() -> R) -> R {
    catch_panic(otherwise, move || match fork::check() {
        Ok(()) => work(),
        Err(failure) => {
            set_last_error(&failure);
            otherwise
        }
    })
}

/// Calls `work` as [`guarded`] does: 0, or -1 with the reason as the last error.
pub(crate) fn code_of(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    guarded(-1, || match work() {
        Ok(()) => 0,
        Err(failure) => {
            set_last_error(&failure);
            -1
        }
    })
}

/// Sets the last error; returns its status.
#[cold]
#[inline(never)]
pub(crate) fn fail(failure: &Failure) -> Status {
    set_last_error(failure);
    failure.status
}

/// The message of this thread's last failed call: a string that is valid until the next call that fails
/// on this thread. Empty where none has failed; in a forked child, why every call is refused. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_last_error() -> *const c_char {
    let text = || LAST_ERROR.try_with(|last| last.borrow().as_deref().map(CStr::as_ptr)).ok();
    fork::reason().map(CStr::as_ptr).or_else(|| text()?).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: it is text that ends with a zero byte, until the next call that fails here.
        unsafe { CStr::from_ptr(forebay_last_error()) }.to_string_lossy().into_owned()
    }

    #[test]
    fn a_panic_becomes_a_status_with_its_words() {
        struct Bad;
        impl Drop for Bad {
            fn drop(&mut self) {
                panic!("on purpose, when dropped");
            }
        }
        assert_eq!(status_of(|| panic!("number {}", 7)), Status::Defect);
        assert_eq!(last(), "a defect in forebay: number 7");
        assert_eq!(status_of(|| std::panic::panic_any(Bad)), Status::Defect);
        assert_eq!(last(), "a defect in forebay: a panic");
        assert_eq!(status_of(|| Err(Failure::new(Status::Busy, "a\0b"))), Status::Busy);
        assert_eq!(last(), "a b");
        assert_eq!(status_of(|| Ok(())), Status::Ok);
        assert_eq!(last(), "a b", "what went well changes nothing");
    }
}
