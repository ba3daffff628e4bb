//! What threads have to themselves: magazines of free blocks, one for each stream, behind the thread's gate. No lock.
//!
//! ```text
//!   thread ── gate ── ThreadCaches ── ThreadCache (stream A) ── magazine: small blocks by size, one large block
//!                                  └─ ThreadCache (stream B) ── magazine
//! ```

pub(in crate::pool) mod cached_block;
pub(in crate::pool) mod claimed_as;
pub(in crate::pool) mod thread_cache;
