//! A simulated accelerator.
//!
//! Not a mock: it executes. It keeps the same contract as real devices, passes the same conformance suite, and shows
//! what real devices hide:
//!
//! * **Late streams.** Work runs only while a thread synchronises or queries, one piece at a time, in an order that the
//!   seed chooses among those that streams and events allow. The same calls with the same seed give the same order,
//!   with one exception: a host function that takes more than a few milliseconds runs concurrently, as it does on real
//!   devices.
//! * **Memory**, real or phantom. Real pages are memory files, so one page can have two addresses; phantom ones are
//!   only addresses, for replays of any size.
//! * **An ordering checker** that tracks what happens before what, and names the two operations of a race, in whatever
//!   order the work ran.
//! * **Faults**: the k-th call, by number or by kind, runs out of memory, fails once, or loses the device.
//! * **A cost model** with measured figures, which estimates how long a run would have taken.
//!
//! ```
//! use forebay_core::{Alignment, Bytes, Span};
//! use forebay_hal::{Fill, Memory, Pattern, Priority, StreamHandle, Streams, Transfers};
//! use forebay_sim::{Finding, SimMachine};
//!
//! let machine = SimMachine::builder().seed(1).build()?;
//! let device = machine.device(0).ok_or("no device")?;
//! let memory = device.allocate(Bytes::new(4096), Alignment::BLOCK)?;
//! let other = device.create_stream(Priority::Normal)?;
//! let fill = Fill::linear(memory, Bytes::new(4096), Pattern::U8(7))?;
//! // SAFETY: the memory is live until both fills are done.
//! unsafe { device.fill(&fill, StreamHandle::DEFAULT)? };
//! // SAFETY: as above. Nothing orders it after the first: a race.
//! unsafe { device.fill(&fill, other)? };
//! device.synchronize_device()?;
//! assert!(matches!(machine.findings().as_slice(), [Finding::Race { .. }]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod checker;
mod clock;
mod cost;
mod device;
mod engine;
mod fault;
mod finding;
mod kernel;
mod machine;

pub use cost::CostModel;
pub use device::SimDevice;
pub use fault::{Fault, FaultKind, When};
pub use finding::{Effect, Finding, Operation};
pub use kernel::{Kernel, KernelMemory};
pub use machine::{CallCounts, Census, HandleReuse, MemoryModel, SimMachine, SimOptions};
