//! Transfer policy: how copies are cut into pieces, which one goes next, how small ones are packed together, and how
//! long a failed one waits; also the format of compressed data. Pure functions: no threads, clock or memory access.

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
