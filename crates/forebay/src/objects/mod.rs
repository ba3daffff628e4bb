//! Pools of reusable objects and arrays.
//!
//! An [`ObjectPool`] keeps objects that are expensive to make and hands them out again. An [`ArrayPool`] does the same
//! for arrays, by size. Neither needs a device.
//!
//! ```text
//!   get ──> thread cache ──> idle objects, shared ──> create hook      validate hook before an object is handed out
//!            last returned     evicted last first                      reset hook and size limit when it returns
//!                 ▲                    ▲
//!   return ───────┘ ── full: half ─────┘ ── at the maximum: evict one, by policy
//!
//!   max_idle  =  reserved for thread caches (at most half)  +  shared
//! ```
//!
//! A thread cache holds at most its reservation, so the number of idle objects never exceeds the maximum, and threads
//! need not count each other's objects.
//!
//! # Locks
//!
//! * One mutex per pool guards the shared idle objects. A thread takes it when its cache is empty or full, and then
//!   moves half a cache at once.
//! * A thread cache is behind the thread's gate. Its owner enters without an atomic exchange. Other threads visit it,
//!   to count or to drain, only while they hold the mutex; so a thread that holds the mutex always finds its own gate
//!   open.
//! * The order is mutex, then gate. The owner takes no lock inside its gate.
//! * **No hook and no destructor of an object runs under the mutex or inside a gate.** A panic of the program's code
//!   therefore finds the pool consistent, and hooks may use the pool.
//!
//! # Forks
//!
//! In a forked child, [`get`](ObjectPool::get) on an inherited pool fails, statistics are empty, and drops of
//! inherited pools and handles leak. No lock is taken.

mod array;
mod array_id;
mod cache;
mod error;
mod handle;
mod hooks;
mod idle;
mod object;
mod options;
mod pool;
mod shared;
mod statistics;
#[cfg(test)]
mod tests;

pub use array::{ArrayPool, ArrayPoolOptions, RentedArray};
pub use array_id::{ArrayId, RawArray};
pub use error::{ArrayError, ObjectError};
pub use handle::Pooled;
pub use object::Eviction;
pub use options::ObjectPoolOptions;
pub use pool::ObjectPool;
pub use statistics::{ArrayStatistics, Maintenance, ObjectStatistics};
