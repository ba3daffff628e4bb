//! Reads, converts and replays recordings of what programs allocate.
//!
//! ```text
//!   files       CSV, RMM log, PyTorch snapshot, our own ──┐
//!   running     a Recorder beside a pool, its history ──┤
//!   in memory                                           Trace ──► statistics, analysis
//!                                                         │
//!   replay      a Player for each allocator:  ◄───────────┘
//!                  forebay's own pool, and
//!                  models of others (direct, pow2, torch, torch-expandable) on any device
//!
//!   workload    named sequences for benchmarks, as traces and as scripts
//! ```
//!
//! A [`Trace`] holds every allocation and free of a run, in order, with the requested sizes. [`format`](mod@format)
//! reads files from many tools and trusts none of them. [`replay`](fn@replay) plays a recording on a [`Player`] and
//! reports what it took. [`models`] has players that behave like other allocators, so any machine can show what a run
//! would need under each.
//!
//! ```
//! use forebay_core::Bytes;
//! use forebay_sim::{MemoryModel, SimMachine};
//! use forebay_trace::{Model, ReplayOptions, replay, sample};
//!
//! let trace = sample::gpt2_train()?;
//! let machine = SimMachine::builder()
//!     .memory(MemoryModel::Phantom)
//!     .capacity(Bytes::gib(24))
//!     .checked(false)
//!     .build()?;
//! let mut player = Model::Torch.player(machine.device(0).ok_or("no device")?)?;
//! let reports = replay(&trace, &mut *player, ReplayOptions::new().passes(1))?;
//! assert_eq!(format!("{:.4}", reports[0].ratio()), "1.1263");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

pub mod analysis;
mod budget;
mod fit;
pub mod format;
mod holes;
pub mod models;
mod named;
mod pool;
mod record;
mod replay;
pub mod sample;
mod trace;
pub mod workload;

pub use analysis::Analysis;
pub use budget::WorkBudget;
pub use fit::Fit;
pub use format::{Format, FormatError, Position, ReadOptions};
pub use models::Model;
pub use named::UnknownName;
pub use pool::PoolPlayer;
pub use record::{AttachError, Recorder, trace_of_history, trace_of_pool};
pub use replay::{
    AddressedPlayer, DriverUse, FreeOrder, Latency, Mismatch, Moment, NoData, PassReport, Player,
    ReplayError, ReplayOptions, Verdict, Verifier, replay,
};
pub use trace::{
    BlockIndex, Event, InvalidEvent, SourceNotes, Statistics, StreamIndex, Trace, TraceBuilder,
    Transfer, TransferDirection,
};
