//! A memory pool for accelerators.
//!
//! A [`Pool`] takes pages from a device and hands out blocks of any size in stream order: memory freed on a stream
//! serves the next request on that stream at once, and a request on another stream after one event. Free pages serve
//! any request, wherever they lie.
//!
//! ```
//! use forebay::{Bytes, Pool};
//!
//! fn main() -> Result<(), forebay::Error> {
//!     let pool = Pool::open("host")?; // "cuda:0" for the first GPU, or Pool::best()?
//!     let stream = pool.stream()?;
//!     let gpu = pool.on(&stream); // or pool.default_stream()
//!
//!     // An array owns its block and frees it when it is dropped.
//!     let mut x = gpu.from_slice(&[2.5_f32; 1024])?;
//!     x.slice_mut(10..20)?.fill(0.0)?;
//!     assert_eq!(x.slice(9..11)?.to_vec()?, [2.5, 0.0]);
//!     assert_eq!(pool.statistics().live, Bytes::kib(4));
//!
//!     // A block is plain data. You free it yourself.
//!     let block = gpu.allocate(Bytes::mib(1))?;
//!     gpu.free(block)
//! }
//! ```
//!
//! # Where to go next
//!
//! | for | see |
//! |---|---|
//! | allocating on a stream, arrays from data | [`OnStream`](handle::OnStream), which [`Pool::on`] and [`Pool::default_stream`] return |
//! | copies, slices, growing an array | [`DeviceArray`] |
//! | freeing by address, limits, trimming, statistics | the methods of [`Pool`], in the order of use |
//! | limits, memory classes, callbacks | [`PoolOptions`] |
//! | blocks that free themselves, typed arrays, batches, warm-up, futures | [`handle`] |
//! | sizes to warm a pool up for | [`transformer`] |
//! | many short-lived blocks that are freed together | [`arena`] |
//! | data with a host side and a device side, kept coherent | [`buffer`] |
//! | code for every kind of buffer, and buffer types of your own | [`buffer::DeviceBuffer`] |
//! | reusing objects and arrays of the host | [`objects`] |
//! | buffers that processes share by name | [`named`] |
//! | pinned host memory, for copies at full speed | `pinned` (default feature `host`) |
//! | ordinary memory, files, batches and compressed data to and from a device, and between devices | `transfer` (default feature `host`) |
//! | files of weights (safetensors), straight to a device | [`safetensors`] |
//! | a limit, counts, a log or injected failures over any allocator | [`adaptor`] |
//! | settings from code, the environment or a file | [`config`] |
//! | figures, pressure, measured scopes | [`statistics`] |
//! | every block, page and setting of a pool at one moment, as data or JSON | [`snapshot`] |
//! | out-of-memory reports, leaks, events and recording them | [`report`] |
//! | everything live in the process, and what looks like a leak | [`leak`] |
//! | this process and others, as `forebay monitor` shows them | [`monitor`] |
//! | blocks known by their address alone | [`process`] |
//! | sizes, alignments and addresses | [`quantity`] |
//! | the device contract, to write your own device | [`hal`] |
//! | devices by name: listing them, and choosing the best | [`devices`] |
//! | the devices and their options | `host` and `cuda` (default features), `hip`, `opencl`, `metal` and `sim` (features) |
//!
//! # Forks
//!
//! A child of `fork()` cannot use the devices and pools of its parent: the driver refuses it, the threads of the host
//! device are missing, and another thread may have held a lock at the fork. The child must open its own devices and
//! make its own pools. Calls on an inherited pool take no lock. They return [`Error::Forked`] or, if they cannot fail,
//! an empty result; drops leak. The fast path does not check for a fork: it may return blocks that the forking thread
//! had cached, which is harmless.

#![doc(test(attr(deny(unused_imports, unused_must_use))))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod block;
mod bulk;
mod callback;
mod class;
mod error;
mod host_vec;
mod pool;
mod pool_id;
mod range;
mod retry;
mod stack;
mod tag;
#[cfg(target_os = "linux")]
mod user;
mod whole_file;

pub mod adaptor;
pub mod arena;
#[doc(hidden)]
pub mod bindings;
pub mod buffer;
pub mod config;
pub mod devices;
pub mod handle;
pub mod leak;
pub mod monitor;
pub mod named;
pub mod objects;
#[cfg(feature = "host")]
pub mod pinned;
pub mod report;
pub mod safetensors;
#[cfg(feature = "host")]
pub mod transfer;
pub mod transformer;

