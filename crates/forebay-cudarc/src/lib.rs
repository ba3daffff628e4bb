//! Uses forebay in programs based on [cudarc].
//!
//! cudarc and forebay both work in the GPU's primary context, so addresses and streams of one are valid in the other.
//! This crate makes that safe:
//!
//! * [`device`] is the forebay device of a [`CudaContext`], for a [`Pool`](forebay::Pool).
//! * [`AdoptedStream`] is a [`CudaStream`](cudarc::driver::CudaStream) that forebay may use. It keeps the stream alive.
//! * [`Slice`] is a pool's memory, or a [`CudaSlice`](cudarc::driver::CudaSlice), as an argument for kernels and for
//!   every function that takes a `DevicePtr`.
//!
//! ```no_run
//! use cudarc::driver::{CudaContext, CudaFunction, LaunchConfig, PushKernelArg};
//! use forebay::Pool;
//! use forebay_cudarc::AdoptedStream;
//!
//! fn double(context: &std::sync::Arc<CudaContext>, kernel: &CudaFunction) -> Result<Vec<f32>, Box<dyn std::error::Error>> {
//!     let device = forebay_cudarc::device(context)?;
//!     let pool = Pool::new(&device)?;
//!     let stream = AdoptedStream::new(&device, &context.new_stream()?)?;
//!
//!     let mut data = stream.slice::<f32, _>(&pool, 1024)?;
//!     stream.cuda().memcpy_htod(&[1.5; 1024], &mut data)?;
//!     let length = 1024_u32;
//!     // SAFETY: the kernel takes a pointer to floats and their number, and writes no further.
//!     unsafe {
//!         let mut launch = stream.cuda().launch_builder(kernel);
//!         launch.arg(&mut data).arg(&length).launch(LaunchConfig::for_num_elems(length))?;
//!     }
//!     Ok(stream.cuda().clone_dtoh(&data)?)
//! } // the block goes back to the pool in the order of the stream: nothing waits
//! ```
//!
//! # Order
//!
//! A slice belongs to a stream, and its block is freed in the order of that stream. Before that, the stream waits on the
//! device for all other work that used the slice:
//!
//! * Functions that take a `DevicePtr` or `DevicePtrMut`, such as cudarc's copies: all of them, on any stream.
//! * Kernels: those that cudarc tracks. It tracks kernels if the context has more than one stream and event tracking is
//!   on, and remembers **one** read and one write of a slice: if two streams read it, only the later read. Note further
//!   streams with [`Slice::used_on`]. That is part of what you promise when you call the unsafe `launch`.
//!
//! The host waits only in two cases. A copy on the per-thread default stream, or on a borrowed stream while the context
//! has no stream of its own besides the default one, is waited for when it is enqueued. And if the driver refuses to
//! record an event, the drop waits for the context; if that fails too, the block stays allocated.
//!
//! # Versions of CUDA
//!
//! cudarc is built for one version of CUDA, which the features of your program's cudarc dependency choose. This crate
//! chooses none. By default it is the version of `nvcc`, or the newest that cudarc knows.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod error;
mod slice;
mod stream;
mod uses;
mod view;

use std::sync::Arc;

use cudarc::driver::CudaContext;
use forebay::CudaDevice;

pub use self::error::{Error, Refused, Result};
pub use self::slice::Slice;
pub use self::stream::AdoptedStream;
pub use self::view::{View, ViewMut};

/// Returns the forebay device for a cudarc context: the one that the whole process shares ([`CudaDevice::shared`]), so
/// that all callers know the same streams.
///
/// Fails for a context that is not the GPU's primary one ([`CudaContext::new`] retains that), and if the two libraries
/// have loaded different drivers.
pub fn device(context: &Arc<CudaContext>) -> Result<Arc<CudaDevice>> {
    let ordinal = context.ordinal();
    if !context.is_primary() {
        return Err(Error::NotPrimary { ordinal });
    }
    let number = u32::try_from(ordinal).map_err(|_| Error::NotPrimary { ordinal })?;
    let device = CudaDevice::shared(number).map_err(forebay::Error::from)?;
    stream::same_context(&device, context)?;
    Ok(device)
}

/// The README's example compiles, or the documentation tests say that it does not.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
