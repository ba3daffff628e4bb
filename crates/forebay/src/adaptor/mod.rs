//! Adaptors: one wish each, over any allocator, and allocators themselves.
//!
//! ```text
//!   program ── Counted ── Limited ── Tracked ── Pool         in any order, each as often as needed
//! ```
//!
//! * [`Limited`]: at most so many bytes.
//! * [`Counted`]: how many, how much, how much at most.
//! * [`Logged`]: one line an operation, in the form RMM writes.
//! * [`Tracked`]: which blocks are live, since when, and who asked for them.
//! * [`Failing`]: says no on demand, to see what a program does then.
//! * [`Aligned`]: every block at a multiple of more than was asked for.
//!
//! All keep to the same rules. What the allocator beneath says, they say: an error passes through
//! as it is, and what it left unchanged leaves their figures unchanged. They account for what went
//! through them and nothing else: a block that came another way and is freed through them passes to
//! the allocator beneath, and counts for nothing. A block of no bytes is no block.
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