use forebay_sync as sync;

/// Types that are plain bytes: the elements of a [`DeviceArray`] are [`bytemuck::Pod`].
pub use bytemuck;
/// CUDA as a device. The driver is loaded at run time.
#[cfg(feature = "cuda")]
pub use forebay_cuda as cuda;
/// The device contract. Implement it to add your own device.
pub use forebay_hal as hal;
/// ROCm's HIP as a device. Its library is loaded at run time.
#[cfg(feature = "hip")]
pub use forebay_hip as hip;
/// The host as a device, with its options.
#[cfg(feature = "host")]
pub use forebay_host as host;
/// Metal as a device: a typed error on systems other than macOS.
#[cfg(feature = "metal")]
pub use forebay_metal as metal;
/// OpenCL's devices. The library is loaded at run time.
#[cfg(feature = "opencl")]
pub use forebay_opencl as opencl;
/// The simulated accelerator, with its race checker and injected faults.
#[cfg(feature = "sim")]
pub use forebay_sim as sim;

pub use forebay_core::{Address, Alignment, Bytes, Span};
#[cfg(feature = "cuda")]
pub use forebay_cuda::CudaDevice;
pub use forebay_hal::{Device, Event, NamedStream, Priority, Stream, StreamHandle, ToDevice};
#[cfg(feature = "host")]
pub use forebay_host::HostDevice;

pub use block::{Allocate, Block, RecordedUse, Request};
pub use class::MemoryClass;
pub use config::Settings;
pub use error::{Error, Result};
pub use handle::{DeviceArray, OwnedBlock, SharedBlock};
pub use leak::leaks;
pub use named::SharedBuffer;
pub use objects::{ArrayPool, ObjectPool};
#[cfg(feature = "host")]
pub use pinned::{PinnedArray, PinnedPool};
pub use pool::{Pool, PoolOptions, Snapshot, Statistics};
pub use pool_id::PoolId;
pub use tag::{Tag, tag};
#[cfg(feature = "host")]
pub use transfer::TransferEngine;

/// Sizes, alignments, addresses and identifiers, with checked arithmetic.
pub mod quantity {
    pub use forebay_core::{
        Address, Alignment, Bytes, DeviceOrdinal, PageSize, QuantityError, SizeClasses, Span,
        StreamId,
    };
}

/// The figures of a pool: [`Pool::statistics`](crate::Pool::statistics), [`Pool::scope`](crate::Pool::scope) and
/// [`Pool::pressure`](crate::Pool::pressure).
pub mod statistics {
    pub use crate::pool::{
        ClassStatistics, DriverLog, GroupStatistics, PeakStatistics, Scope, ScopeStatistics,
        SideStatistics, Statistics, StreamStatistics, TagStatistics,
    };
    pub use forebay_core::pressure::Level;
}

/// Every block, page and setting of a pool at one moment: [`Pool::snapshot`](crate::Pool::snapshot),
/// [`Pool::memory_map`](crate::Pool::memory_map) and [`Pool::pages_of`](crate::Pool::pages_of).
pub mod snapshot {
    pub use crate::pool::{
        BlockSnapshot, DeviceSnapshot, MappedSpan, MemoryMap, OtherPoolSnapshot, PagePart,
        RangeSnapshot, RefusalSnapshot, SettingSnapshot, Snapshot,
    };
    pub use crate::sync::map::Side;
}

/// Blocks of the whole process, found by address alone. [`Pool::of`](crate::Pool::of) and its neighbours find pools.
pub mod process {
    pub use crate::pool::free;
}

/// Guards of a pool or tag: dropping one ends what it began.
pub mod guard {
    pub use crate::pool::{Capture, Observation};
    pub use crate::tag::TagScope;
}

/// Compiles and runs the README's example as a documentation test.
#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// The same for the guides, whose examples are whole programs.
#[cfg(all(doctest, feature = "host", feature = "cuda", feature = "sim"))]
#[doc = include_str!("../../../docs/rust.md")]
mod guide {}

#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../../../docs/buffers.md")]
mod buffers_guide {}

#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../../../docs/transfers.md")]
mod transfers_guide {}
