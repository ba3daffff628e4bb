//! What every room of a pool uses: options, limits, the log of driver calls, reports, waiting. It has no lock of the
//! pool; the few locks here are their own and are held for a moment only, to note or to read.

pub(in crate::pool) mod backing_kind;
pub(in crate::pool) mod callback;
pub(in crate::pool) mod capture;
pub(in crate::pool) mod event;
pub(in crate::pool) mod limits;
pub(in crate::pool) mod log;
pub(in crate::pool) mod options;
pub(in crate::pool) mod step;
pub(in crate::pool) mod upkeep_state;
pub(in crate::pool) mod wait;
