//! The buffer that programs use.

use core::marker::PhantomData;
use core::ops::RangeBounds;

use bytemuck::Pod;
use forebay_core::{BufferState, Bytes, Replica};
use forebay_hal::{self as hal, Call, Location, StreamHandle, invalid};

use super::access::Access;
use super::guard::{HostMut, OnDevice};
use super::raw::RawBuffer;
use super::registry::Registration;
use super::slice::{BufferSlice, BufferSliceMut};
use super::statistics::BufferStatistics;
use crate::range::check_length;
use crate::{Result, host_vec};

/// Elements with a replica on the host and one on a device. They are copied only when, and as far as, a use needs them.
/// Made by [`BufferManager::buffer`](super::BufferManager::buffer).
///
/// Reading needs only a shared buffer, also where it copies to the replica that lacks the elements: several threads may
/// read at once, one waiting for the copies of another. Code that runs within a call, such as a pool's callback, gets
/// [`Busy`](forebay_hal::Error::Busy) if its read needs more than a view of what is there.
///
/// ```
/// # use forebay::buffer::BufferManager;
/// # use forebay::{HostDevice, StreamHandle};
/// # let memory = BufferManager::new(&HostDevice::open()?)?;
/// let weights = memory.buffer_from(&[1.0_f32, 2.0, 3.0])?;
/// let (one, two) = (weights.host()?, weights.slice(1..)?); // views live side by side
/// let on_device = weights.on_device(StreamHandle::DEFAULT)?;
/// assert_eq!((one[1], two.host()?[0], on_device.size().get()), (2.0, 2.0, 12));
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Debug)]
pub struct Buffer<T: Pod> {
    pub(super) raw: RawBuffer,
    length: usize,
    registration: Registration,
    element: PhantomData<T>,
}

/// The size of `length` elements. Fails if a process cannot address that many, or if elements have no bytes.
pub(super) fn size_of_elements<T>(length: usize) -> Result<u64> {
    let size = length.checked_mul(size_of::<T>()).and_then(|size| isize::try_from(size).ok());
    let refused = || {
        let given = format!("{length} elements of {} B", size_of::<T>());
        invalid(
            Call::Allocate,
            "length",
            given,
            "elements with bytes, fewer than half of all addresses",
        )
    };
    match size.map(isize::unsigned_abs) {
        Some(size) if size_of::<T>() != 0 => Ok(size as u64),
        _ => Err(refused().into()),
    }
}

impl<T: Pod> Buffer<T> {
    pub(super) fn new(raw: RawBuffer, length: usize, registration: Registration) -> Self {
        Self { raw, length, registration, element: PhantomData }
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
        // The elements fit in memory.
        Bytes::new((self.length * size_of::<T>()) as u64)
    }

    /// Its id in the manager's list.
    pub fn id(&self) -> u64 {
        self.registration.id
    }

    /// Which replicas exist, and which is newer. In a forked child, and in code that runs within a call on this buffer,
    /// `Uninitialized`.
    pub fn state(&self) -> BufferState {
        self.raw.shared().map_or(BufferState::Uninitialized, |replicas| replicas.coherence.state())
    }

    /// Its memory use, and its copies so far. All zero in a forked child.
    pub fn statistics(&self) -> BufferStatistics {
        if self.raw.check_process().is_err() {
            return BufferStatistics::default();
        }
        self.raw.statistics.read()
    }

