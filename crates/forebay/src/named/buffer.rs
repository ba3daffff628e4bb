//! The shared buffer that programs use.

use core::fmt;
use core::marker::PhantomData;
use core::panic::Location;
use core::time::Duration;

use bytemuck::Pod;
use forebay_core::{Address, Bytes};
use forebay_hal::{Call, StreamHandle, invalid};

use super::raw::{RawLock, RawShared};
use crate::buffer::{Access, BufferManager, DeviceBuffer, OnDevice, SharedRegistration};
use crate::{Result, host_vec};

/// Bytes of repeated values written at once by a fill.
const FILL: usize = 64 << 10;

/// Elements shared by several processes and found by name. Made by [`BufferManager::shared`](crate::buffer::BufferManager::shared)
/// and [`BufferManager::open_shared`](crate::buffer::BufferManager::open_shared).
///
/// Other processes may write at any time, so elements are copied, never borrowed as `&[T]`. A copy that races with a
/// write of another process may mix old and new elements; on the host, an aligned element of up to 8 B is never torn.
/// Use [`lock`](Self::lock) on all sides to exclude such races.
///
/// Dropping it waits for the device if [`address`](Self::address) was called. The name exists until the last process
/// drops the buffer.
#[must_use = "this process leaves the shared buffer when it is dropped"]
pub struct SharedBuffer<T: Pod> {
    raw: RawShared,
    _entry: SharedRegistration,
    length: usize,
    element: PhantomData<fn() -> T>,
}

/// The process and user that created a shared buffer, according to the system: those that made its name listen. The
/// process may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Creator {
    /// The process id; 0 for a process in a container that has no id here.
    pub pid: u32,
    /// The user id.
    pub uid: u32,
}

/// Excludes all other holders of the lock, in this process and others, until it is dropped or its process ends.
#[derive(Debug)]
#[must_use = "the lock is released when it is dropped"]
pub struct SharedLock<'a> {
    _held: RawLock<'a>,
}

