//! Why the last call on this thread failed.

use core::any::Any;
use core::ffi::c_char;
use core::fmt::Display;
use std::cell::RefCell;
use std::ffi::{CStr, CString};
use std::panic::{AssertUnwindSafe, catch_unwind};

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

/// Why the last call on this thread that failed did: text that ends with a zero byte, good until the
/// next call that fails on this thread. Empty where none has failed. Never null.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_last_error() -> *const c_char {
    let text = LAST.try_with(|last| last.borrow().as_deref().map(CStr::as_ptr));
    text.ok().flatten().unwrap_or(c"".as_ptr())
}
