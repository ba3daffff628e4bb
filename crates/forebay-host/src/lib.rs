//! The host as a device: always available, and the default.
//!
//! [`HostDevice`] implements the whole device contract with the machine's own memory and threads, so everything above
//! it runs and is tested without an accelerator:
//!
//! ```text
//!   plain, managed memory    fresh mappings of the system, with huge pages and NUMA policy as asked
//!   regions                  reserved addresses
//!   pages                    parts of a memory file: one page truly lies at two addresses
//!   shared pages             memory files of their own, handed over as descriptors
//!   pinned memory            mappings locked in place
//!   streams                  a queue and a thread each
//! ```
//!
//! [`system`] reads what the machine offers, and [`mapping`] wraps its memory calls.
//!
//! # Example
//!
//! ```
//! use forebay_core::{Address, Alignment, Bytes};
//! use forebay_hal::{Copy, Fill, Memory, Pattern, Location, StreamHandle, Streams, Transfers};
//! use forebay_host::HostDevice;
//!
//! let device = HostDevice::open()?;
//! let size = Bytes::new(1000);
//! let memory = device.allocate(size, Alignment::BLOCK)?;
//! let (stream, there) = (StreamHandle::DEFAULT, Location::Device(memory));
//!
//! let data: Vec<u8> = (0..250).cycle().take(1000).collect();
//! let mut back = vec![0_u8; 1000];
//! let upload = Copy::linear(there, Location::Host(Address::of_pointer(data.as_ptr())), size)?;
//! let fill = Fill::linear(memory, Bytes::new(4), Pattern::U32(u32::MAX))?;
//! let download = Copy::linear(Location::Host(Address::of_pointer(back.as_mut_ptr())), there, size)?;
//! // SAFETY: the vectors and the device memory outlive the work, which is waited for below.
//! unsafe {
//!     device.copy(&upload, stream)?;
//!     device.fill(&fill, stream)?;
//!     device.copy(&download, stream)?;
//! }
//! device.synchronize_stream(stream)?;
//! assert_eq!(back[..4], [255; 4]);
//! assert_eq!(back[4..], data[4..]);
//!
//! // SAFETY: no work uses the memory any more.
//! unsafe { device.free(memory) }?;
//! assert_eq!(device.census().allocations, 0);
//! # Ok::<(), forebay_hal::Error>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocation;
mod backing;
mod census;
mod decompression;
mod device;
mod errno;
mod file_mapping;
mod lock;
mod managed;
pub mod mapping;
mod memory;
mod numa;
mod options;
mod page;
mod pinned;
mod prefault;
mod settings;
mod sharing;
mod space;
mod stream;
pub mod system;
mod transfer;
mod virtual_memory;

pub use allocation::{HostAllocation, HostTotals, LiveAllocation};
pub use census::Census;
pub use device::HostDevice;
pub use file_mapping::{FileMapping, FileMode};
pub use numa::NumaPolicy;
pub use options::{HostOptions, HugePages};
pub use prefault::PrefaultedPages;
