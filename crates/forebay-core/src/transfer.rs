//! The policy of transfers: what is copied in which pieces, whose turn it is, how small ones are packed together, and
//! how long a failed one waits; and the format of data kept compressed. Pure functions: no thread, no clock, no memory is touched.

mod backoff;
pub mod lz4;
mod pack;
mod queue;
mod shape;
mod sparse;

#[cfg(test)]
mod tests;

pub use backoff::Backoff;
pub use lz4::{BlockStatus, CompressedError, Lz4Layout};
pub use pack::{Item, Load, Packing, Run};
pub use queue::TransferQueue;
pub use shape::{CopyEnd, CopyShape, Pace, Piece, Pieces};
pub use sparse::ranges_to_send;
