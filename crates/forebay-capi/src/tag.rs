//! Tags: for whom a thread allocates.

use core::cell::RefCell;
use core::ffi::c_char;

use forebay::Tag;

use crate::error::status_of;
use crate::slow_path;
use crate::status::{Failure, forebay_status};
use crate::text;

thread_local! {
    /// The tags that this thread's entered tags replaced, the outermost first.
    static OUTER: RefCell<Vec<Tag>> = const { RefCell::new(Vec::new()) };
}

fn outer<R>(work: impl FnOnce(&mut Vec<Tag>) -> Result<R, Failure>) -> Result<R, Failure> {
    let ending = || Failure::new(forebay_status::Busy, "the thread is ending, and has no tags");
    OUTER.try_with(|outer| work(&mut outer.borrow_mut())).map_err(|_| ending())?
}

/// Allocates under the tag of that name, on this thread, until `forebay_tag_leave`. Tags nest. A
/// process has 254 names; any more count as "other".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_tag_enter(name: *const c_char) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let name = unsafe { text::read_str(name, "name") }?;
        let tag = Tag::named(name);
        outer(|outer| {
            outer.push(Tag::current());
            // Left by `forebay_tag_leave`, not by a drop.
            core::mem::forget(tag.enter());
            Ok(())
        })
    })
}

/// Leaves the tag that this thread entered last.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_tag_leave() -> forebay_status {
    status_of(|| {
        outer(|outer| {
            let before = outer.pop().ok_or_else(|| {
                let words = "this thread is under no tag that it could leave: enter one first";
                Failure::new(forebay_status::InvalidArgument, words)
            })?;
            core::mem::forget(before.enter());
            Ok(())
        })
    })
}

/// Calls `enter` before each request of PyTorch and the others from now on, for a language whose tags belong to tasks that
/// take turns on a thread: it puts the calling thread under the tag of its current task. Only the first call has an effect.
pub fn follow_tasks(enter: fn()) {
    slow_path::follow_tasks(enter);
}
