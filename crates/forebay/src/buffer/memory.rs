//! The manager: it makes buffers, knows which are live, and keeps host memory that copies still use.

use core::any::type_name;
use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;

use bytemuck::Pod;
use forebay_core::Alignment;
use forebay_hal::{Call, Device, ToDevice};

use super::figures::{BufferFigures, Figures};
use super::host_memory::HostMemory;
use super::host_use::HostUse;
use super::raw::RawBuffer;
use super::typed::{Buffer, size_of_elements};
use crate::sync::fork::ForkSafeMutex;
use crate::sync::lock;
use crate::{Pool, Result};

/// Makes buffers on one device, with memory from a pool. Clones are the same manager.
///
/// ```
/// use forebay::buffer::Memory;
/// use forebay::HostDevice;
///
/// let memory = Memory::new(&HostDevice::open()?)?;
/// let mut buffer = memory.buffer::<f32>(1_000_000)?;
/// buffer.host_mut()?.fill(2.0);
/// assert_eq!(memory.live_buffers().len(), 1);
/// drop(buffer);
/// assert!(memory.live_buffers().is_empty());
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    shared: Arc<Manager>,
}

#[derive(Debug)]
struct Manager {
    pool: Pool,
    registry: Mutex<Registry>,
    /// Host memory of dropped buffers that copies still use.
    parked: Mutex<Vec<Parked>>,
}

#[derive(Debug, Default)]
struct Registry {
    live: BTreeMap<u64, Record>,
    created: u64,
    /// The copies of buffers that are gone.
    gone: BufferFigures,
}

#[derive(Debug)]
struct Record {
    element: &'static str,
    length: usize,
    size: u64,
    since: Instant,
    created_at: &'static Location<'static>,
    figures: Arc<Figures>,
}

/// A live buffer, as [`Memory::live_buffers`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveBuffer {
    /// Its number. No other buffer of the manager ever has it.
    pub id: u64,
    /// The type of its elements.
    pub element: &'static str,
    /// How many elements it had when it was made.
    pub length: usize,
    /// How many bytes that is.
    pub bytes: u64,
    /// How long ago it was made.
    pub age: Duration,
    /// Where in the program it was made: file, line and column.
    pub created_at: String,
    /// Its memory and copies.
    pub figures: BufferFigures,
}

/// What the buffers of a manager add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryTotals {
    /// Live buffers.
    pub buffers: usize,
    /// Buffers made so far.
    pub created: u64,
    /// Memory of live buffers, and copies of all buffers so far.
    pub figures: BufferFigures,
    /// Bytes of host memory of dropped buffers that copies still use.
    pub parked_bytes: u64,
}

/// All managers of the process.
static MANAGERS: ForkSafeMutex<Vec<Weak<Manager>>> = ForkSafeMutex::new(Vec::new());

/// The live buffers of the whole process, those of each manager from the oldest on: at the end of a program, its leaks.
///
/// ```
/// use forebay::HostDevice;
/// use forebay::buffer::{Memory, leaks};
///
/// let memory = Memory::new(&HostDevice::open()?)?;
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
    let managers: Vec<Arc<Manager>> = MANAGERS.lock().iter().filter_map(Weak::upgrade).collect();
    managers.into_iter().flat_map(|shared| Memory { shared }.live_buffers()).collect()
}

/// Host memory that copies still use.
#[derive(Debug)]
pub(super) struct Parked {
    pub(super) host: HostMemory,
    pub(super) uses: Vec<HostUse>,
}

impl Memory {
    /// A manager on `device`, with a pool of its own.
    pub fn new(device: &impl ToDevice) -> Result<Self> {
        Ok(Self::over(&Pool::new(device)?))
    }

    /// A manager whose device memory is from `pool`.
    pub fn over(pool: &Pool) -> Self {
        let shared = Arc::new(Manager {
            pool: pool.clone(),
            registry: Mutex::default(),
            parked: Mutex::default(),
        });
        let mut managers = MANAGERS.lock();
        managers.retain(|manager| manager.strong_count() > 0);
        managers.push(Arc::downgrade(&shared));
        Self { shared }
    }

