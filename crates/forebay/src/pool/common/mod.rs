//! Types that every other room of the pool uses: options, limits, the log of driver calls, waiting. None of
//! the pool's locks is taken here. The call log, the history and the list of peers have locks of their own, which are held
//! to read or append.

pub(in crate::pool) mod backing_kind;
pub(in crate::pool) mod callback_guard;
pub(in crate::pool) mod capture;
pub(in crate::pool) mod counts;
pub(in crate::pool) mod device_memory;
pub(in crate::pool) mod event;
pub(in crate::pool) mod free_block;
pub(in crate::pool) mod group;
pub(in crate::pool) mod limits;
pub(in crate::pool) mod log;
pub(in crate::pool) mod options;
pub(in crate::pool) mod sizes;
pub(in crate::pool) mod step;
pub(in crate::pool) mod upkeep_state;
pub(in crate::pool) mod wait;
