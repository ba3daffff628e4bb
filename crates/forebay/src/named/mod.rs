//! Named shared buffers: memory that several processes have at once, on the host or on a GPU.
//!
//! ```text
//!   process A ─┐                                    ┌─ header: type, length, creator (sealed; the lock)
//!   process B ─┼── socket \0forebay/UID/NAME ──> ───┼─ memory: a page of the device
//!   process C ─┘   listening, in every process      └─ the listening socket itself
//! ```
//!
//! [`Memory::shared`](crate::buffer::Memory::shared) creates a buffer, and
//! [`Memory::open_shared`](crate::buffer::Memory::open_shared) opens it:
//!
//! ```
//! use forebay::buffer::Memory;
//!
//! let memory = Memory::host()?; // Memory::new(&CudaDevice::open(0)?)? for memory of the first GPU
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
//! A name is a listening socket that every party has. An opener gets, from whichever party answers, the memory, the header
//! and the socket itself, and is a party then. So the name lives exactly as long as any party, in whatever order they end
//! and however: no file is left behind, no party is special, and kill -9 of any leaves the others' data as it is. A thread
//! of each process answers openers; it begins with the first shared buffer of the process and ends with the last.
//!
//! Names are those of one user, of the machine or container: processes in another network namespace do not see them.
//! [`SharedOptions::any_user`] is for users that trust each other.
//!
//! # Forks
//!
//! A child of `fork` is not a party: it closes the socket and cannot use the buffer. It opens the buffer itself, with a
//! device of its own. A child made by a bare `clone` call keeps the name alive, and does not answer.
//!
//! # Locks
//!
//! `SERVICE` in `service.rs` guards the list of the process's buffers and is held while an opener is answered, which never
//! waits. No call of a device is made under it.

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
