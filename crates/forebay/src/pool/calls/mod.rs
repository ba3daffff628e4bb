//! The calls of a pool. The state and its locks belong to the rooms below; nothing here has a lock of its own.
//!
//! ```text
//!   allocate ──> take ──> make_room ──> reclaim    the way of a request
//!      └─> layered ┘                               the same, if calls are checked or recorded
//!             └─> checked/guard                    with guard pages: no hole, pages for this block alone
//!   free ──> put ──> a cache, a hole, or deferred  the way back
//!      └─> layered ──> checked/blocks ──> quarantine
//! ```

pub(in crate::pool) mod allocate;
pub(in crate::pool) mod block_pages;
pub(in crate::pool) mod checked;
pub(in crate::pool) mod end;
pub(in crate::pool) mod feasibility;
pub(in crate::pool) mod flush;
pub(in crate::pool) mod free;
pub(in crate::pool) mod layered;
pub(in crate::pool) mod make_room;
pub(in crate::pool) mod monitored;
pub(in crate::pool) mod note;
pub(in crate::pool) mod observe;
pub(in crate::pool) mod peers;
pub(in crate::pool) mod post_mortem;
pub(in crate::pool) mod put;
pub(in crate::pool) mod reclaim;
pub(in crate::pool) mod registry;
pub(in crate::pool) mod report;
pub(in crate::pool) mod reported;
pub(in crate::pool) mod restore;
pub(in crate::pool) mod settings;
pub(in crate::pool) mod settle;
pub(in crate::pool) mod stream_end;
pub(in crate::pool) mod take;
pub(in crate::pool) mod thread_end;
pub(in crate::pool) mod trim;
pub(in crate::pool) mod upkeep;
pub(in crate::pool) mod uses;
pub(in crate::pool) mod waits;
