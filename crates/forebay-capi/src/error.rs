//! Why the last call on this thread failed.

use core::any::Any;
use core::ffi::c_char;
use core::fmt::Display;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fork;
use crate::status::{Failure, forebay_status as Status};

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Notes why a call failed.
pub(crate) fn note(reason: &dyn Display) {
    // Nothing that forebay says has a zero byte in it.
    let text = CString::new(reason.to_string().replace('\0', " ")).ok();
    // A thread that is about to end has nobody to tell.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Does `work`; a panic in it is noted, and gives `otherwise`.
#[inline(always)]
pub(crate) fn contained<R>(otherwise: R, work: impl FnOnce() -> R) -> R {
    // What a panic leaves behind is the pool's to keep whole, and it does.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(panic) => {
            note_panic(panic);
            otherwise
        }
    }
}

#[cold]
#[inline(never)]
fn note_panic(panic: Box<dyn Any + Send>) {
    note(&format_args!("a defect in forebay: {}", said(&*panic)));
    // What was thrown may throw again when it goes.
    if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        core::mem::forget(again);
    }
}

fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic")
}

/// Does what a function of the library is about, and says what it came to: what fails is noted, in a
/// forked child nothing is done, and a panic goes no further.
pub(crate) fn answer(work: impl FnOnce() -> Result<(), Failure>) -> Status {
    contained(Status::Defect, || match fork::refuse().and_then(|()| work()) {
        Ok(()) => Status::Ok,
        Err(failure) => refused(&failure),
    })
}

/// Notes a failure; gives its status.
#[cold]
#[inline(never)]
pub(crate) fn refused(failure: &Failure) -> Status {
    note(failure);
    failure.status
}

/// Why the last call on this thread that failed did: text that ends with a zero byte, good until the
/// next call that fails on this thread. Empty where none has failed. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_deref().map(CStr::as_ptr));
    text.ok().flatten().unwrap_or(c"".as_ptr())
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
        assert_eq!(answer(|| panic!("number {}", 7)), Status::Defect);
        assert_eq!(last(), "a defect in forebay: number 7");
        assert_eq!(answer(|| std::panic::panic_any(Bad)), Status::Defect);
        assert_eq!(last(), "a defect in forebay: a panic");
        assert_eq!(answer(|| Err(Failure::new(Status::Busy, "a\0b"))), Status::Busy);
        assert_eq!(last(), "a b");
        assert_eq!(answer(|| Ok(())), Status::Ok);
        assert_eq!(last(), "a b", "what went well changes nothing");
    }
}
