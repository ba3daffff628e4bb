//! forebay for C, for C++, and for whatever else speaks C.
//!
//! ```text
//!   C, C++, ctypes, ...      forebay.h (written from these sources), forebay.hpp (by hand)
//!      │
//!   functions, one file for each subject:  device  stream  event  pool  callback  block  pinned  upkeep
//!      │                                   statistics  trace  transfer  engine  arena  buffer  shared  tag  version
//!   torch         the allocator of PyTorch, CuPy, Numba and RMM
//!   device_pools  the process's pool of each GPU, and a cache of it for each thread
//!   page_pool     the pool of pinned memory of each device
//!   text, sized   arguments and results in C's memory
//!   error         the message of each thread's last error; panics and forked children become errors
//!   fork          makes every call fail in a forked child
//!   table         handles: numbers with a generation, so that a closed handle is detected
//!   slow_path     what sends a request of PyTorch and the others down the slow path
//!   status        a status for each call
//! ```
//!
//! No two files import each other, directly or through others: the table and what is below the functions knows none of
//! their types.
//!
//! Every function that can fail gives a [`forebay_status`](status::forebay_status), and
//! [`forebay_last_error`](error::forebay_last_error) has the words. Objects are named by handles: a
//! handle that is zero, closed, of another kind or made up is refused and never dereferenced. No panic
//! leaves a function of this library.
//!
//! PyTorch's pluggable allocator calls [`torch::forebay_torch_alloc`] and
//! [`torch::forebay_torch_free`].
//!
//! # Safety
//!
//! What callers of the unsafe functions promise of each pointer, beside what its function says: it is null, or
//!
//! * a text that ends with a zero byte,
//! * an array of as many values as the parameter after it says, which nobody writes during the call,
//! * where a result can be written, and nobody else uses it during the call; a structure there has its `struct_size`.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]
#![allow(clippy::missing_safety_doc, reason = "what holds for every pointer is said above, once")]
#![allow(non_camel_case_types, reason = "the names are C's")]

pub mod arena;
pub mod block;
pub mod buffer;
pub mod callback;
pub mod device;
mod device_pools;
pub mod engine;
pub mod error;
pub mod event;
mod fork;
mod page_pool;
pub mod pinned;
pub mod pool;
pub mod shared;
mod sized;
mod slow_path;
pub mod statistics;
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
