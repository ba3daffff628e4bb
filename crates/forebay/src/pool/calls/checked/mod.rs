//! Calls of a pool whose debug checks are on. The state of the checks, and its locks,
//! are in `debug/`.

pub(in crate::pool) mod blocks;
pub(in crate::pool) mod guard;
pub(in crate::pool) mod quarantine;
pub(in crate::pool) mod strict;
pub(in crate::pool) mod unclean;
