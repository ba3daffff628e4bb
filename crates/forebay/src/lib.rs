//! Memory for accelerators.
//!
//! A [`Pool`] takes pages from a device and hands out blocks of any size in the order of streams:
//! what is freed on a stream serves the next request on that stream at once, and a request on
//! another stream after one event. Free pages serve any request, wherever they lie.
//!
//! ```
//! use std::sync::Arc;
//!
//! use forebay::Pool;
//! use forebay_core::Bytes;
//! use forebay_hal::{Device, StreamHandle};
//! use forebay_host::HostDevice;
//!
//! let device: Arc<dyn Device> = HostDevice::open()?;
//! let pool = Pool::new(&device)?;
//! let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
//! assert!(block.size() >= Bytes::mib(1));
//! pool.free(block.address(), StreamHandle::DEFAULT)?;
//! assert_eq!(pool.statistics().live, Bytes::ZERO);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod adaptor;
pub mod arena;
mod block;
pub mod config;
mod error;
pub mod handle;
mod pool;
mod sync;
mod tag;

pub use block::{Allocate, Block, PoolId, Request};
pub use config::{ConfigError, Settings};
pub use error::{Error, Result};
pub use handle::{DeviceArray, Own, OwnedBlock, SharedBlock};
pub use pool::{
    BlockSnapshot, CallSnapshot, ClassFigures, ClassSnapshot, DeviceSnapshot, DriverLog,
    DropReport, EventAction, FormerBlock, LeftBlock, Pool, PoolEvent, PoolOptions, Scope,
    ScopeFigures, SettingSnapshot, Shortage, Snapshot, Statistics, StatisticsSnapshot,
    StreamFigures, StreamSnapshot, TagFigures, TagSnapshot, free,
};
pub use tag::{Tag, TagScope};
