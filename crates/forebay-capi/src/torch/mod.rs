//! forebay within PyTorch, and beside it within CuPy, Numba and RMM: one pool for each GPU serves all of
//! them, and tags tell who has what.
//!
//! ```text
//!   serve     the way of a request, from any of them
//!   hooks     what else PyTorch calls: empty_cache, record_stream, ...
//!   captures  private pools for CUDA graphs
//!   relaxed   calls of the driver while a graph is captured
//!   filter    a std::function that says which streams are captured
//!   thrown    torch.OutOfMemoryError, thrown from here
//!   faces     what CuPy, Numba and RMM call
//!   record    what was allocated and freed, one by one
//!   figures   all of it as JSON, for the Python package
//! ```
//!
//! The Python package installs all of it (`forebay.torch.install()`). By hand, without what the Python
//! package adds:
//!
//! ```python
//! alloc = torch.cuda.memory.CUDAPluggableAllocator(
//!     "libforebay_capi.so", "forebay_torch_alloc", "forebay_torch_free")
//! torch.cuda.memory.change_current_allocator(alloc)
//! ```
//!
//! So installed, PyTorch takes the null of a request that was refused for memory; inside a
//! `torch.cuda.MemPool` it does not.

mod captures;
mod faces;
mod figures;
mod filter;
mod hooks;
mod record;
mod relaxed;
mod serve;
mod thrown;
mod watch;

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use forebay::Pool;

use self::serve::Face;
use self::thrown::throw_noted;
use crate::error::{contained, note};
use crate::{fork, pools};

pub use self::captures::{
    PoolNumber, forebay_torch_begin_allocate_to_pool, forebay_torch_end_allocate_to_pool,
    forebay_torch_release_pool,
};
pub use self::faces::{
    forebay_face_alloc, forebay_face_configure, forebay_face_configure_undo,
    forebay_face_forget_stream, forebay_face_free, forebay_face_has_pool, forebay_face_memory_info,
    forebay_face_record_use, forebay_face_trim,
};
pub use self::figures::{
    forebay_torch_figures, forebay_torch_layout, forebay_torch_records, forebay_torch_reset_peaks,
};
pub use self::filter::Function;
pub use self::hooks::{
    forebay_torch_base_allocation, forebay_torch_init, forebay_torch_memory_fraction,
    forebay_torch_record_stream, forebay_torch_reset,
};
pub use self::record::{Ask, forebay_torch_record};
pub use self::thrown::forebay_torch_errors_from;

static TORCH: Face = Face::new("torch");

/// Does `work` as [`contained`] does, but nothing in a forked child: `otherwise`, with the reason noted,
/// before any lock is taken.
fn guarded<R: Copy>(otherwise: R, work: impl FnOnce() -> R) -> R {
    contained(otherwise, move || match fork::refuse() {
        Ok(()) => work(),
        Err(failure) => {
            note(&failure);
            otherwise
        }
    })
}

/// Has every request refused from now on: the process is a forked child. A store and nothing else.
pub(crate) fn refuse_all() {
    watch::WATCHED.fetch_or(watch::FORKED, Ordering::Relaxed);
}

/// The pool of GPU `device` that PyTorch and the others have, made where there is none yet. For crates
/// over this one that are to share it.
pub fn process_pool(device: c_int) -> Result<Pool, String> {
    pools::of(device).cloned()
}

/// At least `size` bytes of GPU `device`, to be used in the order of `stream`, from the pool of the
/// process or, while a graph is captured on `stream`, from the graph's. Null where there are none, with
/// the reason in [`forebay_last_error`](crate::error::forebay_last_error), and where `size` is 0.
///
/// # Safety
///
/// * `stream` is a stream of that GPU as CUDA names it, and is not destroyed while blocks allocated or
///   freed on it are in use.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    serve::allocate::<0>(size, device, stream, TORCH.tag())
}

/// As [`forebay_torch_alloc`], for callers that take whatever comes for memory: what is refused is
/// thrown, as `torch.OutOfMemoryError` where memory is what is missing and as `RuntimeError` otherwise.
/// Only where [`forebay_torch_errors_from`] has found no way to throw, null comes back.
///
/// # Safety
///
/// * As for [`forebay_torch_alloc`]; the caller is C++, which catches what is thrown.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_alloc_or_throw(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    let block = serve::allocate::<1>(size, device, stream, TORCH.tag());
    if block.is_null() {
        throw_unless_nothing(size);
    }
    block
}

/// Throws why there is no block; where none was asked for, there is nothing to say.
#[cold]
#[inline(never)]
fn throw_unless_nothing(size: isize) {
    if size != 0 {
        throw_noted(serve::last_refusal());
    }
}

/// Gives back a block of [`forebay_torch_alloc`], in the order of `stream`. Null is ignored, and so is
/// the size. What is no live block changes nothing; the reason is in
/// [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * As for [`forebay_torch_alloc`]; nothing but what was enqueued on `stream` before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_free(
    block: *mut c_void,
    _size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    contained((), move || {
        serve::free(block, device, stream);
    });
}

/// Whether [`forebay_torch_alloc_or_throw`] can throw: 1, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_can_throw() -> c_int {
    c_int::from(thrown::can_throw())
}
