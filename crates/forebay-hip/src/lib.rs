//! ROCm's HIP as a forebay device.
//!
//! The runtime library, `libamdhip64` of ROCm 5 to 7, is found at run time: building a program needs nothing of ROCm,
//! and without it opening a device returns an error that says so, never a panic.
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
//! HIP copies CUDA's interface almost function by function. So this crate fills CUDA's table with functions of HIP's
//! own [table](sys), and [`forebay_cuda`] does the rest: streams, events, memory, pages, pinned and managed memory,
//! peers, sharing, copies and host tasks have one implementation. Small adapters translate where functions differ.
//!
//! A HIP device has everything a CUDA device has, with these exceptions. forebay's own kernels are PTX, so LZ4 blocks
//! are decoded on the host, and small copies go one by one or in HIP's batch call. It has no pages of pinned memory,
//! and forebay does not read HIP's own memory pools.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod device;
mod driver;
mod fill;
mod runtime;
pub mod sys;
mod translate;
mod vendor;

pub use device::HipDevice;
pub use driver::{current_device, load, load_from};
pub use forebay_cuda::DriverMissing;
pub use vendor::{AMD, HIP_DRIVER_VARIABLE};
