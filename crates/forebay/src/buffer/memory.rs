//! The manager, which makes buffers and lists the live ones.

use core::any::type_name;
use core::panic::Location;
use std::sync::{Arc, Weak};
use std::time::Instant;

use bytemuck::Pod;
use forebay_core::Alignment;
use forebay_hal::{Call, Device, ToDevice};

use super::host_memory::HostMemory;
use super::raw::RawBuffer;
use super::registry::{
    BufferTotals, LineStatistics, LiveBuffer, LiveShared, Record, Registry, SharedRegistration,
    stack,
};
use super::replicas::Replicas;
use super::statistics::{CopyStatistics, Counters};
use super::store::{Migration, Store};
use super::typed::{Buffer, size_of_elements};
use crate::monitor::{BufferCopies, ManagerStatistics, Part, ProcessSnapshot, provide};
use crate::sync::fork::ForkSafeMutex;
use crate::{Pool, Result};

/// Makes buffers on one device, with memory from a pool. Clones share the same manager.
///
/// ```
/// use forebay::buffer::BufferManager;
/// use forebay::HostDevice;
///
/// let memory = BufferManager::new(&HostDevice::open()?)?;
/// let mut buffer = memory.buffer::<f32>(1_000_000)?;
/// buffer.host_mut()?.fill(2.0);
/// assert_eq!(memory.live_buffers().len(), 1);
/// drop(buffer);
/// assert!(memory.live_buffers().is_empty());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BufferManager {
    shared: Arc<Manager>,
}

#[derive(Debug)]
struct Manager {
    /// Created on first use.
    #[cfg(feature = "host")]
    transfers: std::sync::OnceLock<crate::TransferEngine>,
    store: Arc<Store>,
    registry: Arc<Registry>,
}

/// The buffers of all managers of the process.
static REGISTRIES: ForkSafeMutex<Vec<Weak<Registry>>> = ForkSafeMutex::new(Vec::new());

/// The live buffers of the process, grouped by manager, oldest first. At the end of a program, its leaks.
///
/// ```standalone_crate
/// use forebay::HostDevice;
/// use forebay::buffer::{BufferManager, leaks};
///
/// let memory = BufferManager::new(&HostDevice::open()?)?;
/// let forgotten = memory.buffer::<f32>(1000)?;
/// for leak in leaks() {
///     println!("{} elements of {} from {}, {:?} ago", leak.length, leak.element, leak.created_at, leak.age);
/// }
/// # assert_eq!(leaks().len(), 1);
/// # drop(forgotten);
/// # assert!(leaks().is_empty());
/// # Ok::<(), forebay::Error>(())
/// ```
pub fn leaks() -> Vec<LiveBuffer> {
    registries().iter().flat_map(|registry| registry.live()).collect()
}

/// The shared buffers of the whole process.
pub(crate) fn leaked_shared() -> Vec<LiveShared> {
    registries().iter().flat_map(|registry| registry.live_shared()).collect()
}

/// Statistics of the buffers made by each line of the program, by manager.
pub(crate) fn lines() -> Vec<LineStatistics> {
    registries().iter().flat_map(|registry| registry.lines()).collect()
}

/// Registries of managers made by this process; a forked child has none of its parent's.
fn registries() -> Vec<Arc<Registry>> {
    let registries = REGISTRIES.lock();
    registries.iter().filter_map(Weak::upgrade).filter(|registry| registry.is_ours()).collect()
}

/// Adds the buffers of each manager to a snapshot of the process.
fn show(snapshot: &mut ProcessSnapshot) {
    let copies = |of: CopyStatistics| BufferCopies { copies: of.copies, bytes: of.bytes };
    let managers = registries().into_iter().map(|registry| {
        let BufferTotals { buffers, created, statistics, shared, shared_bytes, .. } =
            registry.totals(0);
        ManagerStatistics {
            manager: registry.number,
            buffers: buffers as u64,
            created,
            host_bytes: statistics.host_bytes,
            device_bytes: statistics.device_bytes,
            to_device: copies(statistics.to_device),
            to_host: copies(statistics.to_host),
            shared: shared as u64,
            shared_bytes,
        }
    });
    snapshot.buffers.extend(managers.take(ProcessSnapshot::MAX_OTHERS));
}

impl BufferManager {
    /// Makes a manager on `device`, with its own pool.
    pub fn new(device: &impl ToDevice) -> Result<Self> {
        Ok(Self::over(&Pool::new(device)?))
    }

    /// Makes a manager that takes device memory from `pool`.
    pub fn over(pool: &Pool) -> Self {
        Self::with(pool, Migration::Copies)
    }