impl<T: Pod> SharedBuffer<T> {
    pub(super) fn new(
        memory: &BufferManager,
        raw: RawShared,
        created_at: &'static Location<'static>,
    ) -> Result<Self> {
        let length = usize::try_from(raw.length()).map_err(|_| {
            let given = format!("{} elements", raw.length());
            invalid(Call::Allocate, "length", given, "as many as a process can address")
        })?;
        let entry = raw.enter(memory, created_at);
        Ok(Self { raw, _entry: entry, length, element: PhantomData })
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.raw.name()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The size of the elements in bytes.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.offset(self.length))
    }

    /// The process and user that created it.
    pub fn creator(&self) -> Creator {
        let (pid, uid) = self.raw.creator();
        Creator { pid, uid }
    }

    /// Whether other processes can still open the buffer by its name. Any process that has the buffer can end the name
    /// for all, with `shutdown` on the shared socket; the memory and the lock keep working.
    pub fn is_reachable(&self) -> bool {
        self.raw.is_reachable()
    }

    /// Copies the elements from index `first` on to `to`. Fails if the range is out of bounds.
    ///
    /// If the host cannot reach the device's memory, this copies on the default stream and waits: wait for work on
    /// other streams first.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// # let (memory, name) = (BufferManager::host()?, format!("read-{}", std::process::id()));
    /// let created = memory.shared::<u32>(&name, 6)?;
    /// let opened = memory.open_shared::<u32>(&name)?; // as another process would
    /// created.write(2, &[7, 8])?;
    /// let mut back = [0; 3];
    /// opened.read(1, &mut back)?;
    /// assert_eq!(back, [0, 7, 8]);
    /// assert!(opened.read(4, &mut back).is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        self.check(first, to.len())?;
        self.raw.read(self.offset(first), bytemuck::cast_slice_mut(to))
    }

    /// Copies `from` to the elements from index `first` on, as [`read`](Self::read) does. Fails, without writing
    /// anything, if the range is out of bounds.
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        self.check(first, from.len())?;
        self.raw.write(self.offset(first), bytemuck::cast_slice(from))
    }

    /// Copies all elements to a vector. Fails if the host lacks the memory: the buffer's creator chose its size.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = host_vec::zeroed(self.length, Call::Copy)?;
        self.read(0, &mut elements)?;
        Ok(elements)
    }

    /// Sets all elements to one value.
    pub fn fill(&self, value: T) -> Result<()> {
        let chunk = vec![value; (FILL / size_of::<T>().max(1)).clamp(1, self.length.max(1))];
        let mut first = 0;
        while first < self.length {
            let count = chunk.len().min(self.length - first);
            self.write(first, chunk.get(..count).unwrap_or_default())?;
            first += count;
        }
        Ok(())
    }

    /// The address of the elements on the device, for kernels. It is valid in this process only: other processes have
    /// the memory at other addresses.
    ///
    /// The program must order accesses between processes: synchronise the stream of a kernel that writes before telling
    /// another process to read, by [`lock`](Self::lock) or otherwise.
    pub fn address(&self) -> Address {
        self.raw.address()
    }

    /// A pointer to the elements in host memory, valid until the buffer is dropped; `None` if the host cannot reach the
    /// device's memory.
    ///
    /// Its user must keep other processes and threads from writing meanwhile, or use atomics or volatile accesses. A
    /// reference made from it must not race with a write of any process.
    pub fn as_ptr(&self) -> Option<*mut T> {
        self.raw.device().descriptor().check_process(Call::DeviceAddress).ok()?;
        self.raw.pointer().map(|pointer| pointer.cast())
    }

    /// Acquires the lock; waits while another process or thread holds it. If the holder ends, even by kill -9, the lock
    /// is released: data it was writing may be incomplete, which the lock does not report.
    ///
    /// The lock is advisory: it excludes neither reads and writes without it, nor kernels, which must finish before it
    /// is dropped. A thread that already holds it through this handle gets
    /// [`SharedError::AlreadyLocked`](super::SharedError::AlreadyLocked); through another handle of the same name it
    /// deadlocks. A child of `fork` does not hold it.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// # let (memory, name) = (BufferManager::host()?, format!("lock-{}", std::process::id()));
    /// let counter = memory.shared_or_open::<u64>(&name, 1)?;
    /// {
    ///     let _lock = counter.lock()?;
    ///     let mut value = [0];
    ///     counter.read(0, &mut value)?;
    ///     counter.write(0, &[value[0] + 1])?;
    /// }
    /// assert_eq!(counter.to_vec()?, [1]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn lock(&self) -> Result<SharedLock<'_>> {
        loop {
            // Without a timeout, it returns only with the lock.
            if let Some(held) = self.raw.lock(None)? {
                return Ok(SharedLock { _held: held });
            }
        }
    }

    /// As [`lock`](Self::lock), but returns `None` after waiting for `patience`; at once if that is zero.
    pub fn try_lock_for(&self, patience: Duration) -> Result<Option<SharedLock<'_>>> {
        Ok(self.raw.lock(Some(patience))?.map(|held| SharedLock { _held: held }))
    }

    /// The offset of an element. Cannot overflow: the buffer's size was computed when it was made.
    fn offset(&self, index: usize) -> u64 {
        (index as u64).saturating_mul(size_of::<T>() as u64)
    }

    fn check(&self, first: usize, count: usize) -> Result<()> {
        if first.checked_add(count).is_some_and(|end| end <= self.length) {
            return Ok(());
        }
        let given = format!("{count} elements from index {first} on");
        let (room, all) = (self.length.saturating_sub(first), self.length);
        let allowed = format!("at most {room} from there on, as the buffer has {all} elements");
        Err(invalid(Call::Copy, "range", given, allowed).into())
    }
}

impl<T: Pod> DeviceBuffer for SharedBuffer<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        SharedBuffer::read(self, first, to)
    }

    fn write(&mut self, first: usize, from: &[T]) -> Result<()> {
        SharedBuffer::write(self, first, from)
    }

    /// Waits for the stream afterwards, because copies by the host and by other processes are not ordered with it.
    fn with_device<R>(
        &mut self,
        _: Access,
        stream: StreamHandle,
        work: impl FnOnce(OnDevice<'_>) -> Result<R>,
    ) -> Result<R> {
        let device = self.raw.device();
        device.descriptor().check_process(Call::DeviceAddress)?;
        let done = work(OnDevice::new(self.address(), self.size(), stream));
        // Even if the work failed, it may have enqueued a part.
        device.synchronize_stream(stream)?;
        done
    }
}

impl<T: Pod> fmt::Debug for SharedBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedBuffer")
            .field("name", &self.name())
            .field("element", &core::any::type_name::<T>())
            .field("length", &self.length)
            .field("creator", &self.creator())
            .finish()
    }
}
