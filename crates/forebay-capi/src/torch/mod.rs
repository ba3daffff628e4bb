//! forebay as the allocator of PyTorch, CuPy, Numba and RMM: one pool for each GPU serves all of them, and tags
//! tell which library has how much.
//!
//! ```text
//!   allocate    allocating and freeing, for any of them
//!   slow_path   the flags that send a request down the slow path
//!   hooks       what else PyTorch calls: empty_cache, record_stream, ...
//!   captures    private pools for CUDA graphs
//!   relaxed     driver calls while a graph is captured
//!   filter      a std::function that says which streams are captured
//!   exceptions  torch.OutOfMemoryError, thrown from here
//!   clients     what CuPy, Numba and RMM call
//!   record      a recording of every allocation and free
//!   statistics  statistics and layout as JSON, for the Python package
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
//! Installed like that, PyTorch uses the null pointer of a failed request as memory; inside a
//! `torch.cuda.MemPool` it does not.

mod allocate;
mod captures;
mod clients;
mod exceptions;
mod filter;
mod hooks;
mod record;
mod relaxed;
mod slow_path;
mod statistics;

use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering;

use forebay::Pool;

use self::allocate::Client;
use self::exceptions::throw_last_error;
use crate::error::{catch_panic, set_last_error};
use crate::{device_pools, fork};

pub use self::captures::{
    PoolNumber, forebay_torch_begin_allocate_to_pool, forebay_torch_end_allocate_to_pool,
    forebay_torch_release_pool,
};
pub use self::clients::{
    forebay_face_alloc, forebay_face_configure, forebay_face_configure_undo,
    forebay_face_forget_stream, forebay_face_free, forebay_face_has_pool, forebay_face_memory_info,
    forebay_face_record_use, forebay_face_trim,
};
pub use self::exceptions::forebay_torch_errors_from;
pub use self::filter::Function;
pub use self::hooks::{
    forebay_torch_base_allocation, forebay_torch_init, forebay_torch_memory_fraction,
    forebay_torch_record_stream, forebay_torch_reset,
};
pub use self::record::{Ask, forebay_torch_record};
pub use self::statistics::{
    forebay_torch_figures, forebay_torch_layout, forebay_torch_records, forebay_torch_reset_peaks,
};

static TORCH: Client = Client::new("torch");

/// Calls `work` as [`catch_panic`] does; in a forked child sets the last error and returns `otherwise`, before
/// any lock is taken.
fn guarded<R: Copy>(otherwise: R, work: impl FnOnce() -> R) -> R {
    catch_panic(otherwise, move || match fork::check() {
        Ok(()) => work(),
        Err(failure) => {
            set_last_error(&failure);
            otherwise
        }
    })
}

/// Makes every request fail from now on: the process is a forked child. Only stores to an atomic.
pub(crate) fn refuse_all() {
    slow_path::FLAGS.fetch_or(slow_path::FORKED, Ordering::Relaxed);
}

/// The pool of GPU `device` that PyTorch and the others share, created by the first call. For crates that use
/// this one and share the pool.
pub fn process_pool(device: c_int) -> Result<Pool, String> {
    device_pools::pool(device).cloned()
}

/// Allocates at least `size` bytes of GPU `device`, to be used in the order of `stream`, from the
/// process's pool or, while a graph is captured on `stream`, from the graph's. Null on failure, with the
/// reason in `forebay_last_error`, and where `size` is 0.
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
    allocate::allocate::<0>(size, device, stream, TORCH.tag())
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
    let block = allocate::allocate::<1>(size, device, stream, TORCH.tag());
    if block.is_null() {
        throw_unless_empty(size);
    }
    block
}

/// Throws the last error, unless no bytes were asked for.
#[cold]
#[inline(never)]
fn throw_unless_empty(size: isize) {
    if size != 0 {
        throw_last_error(allocate::last_failure());
    }
}

/// Frees a block of `forebay_torch_alloc`, in the order of `stream`. Null is ignored, and so is the size. An
/// address that is no live block changes nothing; the reason is in `forebay_last_error`.
///
/// # Safety
///
/// * As for `forebay_torch_alloc`; only work that was enqueued on `stream` before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_torch_free(
    block: *mut c_void,
    _size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    catch_panic((), move || {
        allocate::free(block, device, stream);
    });
}

/// Whether [`forebay_torch_alloc_or_throw`] can throw: 1, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_can_throw() -> c_int {
    c_int::from(exceptions::can_throw())
}
