//! Process pools, one per device, and the lookup of a block's pool by address alone. A process-wide lock guards the
//! list; each device's entry has its own lock, under which its pool is created.

use std::sync::{Arc, Mutex, MutexGuard};

use forebay_core::Address;
use forebay_hal::{Call, Device, StreamHandle, ToDevice};

use crate::pool::Pool;
use crate::pool::calls::registry::{self, AddressOwner};
use crate::pool::common::options::PoolOptions;
use crate::sync::fork::{ForkSafeMutex, PerProcess};
use crate::sync::lock;
use crate::{Error, PoolId, Result, Settings};

/// A device's pool, or a place for it. Each entry has its own lock: creating a pool calls the driver, and a request for
/// another device's pool should not wait for that.
struct DevicePool {
    device: Arc<dyn Device>,
    pool: Mutex<Option<Pool>>,
}

impl DevicePool {
    fn pool(&self) -> MutexGuard<'_, Option<Pool>> {
        lock(&self.pool)
    }

    /// Takes the pool out, to be dropped without the lock: dropping the last reference to a pool waits for its device.
    fn take(&self) -> Option<Pool> {
        self.pool().take()
    }

    /// Whether this is the same device object, not an equal one. The entry keeps its device alive, so no other object
    /// can have its address.
    fn is_of(&self, device: &Arc<dyn Device>) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.device), Arc::as_ptr(device))
    }
}

/// A forked child starts with none: its parent's entries may be locked forever.
static DEVICE_POOLS: PerProcess<Vec<Arc<DevicePool>>> = PerProcess::new();

/// The settings of process pools, if the program set any; else those of the environment.
static WANTED: ForkSafeMutex<Option<Settings>> = ForkSafeMutex::new(None);

fn device_pools() -> MutexGuard<'static, Vec<Arc<DevicePool>>> {
    DEVICE_POOLS.lock()
}

/// # Pools of the process
impl Pool {
    /// The pool of `device` that the whole process shares. The first call creates it, with the [process
    /// settings](Self::set_process_settings) or those of the environment; later calls with the same device object
    /// return the same pool. It lives until it is [forgotten](Self::forget) or the process ends.
    ///
    /// ```
    /// use forebay::{HostDevice, Pool};
    ///
    /// let device = HostDevice::open()?;
    /// assert_eq!(Pool::of(&device)?.id(), Pool::of(&device)?.id());
    /// assert!(Pool::forget(&device));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(device: &impl ToDevice) -> Result<Self> {
        let device = &device.to_device();
        // Checked before an entry is made for it.
        device.descriptor().check_process(Call::Open)?;
        let device_pool = {
            let mut device_pools = device_pools();
            match device_pools.iter().find(|device_pool| device_pool.is_of(device)) {
                Some(device_pool) => Arc::clone(device_pool),
                None => {
                    let device = Arc::clone(device);
                    let device_pool = Arc::new(DevicePool { device, pool: Mutex::new(None) });
                    device_pools.push(Arc::clone(&device_pool));
                    device_pool
                }
            }
        };
        let mut pool = device_pool.pool();
        if let Some(pool) = &*pool {
            return Ok(pool.clone());
        }
        let wanted = WANTED.lock().clone();
        // After a failure the entry stays empty, and the next call tries again.
        let made = match wanted {
            Some(settings) => PoolOptions::with(settings),
            None => PoolOptions::from_environment()?,
        };
        let made = made.exportable().build(device)?;
        *pool = Some(made.clone());
        Ok(made)
    }

    /// Sets the settings for process pools created from now on, in place of the environment's; `None` restores the
    /// environment's. Existing pools do not change.
    pub fn set_process_settings(settings: Option<Settings>) {
        *WANTED.lock() = settings;
    }

    /// The settings last [set](Self::set_process_settings) for process pools.
    pub fn process_settings() -> Option<Settings> {
        WANTED.lock().clone()
    }

    /// All process pools, whether created from Rust, C or Python. In a forked child, only its own.
    pub fn process_pools() -> Vec<Self> {
        // Not under the list's lock: making a pool holds the entry's lock and calls the driver.
        let device_pools = device_pools().clone();
        device_pools.iter().filter_map(|device_pool| device_pool.pool().clone()).collect()
    }

    /// Every living pool of `device`, process pool or not. A program that destroys a stream itself must first have all
    /// of them [forget](Self::forget_stream) it; dropping a [`Stream`](crate::Stream) does that.
    pub fn all_of(device: &impl ToDevice) -> Vec<Self> {
        let pools = registry::all_of(&device.to_device());
        pools.iter().filter_map(|(_, pool)| Some(Self::with_shared(pool.upgrade()?))).collect()
    }

    /// Removes the process pool of `device`, and returns whether there was one. Existing clones stay usable; the next
    /// [`Pool::of`] makes a new pool.
    pub fn forget(device: &impl ToDevice) -> bool {
        let device = &device.to_device();
        let gone = {
            let mut device_pools = device_pools();
            let found = device_pools.iter().position(|device_pool| device_pool.is_of(device));
            found.map(|found| device_pools.swap_remove(found))
        };
        gone.is_some_and(|device_pool| device_pool.take().is_some())
    }

    /// Removes the process pools of all devices, and returns how many there were.
    pub fn forget_process_pools() -> usize {
        let gone = core::mem::take(&mut *device_pools());
        gone.iter().filter(|device_pool| device_pool.take().is_some()).count()
    }

    /// The living pool that has a live block at `address`; `None` if no pool or two pools have one.
    pub fn owning(address: Address) -> Option<Self> {
        match registry::owner_at(address) {
            AddressOwner::One(id) => Self::find(id).ok(),
            AddressOwner::Nobody | AddressOwner::Two(..) | AddressOwner::Freed(_) => None,
        }
    }

    /// The living pool with this number.
    pub fn find(id: PoolId) -> Result<Self> {
        let shared = registry::find(id).ok_or(Error::PoolGone { pool: id })?;
        Ok(Self::with_shared(shared))
    }
}

/// Frees the live block at `address`, in the order of `stream`, whichever pool of the process it belongs to. Ignores
/// the null address.
///
/// For callers that have only an address. Looks up which pools have memory there; if you know the pool, [`Pool::free`]
/// is faster.
///
/// On an error, nothing changes: [`Error::NotABlock`] if no pool had a block there, [`Error::DoubleFree`] if the block
/// there is already free, [`Error::WrongPool`] if two pools have one, which only happens with simulated memory.
///
/// ```
/// use forebay::{Bytes, Error, Pool, StreamHandle};
///
/// let pool = Pool::open("host")?;
/// let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
/// forebay::process::free(block.address(), StreamHandle::DEFAULT)?;
/// let again = forebay::process::free(block.address(), StreamHandle::DEFAULT);
/// assert!(matches!(again, Err(Error::DoubleFree { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn free(address: Address, stream: StreamHandle) -> Result<()> {
    if address.is_null() {
        return Ok(());
    }
    let pool = match registry::owner_at(address) {
        AddressOwner::Nobody => return Err(Error::NotABlock { address }),
        AddressOwner::Two(pool, owner) => return Err(Error::WrongPool { address, pool, owner }),
        // Of a freed block the pool reports the double free, or frees the block if it was allocated again since.
        AddressOwner::One(id) | AddressOwner::Freed(id) => registry::find(id),
    };
    // The pool was dropped meanwhile, and its blocks with it.
    let shared = pool.ok_or(Error::NotABlock { address })?;
    Pool::with_shared(shared).free(address, stream)
}
