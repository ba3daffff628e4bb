//! The policy of forebay: what to do with device memory, separate from how to do it.
//!
//! It contains quantities that cannot overflow silently, size classes with bounded waste, the address
//! space of a pool with its holes and plans, magazines, arenas, pressure levels, and the order of transfers. The code is pure: no
//! device, no thread, no clock, no unsafe code. The same inputs give the same decisions on every machine,
//! under a debugger or a model checker.
//!
//! ```
//! use forebay_core::{Alignment, Bytes, SizeClasses};
//!
//! let asked = Bytes::new(1_000_000);
//! let block = SizeClasses::Geometric.round(asked)?;
//! assert!(block >= asked && block.is_aligned_to(Alignment::new(512)?));
//! # Ok::<(), forebay_core::QuantityError>(())
//! ```
#![forbid(unsafe_code)]

mod address;
pub mod address_space;
mod arena;
mod bytes;
mod callback_budget;
mod coherence;
mod count;
mod decay;
mod id;
mod magazine;
pub mod pressure;
mod quantity_error;
mod random;
mod size_class;
pub mod transfer;

pub use address::{Address, Span};
pub use arena::{Bump, BumpBlock, BumpFull, BumpGrowth, BumpMark, BumpStale, BumpUsage};
pub use bytes::{Alignment, Bytes, GIB, KIB, MIB, PageSize, RoundedUp, TIB, parse_decimal};
pub use callback_budget::CallbackBudget;
pub use coherence::{BufferState, Coherence, Contents, Replica, Update, UpdateKind};
pub use count::{counted, steers_display};
pub use decay::Decay;
pub use id::{DeviceOrdinal, Serial, StreamId};
pub use magazine::{Magazine, Tally};
pub use quantity_error::QuantityError;
pub use random::Random;
pub use size_class::{SizeClasses, round_by_an_eighth};
