//! What the calls of a pool do, over all its rooms. Each file extends [`Shared`](super::shared::Shared) with one kind of
//! call; state belongs to the rooms below, so that nothing here is locked that is not theirs.
//!
//! ```text
//!   allocate ── fast_path   this thread's magazine for the stream   no lock, no atomic exchange
//!            ── heap_path   this stream's lowest hole               the heap's lock
//!            ── request ── slow_path   the ladder                   the backing's lock, the driver
//!                       └─ reclaim     waiting for the device       no lock
//!   free     ── fast_path ── heap_path ── request (checked blocks, other streams' uses)
//! ```

pub(in crate::pool) mod block_pages;
pub(in crate::pool) mod checked;
pub(in crate::pool) mod end;
pub(in crate::pool) mod fast_path;
pub(in crate::pool) mod feasibility;
pub(in crate::pool) mod heap_path;
pub(in crate::pool) mod observe;
pub(in crate::pool) mod reclaim;
pub(in crate::pool) mod registry;
pub(in crate::pool) mod report;
pub(in crate::pool) mod request;
pub(in crate::pool) mod settings;
pub(in crate::pool) mod slow_path;
pub(in crate::pool) mod stream_end;
pub(in crate::pool) mod thread_end;
pub(in crate::pool) mod upkeep;