    /// All elements, to read.
    pub fn as_slice(&self) -> BufferSlice<'_, T> {
        BufferSlice::of(&self.raw, 0..self.length)
    }

    /// All elements, to write.
    pub fn as_slice_mut(&mut self) -> BufferSliceMut<'_, T> {
        BufferSliceMut::of(&mut self.raw, 0..self.length)
    }

    /// The elements in `range`, to read. Copies nothing.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>> {
        self.as_slice().slice(range)
    }

    /// The elements in `range`, to write. Copies nothing.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// # use forebay::HostDevice;
    /// # let memory = BufferManager::new(&HostDevice::open()?)?;
    /// let mut buffer = memory.buffer::<i32>(1000)?;
    /// buffer.slice_mut(100..300)?.fill(7)?;
    /// assert_eq!(buffer.host()?[299..301], [7, 0]);
    /// assert!(buffer.slice(900..1001).is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSliceMut<'_, T>> {
        self.as_slice_mut().into_slice(range)
    }

    /// Returns the elements in host memory, to read. Copies what the host lacks, and waits.
    pub fn host(&self) -> Result<&[T]> {
        self.as_slice().host()
    }

    /// Returns the elements in host memory, to read and write. Copies what the host lacks; waits for that and for
    /// copies that still read host memory.
    pub fn host_mut(&mut self) -> Result<HostMut<'_, T>> {
        HostMut::acquire(&mut self.raw, &(0..self.length), Access::Update)
    }

    /// As `host_mut`, to write all elements: copies nothing. Elements that are not written have unspecified but
    /// initialised values.
    pub fn host_overwrite(&mut self) -> Result<HostMut<'_, T>> {
        HostMut::acquire(&mut self.raw, &(0..self.length), Access::Overwrite)
    }

    /// Replaces all elements with those of `from`, which may be on another device. Copies on `stream` if both share a
    /// device where the data is current, else through the host. Fails if the lengths differ.
    pub fn copy_from(&mut self, from: &Self, stream: impl Into<StreamHandle>) -> Result<()> {
        check_length("from", from.len(), self.length)?;
        let size = self.size();
        let linear =
            |from, to| Ok(hal::Copy::linear(Location::Device(to), Location::Device(from), size)?);
        let mut source = from.raw.shared()?;
        if self.raw.exclusive().copy_on_device(
            &mut source,
            Access::Overwrite,
            stream.into(),
            linear,
        )? {
            return Ok(());
        }
        drop(source);
        self.copy_from_slice(from.host()?)
    }

    /// The elements in device memory, for work on `stream` to read. Copies what the device lacks, on that stream.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// # use forebay::{HostDevice, StreamHandle};
    /// # let memory = BufferManager::new(&HostDevice::open()?)?;
    /// let buffer = memory.buffer_from(&[1.0_f32, 2.0, 3.0])?;
    /// let on_device = buffer.on_device(StreamHandle::DEFAULT)?;
    /// println!("a kernel on {} may read {}", on_device.stream(), on_device.address());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn on_device(&self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.as_slice().on_device(stream)
    }

    /// As `on_device`, to read and write. The device's elements then count as newer than the host's.
    pub fn on_device_mut(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.on_device_as(Access::Update, stream.into())
    }

    /// As `on_device`, for work on `stream` that writes all elements and reads none: copies nothing.
    pub fn on_device_overwrite(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.on_device_as(Access::Overwrite, stream.into())
    }

    pub(super) fn on_device_as(
        &mut self,
        access: Access,
        to: StreamHandle,
    ) -> Result<OnDevice<'_>> {
        OnDevice::acquire::<T>(self.raw.exclusive(), &(0..self.length), access, to)
    }

    /// Replaces all elements. Fails if the lengths differ.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.as_slice_mut().copy_from_slice(from)
    }

    /// Copies all elements to `to`. Fails if the lengths differ.
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(to)
    }

    /// Copies all elements to a vector.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        host_vec::copied(self.host()?, Call::Copy)
    }

    /// Sets all elements to one value.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.as_slice_mut().fill(value)
    }

    /// Makes both replicas current: the device's in the order of `stream`.
    pub fn synchronize(&self, stream: impl Into<StreamHandle>) -> Result<()> {
        self.host()?;
        let _ = self.on_device(stream)?;
        Ok(())
    }

    /// Frees the memory of a replica, after copying data that only it has to the other. Returns the bytes freed. Copies
    /// to the device are enqueued on `stream`, and waited for. Host memory that the program supplied
    /// ([`BufferManager::wrap`](super::BufferManager::wrap)) is kept.
    pub fn compact(&mut self, replica: Replica, stream: impl Into<StreamHandle>) -> Result<Bytes> {
        Ok(Bytes::new(self.raw.exclusive().drop_replica(replica, stream.into())?))
    }

    /// Discards the contents of a replica; the next use copies them from the other one. Elements that the other lacks
    /// become zero. Has no effect if there is one replica, or on read-only host memory.
    pub fn invalidate(&mut self, replica: Replica) {
        self.raw.exclusive().invalidate(replica);
    }

    /// Changes the number of elements: keeps the first ones, zeroes new ones. Moves the contents to new host memory.
    /// Fails if the program owns the host memory.
    pub fn resize(&mut self, length: usize) -> Result<()> {
        self.raw.exclusive().resize(size_of_elements::<T>(length)?)?;
        self.length = length;
        Ok(())
    }

    /// Whether both buffers have the same elements, byte for byte. Copies what the host lacks of either.
    pub fn equals(&self, other: &Self) -> Result<bool> {
        if self.length != other.length {
            return Ok(false);
        }
        let (one, two) = (self.host()?, other.host()?);
        Ok(bytemuck::cast_slice::<T, u8>(one) == bytemuck::cast_slice::<T, u8>(two))
    }
}
