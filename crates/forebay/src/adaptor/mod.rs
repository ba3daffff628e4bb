//! Adaptors: allocators that add one function each to another allocator.
//!
//! ```text
//!   program ── Counted ── Limited ── Tracked ── Pool         in any order, each as often as needed
//! ```
//!
//! * [`Limited`] limits the bytes that are live.
//! * [`Counted`] counts blocks and bytes, with their peaks.
//! * [`Logged`] writes a line for each operation, in the format of RMM.
//! * [`Tracked`] lists live blocks, with their age, label and call stack.
//! * [`Failing`] fails requests on demand, to test how a program reacts.
//! * [`Aligned`] aligns every block more strictly than requested.
//!
//! All follow the same rules. An error of the inner allocator passes through unchanged and leaves the figures
//! unchanged. An adaptor accounts only for blocks that were allocated through it: it passes the free of any other block
//! on without counting it. Blocks of no bytes do not count.
//!
//! ```
//! use forebay::adaptor::{Counted, Limited, Tracked};
//! use forebay::{Allocate, Bytes, HostDevice, Pool, Request, StreamHandle};
//!
//! let device = HostDevice::open()?;
//! let memory = Counted::new(Limited::new(Tracked::new(Pool::new(&device)?), Bytes::mib(8)));
//! let block = memory.allocate_request(Request::new(Bytes::mib(6), StreamHandle::DEFAULT))?;
//! assert!(memory.allocate_request(Request::new(Bytes::mib(6), StreamHandle::DEFAULT)).is_err());
//! assert_eq!(memory.counts().failed_allocations, 1);
//! memory.free(block.address(), StreamHandle::DEFAULT)?;
//! assert!(memory.inner().inner().leaks().is_empty());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod align;
mod count;
mod fail;
mod ledger;
mod limit;
mod log;
#[cfg(test)]
mod tests;
mod track;

pub use align::Aligned;
pub use count::{Counted, Counts};
pub use fail::{FailAs, FailWhen, Failing};
pub use limit::Limited;
pub use log::Logged;
pub use track::{Leaks, LiveBlock, Tracked, labelled};
