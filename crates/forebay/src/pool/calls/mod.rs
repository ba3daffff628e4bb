//! The calls of a pool. Each file extends [`Shared`](super::shared::Shared) with one kind of call. The state and its
//! locks belong to the rooms below; nothing here has a lock of its own.
//!
//! ```text
//!   allocate ── fast_path   this thread's magazine for the stream   no lock, no atomic exchange
//!            ── heap_path   this stream's lowest hole               heap lock
//!            ── request ── slow_path   the ladder                   backing lock, driver calls
//!                       └─ reclaim     wait for the device          no lock
//!   free     ── fast_path ── heap_path ── request (debug checks, uses on further streams)
//! ```

pub(in crate::pool) mod block_pages;
pub(in crate::pool) mod checked;
pub(in crate::pool) mod end;
pub(in crate::pool) mod fast_path;
pub(in crate::pool) mod feasibility;
pub(in crate::pool) mod heap_path;
pub(in crate::pool) mod monitored;
pub(in crate::pool) mod observe;
pub(in crate::pool) mod peers;
pub(in crate::pool) mod post_mortem;
pub(in crate::pool) mod reclaim;
pub(in crate::pool) mod recorded;
pub(in crate::pool) mod registry;
pub(in crate::pool) mod report;
pub(in crate::pool) mod request;
pub(in crate::pool) mod restore;
pub(in crate::pool) mod settings;
pub(in crate::pool) mod slow_path;
pub(in crate::pool) mod stream_end;
pub(in crate::pool) mod thread_end;
pub(in crate::pool) mod told;
pub(in crate::pool) mod upkeep;
