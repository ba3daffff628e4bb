//! CUDA as a forebay device.
//!
//! The driver library is found at run time: building a program needs nothing of CUDA, and opening a device on a machine
//! without it returns an error that says so, never a panic.
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
//! # How each group is implemented
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
//! * The device's primary context is retained once and kept. Every call leaves the calling thread's current context
//!   unchanged.
//! * Every address and handle is looked up before the driver sees it. Copies and fills accept other libraries' memory
//!   if the driver knows it.
//! * [`vendor`] lets `forebay-hip` use this crate with HIP's functions, which mirror CUDA's.
//! * [`sys`] has the driver's functions, structures and constants. Functions that some drivers lack are optional, each
//!   behind a bit of the device's capabilities.
//! * `cuCtxSynchronize` is called only where nothing less covers the work: to wait for the process, and to wait for the
//!   device after per-thread default streams were adopted or another library's stream ended. Apart from it, only
//!   `cuMemFree` and `cuMemFreeHost` wait for the whole device; they free memory from the corresponding allocation
//!   calls.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod batch;
mod cancel;
mod context;
mod context_pools;
mod decompression;
mod deferred_cleanup;
mod device;
mod driver;
mod event;
mod kernel;
mod managed;
mod memory;
mod peer;
mod piece;
mod pinned;
mod pool;
mod refusal;
mod sharing;
mod space;
mod staged_copy;
mod staging;
mod stream;
mod stream_calls;
pub mod sys;
mod task;
mod transfer;
pub mod vendor;
mod virtual_memory;

pub use context::DriverPointer;
pub use device::CudaDevice;
pub use driver::{CreatedCounts, CudaDriver};
pub use pool::{
    DefaultPool, PoolTuning, default_pool, reset_default_pool_peaks, trim_default_pool,
    tune_default_pool,
};
pub use vendor::{DRIVER_VARIABLE, DriverMissing};