    /// Makes a manager whose buffers' data `migration` moves.
    pub(super) fn with(pool: &Pool, migration: Migration) -> Self {
        pool.settings().switch_on_leak_aids();
        provide(Part::Buffers, show);
        let (store, registry) = (Arc::new(Store::new(pool, migration)), Arc::new(Registry::new()));
        let mut registries = REGISTRIES.lock();
        registries.retain(|registry| registry.strong_count() > 0);
        registries.push(Arc::downgrade(&registry));
        let manager = Manager {
            #[cfg(feature = "host")]
            transfers: std::sync::OnceLock::new(),
            store,
            registry,
        };
        Self { shared: Arc::new(manager) }
    }

    /// Makes a manager on the host alone: buffers have one replica and are never copied.
    #[cfg(feature = "host")]
    pub fn host() -> Result<Self> {
        Self::new(&crate::HostDevice::open()?)
    }

    /// The pool that provides device memory.
    pub fn pool(&self) -> &Pool {
        &self.shared.store.pool
    }

    pub(super) fn migration(&self) -> Migration {
        self.shared.store.migration
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.shared.store.device()
    }

    /// The engine that copies between host memory and arrays of the device, created on first use with the default
    /// options.
    #[cfg(feature = "host")]
    pub fn transfers(&self) -> Result<&crate::TransferEngine> {
        if let Some(engine) = self.shared.transfers.get() {
            return Ok(engine);
        }
        let engine = crate::TransferEngine::new(self.device())?;
        Ok(self.shared.transfers.get_or_init(|| engine))
    }

    /// Makes a buffer of `length` zeros. It takes no memory, on either side, until it is used.
    #[track_caller]
    pub fn buffer<T: Pod>(&self, length: usize) -> Result<Buffer<T>> {
        self.enter(length, None, Location::caller())
    }

    /// Makes a buffer, over `host` if given, and registers it.
    pub(super) fn enter<T: Pod>(
        &self,
        length: usize,
        host: Option<HostMemory>,
        created_at: &'static Location<'static>,
    ) -> Result<Buffer<T>> {
        self.device().descriptor().check_process(Call::Allocate)?;
        let size = size_of_elements::<T>(length)?;
        self.shared.store.sweep();
        let least = match self.migration() {
            // The driver migrates and advises whole pages, so no two buffers may share one.
            Migration::Driver => Alignment::HOST_PAGE,
            Migration::Copies | Migration::Emulated => Alignment::ONE,
        };
        let alignment = Alignment::new(align_of::<T>() as u64).unwrap_or(Alignment::ONE).max(least);
        let statistics = Arc::<Counters>::default();
        let (store, counted) = (&self.shared.store, Arc::clone(&statistics));
        let replicas = match host {
            Some(host) => Replicas::over(store, host, alignment, counted),
            None => Replicas::new(store, size, alignment, counted),
        };
        let raw = RawBuffer::new(store, replicas);
        let (element, since) = (type_name::<T>(), Instant::now());
        let stack = stack();
        let record = Record { element, length, size, since, created_at, stack, statistics };
        Ok(Buffer::new(raw, length, self.shared.registry.enter(record)))
    }

    /// Makes a buffer with the elements of `from`, on the host.
    #[track_caller]
    pub fn buffer_from<T: Pod>(&self, from: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.buffer(from.len())?;
        buffer.copy_from_slice(from)?;
        Ok(buffer)
    }

    /// The live buffers, oldest first: at the end of a program, its leaks. In a forked child, empty for the parent's
    /// manager.
    pub fn live_buffers(&self) -> Vec<LiveBuffer> {
        self.shared.registry.live()
    }

    /// The [shared buffers](crate::named) that this process holds through this manager, oldest first. In a forked
    /// child, empty for the parent's manager.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// let memory = BufferManager::host()?;
    /// let name = format!("live-{}", std::process::id());
    /// let samples = memory.shared::<f32>(&name, 1000)?;
    /// let [live] = &memory.live_shared()[..] else { panic!("one") };
    /// assert_eq!((&live.name, live.bytes), (&name, 4000));
    /// assert_eq!((memory.totals().shared, memory.totals().buffers), (1, 0));
    /// # drop(samples);
    /// # assert_eq!(memory.totals().shared, 0);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn live_shared(&self) -> Vec<LiveShared> {
        self.shared.registry.live_shared()
    }

    /// Registers a shared buffer with its name, element type, length and size in bytes.
    pub(crate) fn enter_shared(
        &self,
        names: (&str, &str),
        sizes: (u64, u64),
        created_at: &'static Location<'static>,
    ) -> SharedRegistration {
        self.shared.registry.enter_shared(names, sizes, created_at)
    }

    /// The totals of all buffers. All zero in a forked child.
    pub fn totals(&self) -> BufferTotals {
        if self.device().descriptor().is_from_parent() {
            return BufferTotals::default();
        }
        self.shared.registry.totals(self.shared.store.sweep())
    }
}
