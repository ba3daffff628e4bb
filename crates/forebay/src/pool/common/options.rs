//! Options of a new pool: its settings, and what cannot be written as text, such as callbacks.

use core::fmt;
use std::sync::Arc;

use forebay_core::address_space::Growth;
use forebay_core::pressure::Level;
use forebay_core::{Bytes, DeviceOrdinal};

use crate::config::{Settings, SettingsBuilder};
use crate::pool::common::event::Observer;
use crate::pool::common::group::Group;
use crate::report::PoolEvent;
use crate::report::{DropReport, Shortage};
use crate::{Error, MemoryClass, Result};

/// Called to release memory before a request fails; returns whether it released any.
pub(in crate::pool) type ShortageCallback = Arc<dyn Fn(&Shortage) -> bool + Send + Sync>;

/// Called with the new pressure and the bytes held.
pub(in crate::pool) type PressureCallback = Arc<dyn Fn(Level, Bytes) + Send + Sync>;

/// Called with the blocks that were live when the pool was dropped.
pub(in crate::pool) type DropCallback = Arc<dyn Fn(&DropReport) + Send + Sync>;

/// Options of a new pool.
///
/// A callback may panic. The pool catches and counts the panic
/// ([`Statistics::callback_panics`](crate::Statistics::callback_panics)) and goes on as if the callback had done
/// nothing.
///
/// ```
/// use forebay::{Bytes, HostDevice, PoolOptions};
///
/// let device = HostDevice::open()?;
/// let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&device)?;
/// assert_eq!(pool.limit(), Bytes::mib(64));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use = "options do nothing until a pool is built"]
pub struct PoolOptions {
    pub(in crate::pool) settings: SettingsBuilder,
    pub(in crate::pool) growth: Option<Growth>,
    pub(in crate::pool) class: MemoryClass,
    pub(in crate::pool) peers: Vec<DeviceOrdinal>,
    pub(in crate::pool) exportable: bool,
    pub(in crate::pool) group: Option<Arc<Group>>,
    pub(in crate::pool) shortage_callbacks: Vec<ShortageCallback>,
    pub(in crate::pool) pressure_callbacks: Vec<PressureCallback>,
    pub(in crate::pool) observers: Vec<Observer>,
    pub(in crate::pool) drop_callback: Option<DropCallback>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::with(Settings::default())
    }
}

impl PoolOptions {
    /// The default options. Does not read the environment.
    pub fn new() -> Self {
        Self::default()
    }

    /// Options with settings from the environment ([`Settings::from_environment`]), and defaults for the rest.
    pub fn from_environment() -> Result<Self> {
        Ok(Self::with(Settings::from_environment()?))
    }

    /// Options with these settings.
    pub fn with(settings: Settings) -> Self {
        let settings = settings.into_builder();
        Self {
            settings,
            growth: None,
            class: MemoryClass::STITCHED,
            peers: Vec::new(),
            exportable: false,
            group: None,
            shortage_callbacks: Vec::new(),
            pressure_callbacks: Vec::new(),
            observers: Vec::new(),
            drop_callback: None,
        }
    }

    /// Changes settings. The builder has a method for each, named as in [`Settings`].
    ///
    /// ```
    /// use forebay::{Bytes, PoolOptions};
    ///
    /// let options = PoolOptions::new().set(|settings| settings.min_bytes(Bytes::mib(8)).poison(true));
    /// # let _ = options;
    /// ```
    pub fn set(mut self, change: impl FnOnce(SettingsBuilder) -> SettingsBuilder) -> Self {
        self.settings = change(self.settings);
        self
    }

    /// Limits the memory that the pool may take from the device. A pool holds whole pages of the device, so the limit
    /// is rounded up to the next one: 2 MiB on most devices.
    pub fn max_bytes(self, max_bytes: Bytes) -> Self {
        self.set(|settings| settings.max_bytes(max_bytes))
    }

    /// Controls how the pool chooses pages when it grows, beyond what settings can say.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = Some(growth);
        self
    }

    /// Sets the class of the pool's memory. Combine classes with [`MemoryClass::union`].
    pub fn class(mut self, class: MemoryClass) -> Self {
        self.class = class;
        self
    }

    /// Lets other devices read and write the pool's memory. They must be of the same kind as the pool's device and able
    /// to reach it. This adds [`MemoryClass::PEERS`] to the pool's class.
    pub fn visible_to(mut self, peers: impl IntoIterator<Item = DeviceOrdinal>) -> Self {
        self.peers.extend(peers);
        self
    }

    /// Creates pages that can be exported to other processes while a block in them lives, if the device supports it.
    /// Unlike [`MemoryClass::SHAREABLE`] this promises nothing, and pages serve other addresses later.
    #[doc(hidden)]
    pub fn exportable(mut self) -> Self {
        self.exportable = true;
        self
    }

    /// Calls `callback` before a request is refused, for example to empty a cache of the program. It receives the
    /// figures of the shortage, may free blocks, allocate and [raise the limit](crate::Pool::change), and returns
    /// whether it released anything. Several callbacks are called in turn.
    ///
    /// The pool then retries, and calls again if that is not enough. So a callback may release one cache entry at a
    /// time: it is called until the request fits or every callback returns `false`. The pool gives up after 16 calls
    /// that return `true` without making more memory available. A request larger than the limit is served only if a
    /// callback raises the limit; it is called again only after doing so.
    pub fn on_shortage(
        mut self,
        callback: impl Fn(&Shortage) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.shortage_callbacks.push(Arc::new(callback));
        self
    }

    /// Calls `callback` when the pressure changes, from moderate up and back. It runs on the allocating thread or the
    /// upkeep thread, with no lock held, and may use the pool; it is told of changes it makes itself after it returns.
    pub fn on_pressure(mut self, callback: impl Fn(Level, Bytes) + Send + Sync + 'static) -> Self {
        self.pressure_callbacks.push(Arc::new(callback));
        self
    }

    /// Calls `observer` with every allocation, free and refusal, which makes every call of the pool take the slow path.
    /// It runs on the thread that uses the pool, with no lock held. The observer may use the pool itself; its own calls
    /// are recorded, but not passed to observers.
    pub fn on_event(mut self, observer: impl Fn(&PoolEvent) + Send + Sync + 'static) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Calls `callback` with the blocks that are still live when the pool is dropped.
    pub fn on_drop(mut self, callback: impl Fn(&DropReport) + Send + Sync + 'static) -> Self {
        self.drop_callback = Some(Arc::new(callback));
        self
    }
}

impl fmt::Debug for PoolOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolOptions")
            .field("settings", &self.settings)
            .field("growth", &self.growth)
            .field("class", &self.class)
            .field("peers", &self.peers)
            .finish_non_exhaustive()
    }
}

impl From<crate::config::ConfigError> for Error {
    fn from(error: crate::config::ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}
