//! Pools of the whole process: one for each device, found by the device; and blocks found by address
//! alone, whichever pool they are of.

use std::sync::{Arc, Mutex, MutexGuard};

use forebay_core::Address;
use forebay_hal::{Call, Device, StreamHandle};

use super::registry::{self, Owner};
use super::{Pool, PoolOptions};
use crate::sync::fork::{ForkSafeMutex, PerProcess};
use crate::sync::lock;
use crate::{Error, PoolId, Result, Settings};

/// A device's pool, or room for it. Each has a lock of its own: making the pool of one device calls its
/// driver, and whoever wants that of another does not wait for it.
struct DevicePool {
    device: Arc<dyn Device>,
    pool: Mutex<Option<Pool>>,
}

impl DevicePool {
    fn pool(&self) -> MutexGuard<'_, Option<Pool>> {
        lock(&self.pool)
    }

    /// The same object, not one that is equal. As long as there is an entry the device lives, so that no
    /// other can come to lie where it is.
    fn is_of(&self, device: &Arc<dyn Device>) -> bool {
        core::ptr::addr_eq(Arc::as_ptr(&self.device), Arc::as_ptr(device))
    }
}

/// A forked child begins with none: those of its parent may be locked for ever.
static DEVICE_POOLS: PerProcess<Vec<Arc<DevicePool>>> = PerProcess::new();

/// What the program wants the process's pools to be; the environment decides where it said nothing.
static WANTED: ForkSafeMutex<Option<Settings>> = ForkSafeMutex::new(None);

fn device_pools() -> MutexGuard<'static, Vec<Arc<DevicePool>>> {
    DEVICE_POOLS.lock()
}

impl Pool {
    /// The pool of `device` for the whole process: made when it is first asked for, as the environment
    /// says, and the same from then on for the same device object, whichever thread asks. It stays
    /// until it is [forgotten](Self::forget), or the process ends.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use forebay::Pool;
    /// use forebay_hal::Device;
    /// use forebay_host::HostDevice;
    ///
    /// let device: Arc<dyn Device> = HostDevice::open()?;
    /// assert_eq!(Pool::of(&device)?.id(), Pool::of(&device)?.id());
    /// assert!(Pool::forget(&device));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn of(device: &Arc<dyn Device>) -> Result<Self> {
        // Before there is an entry for it.
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
        // Where this fails the entry stays empty, and the next who asks tries again.
        let made = match wanted {
            Some(settings) => PoolOptions::with(settings).build(device)?,
            None => Self::new(device)?,
        };
        *pool = Some(made.clone());
        Ok(made)
    }

    /// What pools of the whole process are to be from now on, in place of what the environment says;
    /// `None` to go by the environment again. Pools that are there stay as they are.
    pub fn set_process_settings(settings: Option<Settings>) {
        *WANTED.lock() = settings;
    }

    /// What the program wants such pools to be: what was [set](Self::set_process_settings) last.
    pub fn process_settings() -> Option<Settings> {
        WANTED.lock().clone()
    }

    /// The pools of the whole process, in Rust, C and Python alike. A forked child has
    /// none but its own.
    pub fn process_pools() -> Vec<Self> {
        // Apart from the list's lock, as making a pool takes the device pool's and calls the driver.
        let device_pools = device_pools().clone();
        device_pools.iter().filter_map(|device_pool| device_pool.pool().clone()).collect()
    }

    /// Every living pool of `device`, whoever made it and has it. For whoever is about to destroy a
    /// stream, which all of them have to [forget](Self::forget_stream).
    pub fn all_of(device: &Arc<dyn Device>) -> Vec<Self> {
        registry::all_of(device).into_iter().map(|shared| Self { shared }).collect()
    }

    /// Lets the process forget its pool of `device`; says whether there was one. Clones that others
    /// have stay what they are; the next who asks for the pool of `device` gets a new one.
    pub fn forget(device: &Arc<dyn Device>) -> bool {
        let gone = {
            let mut device_pools = device_pools();
            let found = device_pools.iter().position(|device_pool| device_pool.is_of(device));
            found.map(|found| device_pools.swap_remove(found))
        };
        // Apart from the lock: the last of a pool waits for its device.
        gone.is_some_and(|device_pool| device_pool.pool().take().is_some())
    }

    /// Lets the process forget its pools of all devices; gives how many there were.
    pub fn forget_process_pools() -> usize {
        let gone = core::mem::take(&mut *device_pools());
        gone.iter().filter(|device_pool| device_pool.pool().take().is_some()).count()
    }

    /// The living pool that has a live block at `address`, whoever made it; `None` where none has, or two.
    pub fn owning(address: Address) -> Option<Self> {
        match registry::whose(address) {
            Owner::One(id) => Self::find(id).ok(),
            Owner::Nobody | Owner::Two(..) | Owner::Freed(_) => None,
        }
    }

    /// The living pool of that number, whoever made it.
    pub fn find(id: PoolId) -> Result<Self> {
        let shared = registry::find(id).ok_or(Error::PoolGone { pool: id })?;
        Ok(Self { shared })
    }
}

/// Gives back the live block that begins at `address`, in the order of `stream`, to whichever pool of
/// the process it is of. The null address is ignored.
///
/// For callers that were handed an address and nothing else. It looks through the pools of the
/// process one by one: who knows the pool frees there.
///
/// Refused, with nothing changed: [`Error::NotABlock`] where no pool had a block there,
/// [`Error::DoubleFree`] where one had and it is free, and [`Error::WrongPool`] where two pools have
/// one, which addresses of simulated memory alone can come to.
///
/// ```
/// use std::sync::Arc;
///
/// use forebay::{Error, Pool};
/// use forebay_core::Bytes;
/// use forebay_hal::{Device, StreamHandle};
/// use forebay_host::HostDevice;
///
/// let device: Arc<dyn Device> = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
/// let block = pool.allocate(Bytes::mib(1), StreamHandle::DEFAULT)?;
/// forebay::free(block.address(), StreamHandle::DEFAULT)?;
/// let again = forebay::free(block.address(), StreamHandle::DEFAULT);
/// assert!(matches!(again, Err(Error::DoubleFree { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn free(address: Address, stream: StreamHandle) -> Result<()> {
    if address.is_null() {
        return Ok(());
    }
    let pool = match registry::whose(address) {
        Owner::Nobody => return Err(Error::NotABlock { address }),
        Owner::Two(pool, owner) => return Err(Error::WrongPool { address, pool, owner }),
        // One that was freed says that the block is free already; or frees it, where it was given out since.
        Owner::One(id) | Owner::Freed(id) => registry::find(id),
    };
    // Gone since it was asked: then its blocks are as well.
    let shared = pool.ok_or(Error::NotABlock { address })?;
    Pool { shared }.free(address, stream)
}