    /// A manager on the host alone: buffers have one replica, and nothing is ever copied.
    #[cfg(feature = "host")]
    pub fn host() -> Result<Self> {
        Self::new(&crate::HostDevice::open()?)
    }

    /// The pool that device memory is from.
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        self.shared.pool.device()
    }

    /// A buffer of `length` elements, all zero. It has no memory until it is used, on either side.
    #[track_caller]
    pub fn buffer<T: Pod>(&self, length: usize) -> Result<Buffer<T>> {
        let created_at = Location::caller();
        self.device().descriptor().check_process(Call::Allocate)?;
        let size = size_of_elements::<T>(length)?;
        self.sweep();
        let alignment = Alignment::new(align_of::<T>() as u64).unwrap_or(Alignment::ONE);
        let figures = Arc::<Figures>::default();
        let raw = RawBuffer::new(self, size, alignment, Arc::clone(&figures));
        let record = Record {
            element: type_name::<T>(),
            length,
            size,
            since: Instant::now(),
            created_at,
            figures,
        };
        let mut registry = lock(&self.shared.registry);
        registry.created += 1;
        let id = registry.created;
        registry.live.insert(id, record);
        drop(registry);
        Ok(Buffer::new(raw, length, id))
    }

    /// A buffer with the elements of `from`, on the host.
    #[track_caller]
    pub fn buffer_from<T: Pod>(&self, from: &[T]) -> Result<Buffer<T>> {
        let mut buffer = self.buffer(from.len())?;
        buffer.copy_from(from)?;
        Ok(buffer)
    }

    /// The live buffers, the oldest first: what a program that has ended its work still holds.
    pub fn live_buffers(&self) -> Vec<LiveBuffer> {
        if self.device().descriptor().is_inherited() {
            return Vec::new();
        }
        let registry = lock(&self.shared.registry);
        let live = registry.live.iter().map(|(&id, record)| LiveBuffer {
            id,
            element: record.element,
            length: record.length,
            bytes: record.size,
            age: record.since.elapsed(),
            created_at: record.created_at.to_string(),
            figures: record.figures.read(),
        });
        live.collect()
    }

    /// What the buffers add up to.
    pub fn totals(&self) -> MemoryTotals {
        self.sweep();
        let parked = lock(&self.shared.parked);
        let parked_bytes = parked.iter().map(|one| one.host.size() as u64).sum();
        drop(parked);
        let registry = lock(&self.shared.registry);
        let mut figures = registry.gone;
        registry.live.values().for_each(|record| figures.add(&record.figures.read()));
        let (buffers, created) = (registry.live.len(), registry.created);
        MemoryTotals { buffers, created, figures, parked_bytes }
    }

    /// Removes a buffer from the registry.
    pub(super) fn forget(&self, id: u64) {
        if self.device().descriptor().is_inherited() {
            return;
        }
        let mut registry = lock(&self.shared.registry);
        if let Some(record) = registry.live.remove(&id) {
            let mut last = record.figures.read();
            (last.host_bytes, last.device_bytes) = (0, 0);
            registry.gone.add(&last);
        }
    }

    /// Keeps host memory until the copies that use it are done.
    pub(super) fn park(&self, parked: Parked) {
        lock(&self.shared.parked).push(parked);
    }

    /// Frees parked memory whose copies are done.
    fn sweep(&self) {
        let mut parked = lock(&self.shared.parked);
        let is_done = |one: &mut Parked| one.uses.iter().all(HostUse::is_done);
        let done: Vec<Parked> = parked.extract_if(.., is_done).collect();
        drop(parked);
        drop(done);
    }
}

impl Drop for Manager {
    /// Waits for the copies that use parked memory.
    fn drop(&mut self) {
        let device = Arc::clone(self.pool.device());
        let parked = self.parked.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        for one in parked.drain(..) {
            if device.descriptor().is_inherited()
                || !one.uses.iter().all(|used| used.finish(&*device))
            {
                core::mem::forget(one.host);
            }
        }
    }
}
