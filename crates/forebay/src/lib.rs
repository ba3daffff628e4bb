//! Memory for accelerators.
//!
//! A [`Pool`] takes pages from a device and hands out blocks of any size in the order of streams:
//! what is freed on a stream serves the next request on that stream at once, and a request on
//! another stream after one event. Free pages serve any request, wherever they lie.
//!
//! ```
//! use forebay::{Bytes, HostDevice, Pool, StreamHandle};
//!
//! let device = HostDevice::open()?;
//! let pool = Pool::new(&device)?;
//! let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
//! assert!(block.size() >= Bytes::mib(1));
//! pool.free(block.address(), StreamHandle::DEFAULT)?;
//! assert_eq!(pool.statistics().live, Bytes::ZERO);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Whoever uses a pool needs this crate alone: the quantities and the device contract are here under
//! their own names, all of the contract in [`hal`], and the devices in `host` and `cuda` (features of
//! these names, on unless said otherwise) and `sim` (feature `sim`).
//!
//! # Forks
//!
//! What was made before a `fork()` is not the child's: the driver refuses a child, the threads that are a
//! host's streams are not there, and a lock that another thread held is never given up. A child makes
//! devices and pools of its own. What it inherited takes no lock there: calls return [`Error::Forked`], those
//! that cannot fail give an empty answer, and drops leak. The fast path of a pool does not look: it hands out
//! what this very thread had cached, which is harmless.

pub mod adaptor;
pub mod arena;
#[doc(hidden)]
pub mod bindings;
mod block;
mod class;
pub mod config;
mod error;
pub mod handle;
mod pool;
mod tag;

use forebay_sync as sync;

/// CUDA as a device: the driver loaded at run time.
#[cfg(feature = "cuda")]
pub use forebay_cuda as cuda;
/// Plain types as bytes: the elements of a [`DeviceArray`] are [`bytemuck::Pod`].
pub use bytemuck;
/// The device contract, whole: for who brings a device of their own.
pub use forebay_hal as hal;
/// The host as a device, with its options.
#[cfg(feature = "host")]
pub use forebay_host as host;
/// The simulated accelerator, with its checker and its faults on demand.
#[cfg(feature = "sim")]
pub use forebay_sim as sim;

pub use forebay_core::address_space::Growth;
pub use forebay_core::{
    Address, Alignment, BumpGrowth, BumpUsage, Bytes, GIB, KIB, MIB, PageSize, QuantityError,
    SizeClasses, Span, TIB, pressure,
};
#[cfg(feature = "cuda")]
pub use forebay_cuda::CudaDevice;
pub use forebay_hal::{
    Capabilities, Descriptor, Device, DeviceKind, Event, MemoryInfo, Priority, Stream,
    StreamHandle, ToDevice,
};
#[cfg(feature = "host")]
pub use forebay_host::{HostDevice, HostOptions};

pub use block::{Allocate, Block, PoolId, Request};
pub use class::MemoryClass;
pub use config::{ConfigError, Settings};
pub use error::{Error, Result};
pub use handle::{DeviceArray, OwnedBlock, SharedBlock};
pub use pool::{
    BlockSnapshot, CallSnapshot, Capture, ClassFigures, ClassSnapshot, DeviceSnapshot, DriverLog,
    DropReport, EventAction, LeakedBlock, MemoryMap, PagePart, Pool, PoolEvent, PoolOptions,
    RecentFree, Scope, ScopeFigures, SettingSnapshot, Shortage, Snapshot, Statistics,
    StatisticsSnapshot, StreamFigures, StreamSnapshot, TagFigures, TagSnapshot, free,
};
pub use tag::{Tag, TagScope};

/// The README's example compiles and runs, or the documentation tests say that it does not.
#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../../../README.md")]
mod readme {}

/// So do those of the guide, each of which is a whole program.
#[cfg(all(doctest, feature = "host", feature = "cuda", feature = "sim"))]
#[doc = include_str!("../../../docs/rust.md")]
mod guide {}
