//! forebay as the allocator of PyTorch, CuPy, Numba and RMM: one pool for each GPU serves all of them, and tags
//! tell which library has how much.
//!
//! ```text
//!   allocate    allocating and freeing, for any of them
//!   relaxed     driver calls while a graph is captured
//!   private     private pools: of CUDA graphs and of torch.cuda.MemPool
//!   origins     the GPU, stream and pool of blocks, which PyTorch frees by their address alone
//!   adapter     what the adapter calls, the C++ class that is PyTorch's allocator
//!   layout      segments and blocks, for snapshots and graph trees
//!   pinned      pinned host memory, for data loaders
//!   sharing     blocks that other processes and other GPUs use
//!   figures     what pools have counted, under PyTorch's names
//!   statistics  all figures of a GPU
//!   clients     what CuPy, Numba and RMM call
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

mod adapter;
mod allocate;
mod clients;
mod figures;
mod layout;
mod origins;
mod pinned;
mod private;
mod relaxed;
mod sharing;
mod statistics;

use core::ffi::c_int;

use forebay::Pool;

use crate::device_pools;

pub use self::adapter::{
    DeviceMemory, forebay_torch_allocate, forebay_torch_allocate_in, forebay_torch_begin,
    forebay_torch_count_outside, forebay_torch_deallocate, forebay_torch_drop_unused,
    forebay_torch_empty_cache, forebay_torch_end, forebay_torch_fraction, forebay_torch_growth,
    forebay_torch_is_out_of_memory, forebay_torch_memory, forebay_torch_record_stream,
    forebay_torch_release, forebay_torch_retain, forebay_torch_set_fraction,
    forebay_torch_use_count,
};
pub use self::allocate::{forebay_torch_alloc, forebay_torch_free};
pub use self::clients::{
    forebay_face_alloc, forebay_face_configure, forebay_face_configure_undo,
    forebay_face_forget_stream, forebay_face_free, forebay_face_has_pool, forebay_face_memory_info,
    forebay_face_record_use, forebay_face_trim,
};
pub use self::figures::{DeviceFigures, Figure};
pub use self::layout::{
    BlockInfo, SegmentInfo, Visit, forebay_torch_find, forebay_torch_restore, forebay_torch_walk,
};
pub use self::pinned::{
    forebay_torch_pinned_alloc, forebay_torch_pinned_free, forebay_torch_pinned_record,
    forebay_torch_pinned_trim,
};
pub use self::private::PoolNumber;
pub use self::sharing::{
    ExportedPage, VisitPage, forebay_torch_allocate_shareable, forebay_torch_enable_peer,
    forebay_torch_export,
};
pub use self::statistics::{
    forebay_torch_figures, forebay_torch_reset_peaks, forebay_torch_reset_totals,
    forebay_torch_stats,
};

/// The pool of GPU `device` that PyTorch and the others share, created by the first call. For crates that use
/// this one and share the pool.
pub fn process_pool(device: c_int) -> Result<Pool, String> {
    device_pools::pool(device).cloned()
}
