//! Files of weights in the safetensors format: read by several threads, straight to a device.
//!
//! ```
//! use forebay::Pool;
//! use forebay::safetensors::Weights;
//! use forebay::transfer::TransferEngine;
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("model.safetensors");
//! # let header = br#"{"bias":{"dtype":"F32","shape":[3],"data_offsets":[0,12]}}"#;
//! # let file = [&(header.len() as u64).to_le_bytes()[..], header, bytemuck::bytes_of(&[1.0_f32, 2.0, 3.0])].concat();
//! # std::fs::write(&path, file)?;
//! let pool = Pool::open("host")?; // "cuda:0" for the first GPU
//! let engine = TransferEngine::new(pool.device())?;
//!
//! let weights = Weights::open(&path)?; // a file, an index of several, or the folder of either
//! for tensor in weights.tensors() {
//!     println!("{}: {} {:?}", tensor.name(), tensor.dtype(), tensor.shape());
//! }
//! let ticket = weights.select(["bias"])?.load(&engine, pool.default_stream()).submit()?;
//! // ... other work
//! for tensor in ticket.wait()? {
//!     let array = tensor.into_array::<f32>()?;
//!     assert_eq!(array.to_vec()?, [1.0, 2.0, 3.0]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it is fast
//!
//! A load is one [transfer](crate::transfer): the engine's threads read 4 MiB at a time into pinned memory, and the device
//! copies from there. What lies in one piece in a file is read by one call, also where it is of many tensors: small
//! tensors cost a device copy each, and no read. Only the bytes of selected tensors are read.
//!
//! Each tensor is a block of its own, so that it lives and is freed by itself. One block for a file would need fewer
//! device copies, but a single tensor would keep all of it, and 4 MiB at a time the copies are as long in both cases.
//!
//! # Files that cannot be trusted
//!
//! A file is checked before memory is allocated for it: a header of at most 100 MB, every tensor inside the file, no
//! overlap, no hole, no name twice. What is wrong is an [`Error::Weights`](crate::Error::Weights) with the file, the tensor
//! and the figures. Files are read, not mapped: one that is cut short or written to during the load is
//! [`Error::FileChanged`](crate::Error::FileChanged) or [`Error::File`](crate::Error::File), where a mapping would end the
//! process. An index can name files below its own folder only.

mod dtype;
mod error;
mod header;
mod json;
#[cfg(feature = "host")]
mod open;
#[cfg(feature = "host")]
mod weights;

#[cfg(feature = "host")]
#[cfg(test)]
mod tests;

pub use dtype::Dtype;
pub use error::{Problem, WeightsError};
pub use header::{Header, MAX_DIMENSIONS, TensorInfo};
#[cfg(feature = "host")]
pub use weights::{Load, Tensor, Weights};
