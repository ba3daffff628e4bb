//! The front: each thread's caches of free blocks, a magazine for each stream. No lock: only the owning thread enters
//! its gate, and others shut it out first.
//!
//! ```text
//!   thread ── gate ── ThreadCaches ── ThreadCache (stream A) ── magazine: small blocks by size, one large block
//!                                  └─ ThreadCache (stream B) ── magazine
//! ```

pub(in crate::pool) mod cached_block;
pub(in crate::pool) mod claimed_as;
pub(in crate::pool) mod thread_cache;
