//! forebay for C, for C++, and for whatever else speaks C.
//!
//! ```text
//!   C, C++, ctypes, ...      forebay.h (written from these sources), forebay.hpp (by hand)
//!      │
//!   one function a file's subject:  device  stream  pool  block  upkeep  figures  trace
//!      │                            transfer  arena  tag  version
//!   table      handles: numbers with a generation; what is closed is known to be closed
//!   fork       a child of this process is told that nothing here is its own
//!   error      a status for each call, and its words for each thread
//! ```
//!
//! Every function that can fail gives a [`forebay_status`](status::forebay_status), and
//! [`forebay_last_error`](error::forebay_last_error) has the words. Things are named by handles: a
//! handle that is zero, closed, of another kind or made up is refused and never followed. No panic
//! leaves a function of this library.
//!
//! PyTorch's pluggable allocator calls [`torch::forebay_torch_alloc`] and
//! [`torch::forebay_torch_free`].

#![allow(non_camel_case_types, reason = "the names are C's")]

pub mod arena;
pub mod block;
pub mod device;
pub mod error;
pub mod figures;
mod fork;
pub mod pool;
mod pools;
mod sized;
pub mod status;
pub mod stream;
mod table;
pub mod tag;
pub mod text;
pub mod torch;
pub mod trace;
pub mod transfer;
pub mod upkeep;
pub mod version;
