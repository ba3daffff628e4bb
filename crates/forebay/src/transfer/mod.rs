//! Transfers between ordinary host memory and a device, through a ring of pinned memory that several threads fill and
//! empty.
//!
//! ```text
//!   upload     host memory ── threads copy ──> slots of pinned memory ── the device copies ──> device memory
//!   download   device memory ── the device copies ──> slots ── threads copy ──> host memory
//! ```
//!
//! A driver moves ordinary memory at a fraction of the bus speed, because a single thread copies it into pinned memory.
//! An engine uses several threads, which copy pieces while the device transfers earlier ones: in both directions at
//! once, the most urgent transfer first. The device copies pinned memory directly.
//!
//! ```
//! use forebay::transfer::TransferEngine;
//! use forebay::{HostDevice, Pool};
//!
//! let device = HostDevice::open()?; // CudaDevice::open(0)? for the first GPU
//! let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
//! let array = pool.default_stream().uninit::<f32>(1_000_000)?;
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
//! A transfer starts after the work that was enqueued on the array's stream before [`submit`](Transfer::submit).
//! [`Ticket::wait`] waits on the host until it is done. [`Ticket::order`] returns an upload's memory as soon as the
//! last piece is handed to the device, and makes later work on the array's stream wait for it on the device.
//!
//! A ticket owns the memory of its transfer, and a [scope](TransferEngine::scope) ends after all its transfers, so no
//! copy touches freed memory. Dropping a ticket cancels its transfer; the engine keeps the memory until no copy uses
//! it.
//!
//! # Compressed data
//!
//! [`Compressed`] holds data as LZ4 blocks. [`TransferEngine::upload_compressed`] sends them as they are and decodes
//! them on the device, or decodes them on the host if the device cannot.
//!
//! # Failures
//!
//! Transient errors of device calls are retried, with growing delays. Any other error ends the transfer: no further
//! piece starts, and the memory is returned with the error once nothing uses it. Pieces copied by then are kept; the
//! rest of the destination is undefined. [Cancelling](Ticket::cancel) works the same way.

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
mod file;
mod files;
mod host_end;
mod job;
mod options;
mod owned;
mod part;
#[doc(hidden)]
pub mod raw;
mod region;
mod scope;
mod state;
mod statistics;
mod ticket;
mod worker;

#[cfg(test)]
mod tests;

pub(crate) use builder::Endpoints;
pub(crate) use file::upload_ranges;
pub(crate) use files::{Files, read_at};
pub(crate) use job::Job;

pub use batch::BatchTicket;
pub use builder::Transfer;
pub use calibration::Calibration;
pub use compressed::{Compressed, Decoder};
pub use decode::{CompressedTicket, CompressedUpload, DecoderTimes};
pub use engine::TransferEngine;
pub use forebay_core::transfer::{Backoff, BlockStatus, CompressedError};
pub use host_end::{HostSink, HostSource};
pub use options::TransferOptions;
pub use region::Region;
pub use scope::{Scope, ScopedTicket};
pub use statistics::{DirectionStatistics, Progress, TransferEvent, TransferStatistics};
pub use ticket::{Ticket, TicketFuture};
