//! Transfers: ordinary host memory to and from a device, through a ring of pinned memory that several threads fill and
//! empty.
//!
//! ```text
//!   upload     host memory ── threads copy ──> slots of pinned memory ── the device copies ──> device memory
//!   download   device memory ── the device copies ──> slots ── threads copy ──> host memory
//! ```
//!
//! A driver moves ordinary memory at a fraction of what its wire takes, because one thread copies it into pinned memory.
//! An engine does that with several threads, in pieces, while the device copies the pieces before: both directions at
//! once, the most urgent transfer first. Pinned memory goes straight to the device.
//!
//! ```
//! use forebay::transfer::TransferEngine;
//! use forebay::{HostDevice, Pool, StreamHandle};
//!
//! let device = HostDevice::open()?; // CudaDevice::open(0)? for the first GPU
//! let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
//! let array = pool.array::<f32>(1_000_000, StreamHandle::DEFAULT)?;
//!
//! let ticket = engine.upload(vec![1.5; 1_000_000], array).submit()?; // owned: both come back
//! // ... other work
//! let (_data, array) = ticket.wait()?;
//!
//! let mut back = vec![0.0; 1_000_000];
//! engine.scope(|transfers| transfers.download(&array, &mut back).submit().map(drop))??; // borrowed: done when it returns
//! assert_eq!(back[7], 1.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Order
//!
//! A transfer begins after the work that was enqueued on the array's stream before [`submit`](Transfer::submit).
//! [`Ticket::wait`] waits on the host until it is done. [`Ticket::order`] returns an upload's memory as soon as the last
//! piece was handed to the device, and makes later work on the array's stream wait for it on the device.
//!
//! A ticket owns what its transfer uses, and a [scope](TransferEngine::scope) ends after all transfers in it, so no copy
//! touches memory that was freed. Dropping a ticket lets the transfer go on: the engine keeps the memory until then.
//!
//! # Compressed data
//!
//! [`Compressed`] is data as LZ4 blocks. [`TransferEngine::upload_compressed`] sends them as they are and has the device
//! decode them, or decodes them on the host where the device cannot.
//!
//! # Failures
//!
//! A call of the device that may pass is tried again, with growing delays. Any other error ends the transfer: no further
//! piece begins, and the memory comes back with the error once nothing uses it. What was copied by then stays; the
//! contents of the destination are otherwise undefined. [Cancelling](Ticket::cancel) is such an end.

mod batch;
mod between;
mod builder;
mod bulk_copy;
mod calibration;
mod compare;
mod compressed;
mod copy_memory;
mod decode;
mod engine;
mod figures;
mod file;
mod host_end;
mod job;
mod monitored;
mod options;
mod owned;
mod part;
#[doc(hidden)]
pub mod raw;
mod scope;
mod state;
mod ticket;
mod worker;

#[cfg(test)]
mod tests;

pub use batch::BatchTicket;
pub use builder::{Region, Transfer};
pub use calibration::Calibration;
pub use compressed::{Compressed, Decoder};
pub use decode::{CompressedTicket, CompressedUpload, DecoderTimes};
pub use engine::TransferEngine;
pub use figures::{DirectionFigures, Progress, TransferEvent, TransferFigures};
pub use forebay_core::transfer::{Backoff, BlockStatus, CompressedError};
pub use host_end::{HostSink, HostSource};
pub use options::TransferOptions;
pub use scope::{Scope, ScopedTicket};
pub use ticket::{Ticket, TicketFuture};
