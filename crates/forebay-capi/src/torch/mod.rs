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
//!
//! # Safety
//!
//! Callers of the unsafe functions promise that a stream is one of that GPU as CUDA names it, and is not destroyed while
//! blocks of it are in use; that work which uses a block was enqueued on its stream, or on one that was recorded for it,
//! before the block is freed; and that functions may be called with their context, and throw nothing.

mod adapter;
mod allocate;
mod clients;
mod counters;
mod layout;
mod origins;
mod pinned;
mod private;
mod relaxed;
mod sharing;
mod statistics;

pub use self::adapter::*;
pub use self::allocate::{forebay_torch_alloc, forebay_torch_free};
pub use self::clients::*;
pub use self::counters::{DeviceStatistics, Figure};
pub use self::layout::*;
pub use self::pinned::*;
pub use self::private::PoolNumber;
pub use self::sharing::*;
pub use self::statistics::*;

/// The pool of GPU `device` that PyTorch and the others share, created by the first call.
pub fn process_pool(device: core::ffi::c_int) -> Result<forebay::Pool, String> {
    crate::device_pools::pool(device).cloned().map_err(|failure| failure.to_string())
}
