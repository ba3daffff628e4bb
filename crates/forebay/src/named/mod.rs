//! Named shared buffers: memory that several processes share, on the host or on a GPU.
//!
//! ```text
//!   process A ─┐                                    ┌─ header: type, length, creator (sealed; the lock)
//!   process B ─┼── socket \0forebay/UID/NAME ──> ───┼─ memory: a page of the device
//!   process C ─┘   listening, in every process      └─ the listening socket itself
//! ```
//!
//! [`BufferManager::shared`](crate::buffer::BufferManager::shared) creates a buffer, and
//! [`BufferManager::open_shared`](crate::buffer::BufferManager::open_shared) opens it:
//!
//! ```
//! use forebay::buffer::BufferManager;
//!
//! let memory = BufferManager::host()?; // BufferManager::new(&CudaDevice::open(0)?)? for memory of the first GPU
//! let name = "weights";
//! # let name = &format!("weights-{}", std::process::id());
//! let weights = memory.shared::<f32>(name, 1_000_000)?;
//! weights.fill(0.5)?;
//!
//! // In another process, or here:
//! let same = memory.open_shared::<f32>(name)?;
//! assert_eq!(same.to_vec()?[999_999], 0.5);
//! assert!(memory.open_shared::<u32>(name).is_err(), "another type");
//! # Ok::<(), forebay::Error>(())
//! ```
//!
//! # Names
//!
//! A name is a listening socket that every party holds. An opener gets the memory, the header and the socket itself
//! from any party, and so becomes a party. The name lives exactly as long as any party, however they end: no file is
//! left behind, no party is special, and kill -9 of one leaves the others' data intact. A thread in each process
//! answers openers; it starts with the first shared buffer and ends with the last.
//!
//! Names are per user and per machine or container: processes in another network namespace do not see them.
//! [`SharedOptions::any_user`] is for users that trust each other.
//!
//! # Forks
//!
//! A child of `fork` is not a party: it closes the socket and cannot use the buffer. It must open the buffer itself,
//! with its own device. A child made by a bare `clone` call keeps the name alive, but does not answer.
//!
//! # Locks
//!
//! `SERVICE` in `service.rs` guards the list of the process's buffers. It is held while an opener is answered, which
//! never waits. No device is called under it.

mod buffer;
pub(crate) mod bytes;
pub(crate) mod error;
#[cfg(target_os = "linux")]
mod header;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
mod mapping;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux shares by name"))]
pub(crate) mod name;
mod options;
#[cfg_attr(not(target_os = "linux"), path = "elsewhere.rs")]
mod raw;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "only Linux shares by name"))]
mod request;
#[cfg(target_os = "linux")]
mod service;
#[cfg(target_os = "linux")]
mod socket;
#[cfg(target_os = "linux")]
mod words;

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests;

pub use buffer::{Creator, SharedBuffer, SharedLock};
pub use error::SharedError;
pub use options::SharedOptions;
