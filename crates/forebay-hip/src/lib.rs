//! ROCm's HIP as a forebay device.
//!
//! The runtime library, `libamdhip64` of ROCm 5 to 7, is found when the program runs: nothing of ROCm is needed to build a
//! program, and a machine without it gives a value that says so, never a panic.
//!
//! ```
//! use forebay_hal::Device;
//! use forebay_hip::HipDevice;
//!
//! match HipDevice::open(0) {
//!     Ok(device) => println!("{}", device.descriptor()),
//!     // "open: not supported: no HIP driver: tried libamdhip64.so.7 (...); install ..."
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # One implementation for two vendors
//!
//! HIP copies CUDA's interface almost function by function. So this crate has HIP's own [table](sys) of functions, fills
//! CUDA's table with them, and [`forebay_cuda`] does the rest: streams, events, memory, pages, pinned and managed memory,
//! peers, sharing, copies and host tasks are one code for both. Where a function differs, a small one in between translates.
//!
//! A HIP device has all that a CUDA device has, with these exceptions: kernels of forebay's own are PTX, so LZ4 blocks are decoded on
//! the host, and many small copies go one by one or in HIP's batch call; there are no pages of pinned memory; and forebay
//! does not look at HIP's own memory pools.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod device;
mod driver;
mod fill;
mod runtime;
pub mod sys;
mod translate;
mod vendor;

pub use device::HipDevice;
pub use driver::HipDriver;
pub use forebay_cuda::DriverMissing;
pub use vendor::{AMD, HIP_DRIVER_VARIABLE};
