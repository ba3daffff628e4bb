//! CUDA as a forebay device.
//!
//! The driver is a library found at run time: nothing of CUDA is needed to build a program, and a
//! machine without it gives a value that says so, never a panic.
//!
//! ```
//! use forebay_cuda::{CudaDevice, CudaDriver};
//! use forebay_hal::Device;
//!
//! match CudaDevice::open(0) {
//!     Ok(device) => println!("{}", device.descriptor()),
//!     // "open: not supported: no CUDA driver: tried libcuda.so.1 (...); install ..."
//!     Err(error) => println!("{error}"),
//! }
//! ```
//!
//! # What is done how
//!
//! ```text
//!   plain, managed memory   cuMemAlloc, cuMemAllocManaged; giving back waits for the device
//!   regions, pages          cuMemAddressReserve, cuMemCreate, cuMemMap, ...; nothing waits
//!   pinned memory           cuMemHostAlloc; from 4 MiB on pages of the process that several threads have
//!                           touched, and cuMemHostRegister; giving back waits for the device
//!   streams, events         pooled for the whole process, never destroyed
//!   ordinary host memory    copied through pinned memory by tasks in stream order, so that no copy
//!                           makes its caller wait or reads before its turn
//!   many small copies       a kernel of our own, which reads and writes pinned memory itself
//!   host functions          threads of our own, which the stream waits for on the device
//! ```
//!
//! * The device's primary context is retained once and kept. The calling thread's current context is
//!   the same after every call as before it.
//! * Every address and handle is looked up before the driver sees it. Memory of other libraries is
//!   good for copies and fills where the driver knows it.
//! * [`vendor`] is how `forebay-hip` lets this crate work with HIP's functions, which are CUDA's in other words.
//! * [`sys`] has the driver's functions, structures and constants. Functions that not every driver
//!   has are optional, and each is behind a bit of the device's capabilities.
//! * `cuCtxSynchronize` is called where only a wait for the whole context covers the work: to wait for the process, and
//!   to wait for the device after per-thread default streams were adopted or a stream of another library ended. Apart
//!   from it, `cuMemFree` and `cuMemFreeHost` are the only calls that wait for the whole device; they are made where
//!   memory got by their like is given back.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod batch;
mod cancel;
mod context;
mod decompression;
mod deferred_cleanup;
mod device;
mod driver;
mod event;
mod kernel;
mod managed;
mod memory;
mod missing;
mod peer;
mod pinned;
mod pool;
mod refusal;
mod shape;
mod sharing;
mod space;
mod staged_copy;
mod staging;
mod stream;
pub mod sys;
mod task;
mod transfer;
pub mod vendor;
mod virtual_memory;

pub use device::CudaDevice;
pub use driver::{CreatedCounts, CudaDriver, DRIVER_VARIABLE, DriverPointer};
pub use missing::DriverMissing;
pub use pool::{
    DefaultPool, PoolTuning, default_pool, reset_default_pool_peaks, trim_default_pool,
    tune_default_pool,
};
