//! The shared buffer that programs use.

use core::fmt;
use core::marker::PhantomData;
use core::panic::Location;
use core::time::Duration;

use bytemuck::Pod;
use forebay_core::{Address, Bytes};
use forebay_hal::{Call, StreamHandle, invalid};

use super::raw::{RawLock, RawShared};
use crate::buffer::{Access, DeviceBuffer, Memory, OnDevice, SharedRegistration};
use crate::{Result, host_vec};

/// How many bytes of one value are written at once by a fill.
const FILL: usize = 64 << 10;

/// Elements that several processes have at the same time, found by name. Made by
/// [`Memory::shared`](crate::buffer::Memory::shared) and [`Memory::open_shared`](crate::buffer::Memory::open_shared).
///
/// Other processes may write at any moment, so there is no `&[T]` of the elements: they are copied. A copy that meets a
/// write of another process gets old elements in part and new ones in part; on the host, an aligned element of up to 8 B is
/// always whole. [`lock`](Self::lock) keeps copies apart where all sides use it.
///
/// Dropping it waits for the device, if [`address`](Self::address) was called. The name goes with the last process that
/// has the buffer.
#[must_use = "this process leaves the shared buffer when it is dropped"]
pub struct SharedBuffer<T: Pod> {
    raw: RawShared,
    _entry: SharedRegistration,
    length: usize,
    element: PhantomData<fn() -> T>,
}

/// The process and user that created a shared buffer, as the system says: the ones that made its name listen. The process
/// may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Creator {
    /// The number of the process; 0 if it runs in a container whose processes have no number here.
    pub pid: u32,
    /// The number of the user.
    pub uid: u32,
}

/// Keeps all other holders of the lock out, in this process and others, until it is dropped or its process ends.
#[derive(Debug)]
#[must_use = "the lock is released when it is dropped"]
pub struct SharedLock<'a> {
    _held: RawLock<'a>,
}

impl<T: Pod> SharedBuffer<T> {
    pub(super) fn new(
        memory: &Memory,
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

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many bytes the elements have.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.offset(self.length))
    }

    /// Who created it.
    pub fn creator(&self) -> Creator {
        let (pid, uid) = self.raw.creator();
        Creator { pid, uid }
    }

    /// Whether other processes can still open the buffer by its name. Any process that has the buffer can end the name for
    /// all, by `shutdown` on the socket that they share; the memory and the lock work on.
    pub fn is_reachable(&self) -> bool {
        self.raw.is_reachable()
    }

    /// Copies the elements from index `first` on to `to`. Fails if they reach past the last.
    ///
    /// Where the host cannot reach the device's memory, copies run on the default stream and are waited for: wait for
    /// work on other streams first.
    ///
    /// ```
    /// # use forebay::buffer::Memory;
    /// # let (memory, name) = (Memory::host()?, format!("read-{}", std::process::id()));
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

    /// Copies `from` to the elements from index `first` on, as [`read`](Self::read) does. Fails if they reach past the
    /// last; nothing is written then.
    pub fn write(&self, first: usize, from: &[T]) -> Result<()> {
        self.check(first, from.len())?;
        self.raw.write(self.offset(first), bytemuck::cast_slice(from))
    }

    /// All elements, copied. Fails if the host has no memory for the copy: whoever made the buffer chose its size.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = host_vec::zeroed(self.length, Call::Copy)?;
        self.read(0, &mut elements)?;
        Ok(elements)
    }

    /// Gives all elements one value.
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

    /// The address of the elements on the device, for kernels. It is this process's own: other processes have the memory at
    /// other addresses.
    ///
    /// Order between processes is the program's: synchronise the stream of a kernel that writes before you tell another
    /// process, by [`lock`](Self::lock) or otherwise, to read.
    pub fn address(&self) -> Address {
        self.raw.address()
    }

    /// A pointer to the elements in the host's memory, valid until the buffer is dropped; `None` where the host cannot
    /// reach the device's memory.
    ///
    /// Code that uses it keeps other processes and threads from writing meanwhile, or uses atomics or volatile accesses. A
    /// reference made of it must not meet a write of any process.
    pub fn as_ptr(&self) -> Option<*mut T> {
        self.raw.device().descriptor().check_process(Call::DeviceAddress).ok()?;
        self.raw.pointer().map(|pointer| pointer.cast())
    }

    /// Waits until nobody else holds the lock, in any process, and takes it. When its holder ends, by kill -9 too, the lock
    /// is free: what it was writing may then be half written, and the lock does not tell.
    ///
    /// The lock keeps apart those who take it, and nobody else: neither reads and writes without it, nor kernels, which
    /// have to be waited for before it is dropped. A thread that holds it by this handle gets
    /// [`SharedError::AlreadyLocked`](super::SharedError::AlreadyLocked); by another handle of the same name it would wait
    /// for itself, for ever. A child of `fork` does not hold it.
    ///
    /// ```
    /// # use forebay::buffer::Memory;
    /// # let (memory, name) = (Memory::host()?, format!("lock-{}", std::process::id()));
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
            // Without a limit it returns when it has the lock.
            if let Some(held) = self.raw.lock(None)? {
                return Ok(SharedLock { _held: held });
            }
        }
    }

    /// As [`lock`](Self::lock), but gives `None` where that took longer than `patience`: at once, where it is zero.
    pub fn try_lock_for(&self, patience: Duration) -> Result<Option<SharedLock<'_>>> {
        Ok(self.raw.lock(Some(patience))?.map(|held| SharedLock { _held: held }))
    }

    /// The offset of an element of the buffer, whose bytes were counted when it was made.
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

    fn read(&mut self, first: usize, to: &mut [T]) -> Result<()> {
        SharedBuffer::read(self, first, to)
    }

    fn write(&mut self, first: usize, from: &[T]) -> Result<()> {
        SharedBuffer::write(self, first, from)
    }

    /// Waits for the stream afterwards: copies by the host, and those of other processes, are not ordered with it.
    fn with_device<R>(
        &mut self,
        _: Access,
        stream: StreamHandle,
        work: impl FnOnce(OnDevice<'_>) -> Result<R>,
    ) -> Result<R> {
        let device = self.raw.device();
        device.descriptor().check_process(Call::DeviceAddress)?;
        let done = work(OnDevice::new(self.address(), self.size(), stream));
        // Work that failed may have enqueued a part.
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
