//! forebay for C and whatever speaks it.
//!
//! So far what PyTorch's pluggable allocator calls: [`torch::forebay_torch_alloc`] and
//! [`torch::forebay_torch_free`], and why the last of them failed on this thread.
//!
//! No panic leaves a function of this library, and none of them looks at memory that it was not handed.

pub mod error;
mod pools;
pub mod torch;
