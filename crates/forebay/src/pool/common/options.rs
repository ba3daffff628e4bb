//! How a pool is to be: settings, and what no text can say.

use core::fmt;
use std::sync::Arc;

use forebay_core::address_space::Growth;
use forebay_core::pressure::Level;
use forebay_core::{Bytes, DeviceOrdinal};

use crate::config::{Settings, SettingsBuilder};
use crate::pool::common::event::{Observer, PoolEvent};
use crate::report::{DropReport, Shortage};
use crate::{Error, MemoryClass, Result};

/// Asked to let memory go; says whether it did.
pub(in crate::pool) type LetGo = Arc<dyn Fn(&Shortage) -> bool + Send + Sync>;

/// Told that the pressure has changed, and what is held.
pub(in crate::pool) type Warned = Arc<dyn Fn(Level, Bytes) + Send + Sync>;

/// Told what was still live when a pool went.
pub(in crate::pool) type Told = Arc<dyn Fn(&DropReport) + Send + Sync>;

/// How a pool is to be.
///
/// Whoever is to be asked or told may panic. The panic goes no further: it is counted
/// ([`Statistics::callback_panics`](crate::Statistics::callback_panics)), and the pool goes on as if
/// nothing had been said.
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
    pub(in crate::pool) let_go: Vec<LetGo>,
    pub(in crate::pool) pressure: Vec<Warned>,
    pub(in crate::pool) observers: Vec<Observer>,
    pub(in crate::pool) told: Option<Told>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::with(Settings::default())
    }
}

impl PoolOptions {
    /// The defaults, whatever the environment says.
    pub fn new() -> Self {
        Self::default()
    }

    /// What the environment says ([`Settings::from_environment`]), and the defaults for the rest.
    pub fn from_environment() -> Result<Self> {
        Ok(Self::with(Settings::from_environment()?))
    }

    /// These settings.
    pub fn with(settings: Settings) -> Self {
        let settings = settings.into_builder();
        Self {
            settings,
            growth: None,
            class: MemoryClass::STITCHED,
            peers: Vec::new(),
            let_go: Vec::new(),
            pressure: Vec::new(),
            observers: Vec::new(),
            told: None,
        }
    }

    /// Changes settings, each by the name it has in [`Settings`].
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

    /// The most the pool may take from the device.
    pub fn max_bytes(self, max_bytes: Bytes) -> Self {
        self.set(|settings| settings.max_bytes(max_bytes))
    }

    /// How pages are chosen, beyond what settings say.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.growth = Some(growth);
        self
    }

    /// The class of its memory; several at once by [`MemoryClass::union`].
    pub fn class(mut self, class: MemoryClass) -> Self {
        self.class = class;
        self
    }

    /// Devices that read and write its memory too: of the kind of the pool's own, and such as can reach
    /// it. Its class is [`MemoryClass::PEERS`] then, beside what is said of it.
    pub fn visible_to(mut self, peers: impl IntoIterator<Item = DeviceOrdinal>) -> Self {
        self.peers.extend(peers);
        self
    }

    /// Someone to ask to let memory go before a request is refused: caches of the program's own, for
    /// example. It is told what is missing, may free blocks and allocate, and says whether it let
    /// anything go. Several are asked in turn.
    pub fn on_shortage(
        mut self,
        let_go: impl Fn(&Shortage) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.let_go.push(Arc::new(let_go));
        self
    }

    /// Someone to tell when the pressure has changed: from moderate up, and back. Told after the pool
    /// has done what it can by itself, on the thread that was allocating, with no lock held.
    pub fn on_pressure(mut self, warned: impl Fn(Level, Bytes) + Send + Sync + 'static) -> Self {
        self.pressure.push(Arc::new(warned));
        self
    }

    /// Someone to tell of every block given out and taken back. Every call of the pool then takes the
    /// slow path. Told with no lock held, by the thread that calls; must not use the pool.
    pub fn on_event(mut self, observer: impl Fn(&PoolEvent) + Send + Sync + 'static) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Someone to tell which blocks were still live when the pool went.
    pub fn on_drop(mut self, told: impl Fn(&DropReport) + Send + Sync + 'static) -> Self {
        self.told = Some(Arc::new(told));
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
