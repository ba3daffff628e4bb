//! Builds a pool: on a device, from its options and its memory source. Reads and changes its settings.

use std::sync::Arc;

use forebay_hal::{Device, MemorySource, ToDevice};

use crate::config::SettingsBuilder;
use crate::pool::Pool;
use crate::pool::calls::{monitored, registry, settings, stream_end, thread_end, upkeep};
use crate::pool::common::device_memory::DeviceMemory;
use crate::pool::common::options::PoolOptions;
use crate::pool::inner::PoolInner;
use crate::pool::turn::with_turn;
use crate::{MemoryClass, Result, Settings, devices, monitor};

/// # Creating a pool
impl Pool {
    /// Creates a pool on `device`, with settings from the environment
    /// ([`Settings::from_environment`](crate::config::Settings::from_environment)). To choose the settings in code, use
    /// [`PoolOptions`].
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let pool = Pool::open("host")?;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn new(device: &impl ToDevice) -> Result<Self> {
        PoolOptions::from_environment()?.build(device)
    }

    /// Opens a device by [name](crate::devices::open) and creates a pool on it.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let pool = Pool::open("host")?; // "cuda:0", "hip:0", "opencl:0", "metal:0", "sim"
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn open(device: &str) -> Result<Self> {
        Self::new(&devices::open(device)?)
    }

    /// Creates a pool on the [best device](crate::devices::best): the one that `FOREBAY_DEVICE` names, else the first
    /// GPU, else the host.
    pub fn best() -> Result<Self> {
        Self::new(&devices::open_best()?.1)
    }
}

impl PoolOptions {
    /// Creates the pool on `device`.
    pub fn build(self, device: &impl ToDevice) -> Result<Pool> {
        let device = device.to_device();
        self.build_from(&device, Arc::new(DeviceMemory(Arc::clone(&device))))
    }

    /// Makes the new pool share the limit of `pool`, on the same device. All pools that share it together hold no more
    /// than the settings of the first one allow; the new pool's `max_bytes`, `max_fraction` and pressure thresholds are
    /// ignored. A pool that is refused memory takes none from the others: [trim](Pool::trim) them and try again.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, PoolOptions, StreamHandle};
    ///
    /// let device = HostDevice::open()?;
    /// let first = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&device)?;
    /// let second = PoolOptions::new().sharing_limit_with(&first).build(&device)?;
    /// let block = first.allocate(Bytes::mib(40), StreamHandle::DEFAULT)?;
    /// assert!(second.allocate(Bytes::mib(40), StreamHandle::DEFAULT).is_err());
    /// # first.free_block(block, StreamHandle::DEFAULT)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sharing_limit_with(mut self, pool: &Pool) -> Self {
        self.group = Some(Arc::clone(&pool.shared.group));
        self
    }

    /// Creates the pool from the memory of `source`, whose use `device` orders.
    pub(crate) fn build_from(
        mut self,
        device: &Arc<dyn Device>,
        source: Arc<dyn MemorySource>,
    ) -> Result<Pool> {
        if !self.peers.is_empty() {
            self.class = self.class | MemoryClass::PEERS;
        }
        let settings = self.settings.clone().build()?;
        let shared = Arc::new(PoolInner::new(device, source, settings, self)?);
        forebay_hal::on_stream_end(stream_end::on_stream_end);
        let (id, weak) = (shared.id, Arc::downgrade(&shared));
        shared.thread_ends.set_on_end(Box::new(move |stream| {
            with_turn(id, &weak, |pool| thread_end::end_own_stream(pool, stream));
        }));
        shared.heap().slots.pool = Some(shared.seeing());
        registry::add(&shared);
        if shared.settings().upkeep() {
            upkeep::start();
        }
        monitor::provide(monitor::Part::Pools, monitored::read);
        if shared.settings().monitor() {
            monitor::start();
        }
        Ok(Pool::with_shared(shared))
    }
}

impl Pool {
    /// Where the memory comes from.
    pub(crate) fn source(&self) -> &dyn MemorySource {
        &*self.shared.source
    }

    /// Takes the device's refusal, if the last growth failed because the device was out of memory.
    #[cfg(feature = "host")]
    pub(crate) fn take_refusal(&self) -> Option<forebay_hal::Error> {
        self.shared.backing().refusal.take()
    }
}

/// # Settings
impl Pool {
    /// The settings in effect. In a forked child, those that the parent's pool was created with.
    ///
    /// ```
    /// use forebay::{Bytes, HostDevice, PoolOptions};
    ///
    /// let pool = PoolOptions::new().max_bytes(Bytes::mib(64)).build(&HostDevice::open()?)?;
    /// assert_eq!(pool.settings().max_bytes(), Some(Bytes::mib(64)));
    /// pool.change(|settings| settings.max_bytes(Bytes::mib(32)))?;
    /// assert_eq!(pool.settings().max_bytes(), Some(Bytes::mib(32)));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn settings(&self) -> Settings {
        if self.shared.is_from_parent() {
            return self.shared.options.settings.clone().build().unwrap_or_default();
        }
        self.shared.settings().clone()
    }

    /// Changes settings of the living pool, by the methods of the builder: one for each setting. Refuses a setting that
    /// cannot change while a pool lives. On an error, nothing changes.
    ///
    /// Shrinking the quarantine releases blocks. With poison on, each is checked after the work enqueued on its stream.
    /// The call waits for that no longer than `max_wait`; later calls release the rest. A mistake found in such a block
    /// is not an error of this call; see [`findings`](Self::findings).
    pub fn change(&self, change: impl FnOnce(SettingsBuilder) -> SettingsBuilder) -> Result<()> {
        // The closure is the program's: it may call the pool.
        let before = self.settings();
        let wanted = change(before.clone().into_builder()).build()?;
        settings::change(&self.shared, |settings| settings.adopt(&before, &wanted))
    }

    /// As [`change`](Self::change), by name and text: for settings from files and users.
    pub fn set(&self, key: &str, value: &str) -> Result<()> {
        settings::change(&self.shared, |settings| settings.change(key, value))
    }
}
