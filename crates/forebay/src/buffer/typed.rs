//! The buffer that programs use, and its slices.

use core::marker::PhantomData;
use core::ops::{Range, RangeBounds};

use bytemuck::Pod;
use forebay_core::{BufferState, Bytes, Replica};
use forebay_hal::{Call, StreamHandle, invalid};

use super::access::Access;
use super::bulk;
use super::figures::BufferFigures;
use super::guard::{HostMut, OnDevice, bytes_of, elements_of};
use super::raw::{RawBuffer, offset};
use super::registry::Registration;
use crate::range::resolve;
use crate::{Result, host_vec};

/// Elements with a replica on the host and one on a device. They are copied only when, and as far as, a use needs them.
/// Made by [`Memory::buffer`](super::Memory::buffer).
#[derive(Debug)]
pub struct Buffer<T: Pod> {
    pub(super) raw: RawBuffer,
    length: usize,
    registration: Registration,
    element: PhantomData<T>,
}

/// Consecutive elements of a buffer. A slice borrows the buffer and shares its elements; making one copies nothing.
#[derive(Debug)]
#[must_use = "a slice does nothing by itself"]
pub struct BufferSlice<'a, T: Pod> {
    pub(super) raw: &'a mut RawBuffer,
    /// Elements of type `T`, counted from the beginning of the buffer.
    pub(super) elements: Range<usize>,
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
        Bytes::new(self.raw.size())
    }

    /// Its id in the manager's list.
    pub fn id(&self) -> u64 {
        self.registration.id
    }

    /// Which replicas exist, and which is newer.
    pub fn state(&self) -> BufferState {
        self.raw.state()
    }

    /// Its memory use, and its copies so far.
    pub fn figures(&self) -> BufferFigures {
        self.raw.figures.read()
    }

    /// All elements as a slice.
    pub fn as_slice(&mut self) -> BufferSlice<'_, T> {
        BufferSlice { elements: 0..self.length, raw: &mut self.raw, element: PhantomData }
    }

    /// The elements in `range`. Copies nothing.
    ///
    /// ```
    /// # use forebay::buffer::Memory;
    /// # use forebay::HostDevice;
    /// # let memory = Memory::new(&HostDevice::open()?)?;
    /// let mut buffer = memory.buffer::<i32>(1000)?;
    /// buffer.slice(100..300)?.host_mut()?.fill(7);
    /// assert_eq!(buffer.host()?[299..301], [7, 0]);
    /// assert!(buffer.slice(900..1001).is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>> {
        let elements = resolve(range, self.length)?;
        Ok(BufferSlice { elements, raw: &mut self.raw, element: PhantomData })
    }

    /// Returns the elements in host memory, to read. Copies what the host lacks, and waits.
    pub fn host(&mut self) -> Result<&[T]> {
        self.as_slice().into_host()
    }

    /// Returns the elements in host memory, to read and write. Copies what the host lacks; waits for that and for
    /// copies that still read host memory.
    pub fn host_mut(&mut self) -> Result<HostMut<'_, T>> {
        self.as_slice().into_host_mut(Access::Update)
    }

    /// Maps the elements in host memory for that kind of access. [`Access::Overwrite`] copies nothing, and the caller
    /// must write all elements: others have unspecified but initialised values. With [`Access::Read`] the guard can be
    /// written through too, unless the memory is read-only.
    pub fn map(&mut self, access: Access) -> Result<HostMut<'_, T>> {
        self.as_slice().into_host_mut(access)
    }

    /// Replaces all elements with those of `from`, which may be on another device. Copies on `stream` if both share a
    /// device where the data is current, else through the host. Fails if the lengths differ.
    pub fn copy_from(&mut self, from: &mut Self, stream: impl Into<StreamHandle>) -> Result<()> {
        self.as_slice().check_length("from", from.len())?;
        if !self.raw.copy_on_device(&mut from.raw, stream.into())? {
            self.copy_from_slice(from.host()?)?;
        }
        Ok(())
    }

    /// The elements in device memory, for work on `stream` to read. Copies what the device lacks, on that stream.
    ///
    /// ```
    /// # use forebay::buffer::Memory;
    /// # use forebay::{HostDevice, StreamHandle};
    /// # let memory = Memory::new(&HostDevice::open()?)?;
    /// let mut buffer = memory.buffer_from(&[1.0_f32, 2.0, 3.0])?;
    /// let on_device = buffer.on_device(StreamHandle::DEFAULT)?;
    /// println!("a kernel on {} may read {}", on_device.stream(), on_device.address());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn on_device(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.as_slice().into_device(Access::Read, stream.into())
    }

    /// As `on_device`, to read and write. The device's elements then count as newer than the host's.
    pub fn on_device_mut(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.as_slice().into_device(Access::Update, stream.into())
    }

    /// As `on_device`, for work on `stream` that writes all elements and reads none: copies nothing.
    pub fn on_device_overwrite(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.as_slice().into_device(Access::Overwrite, stream.into())
    }

    /// Replaces all elements. Fails if the lengths differ.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.as_slice().copy_from_slice(from)
    }

    /// Copies all elements to `to`. Fails if the lengths differ.
    pub fn copy_to_slice(&mut self, to: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(to)
    }

    /// Copies all elements to a vector.
    pub fn to_vec(&mut self) -> Result<Vec<T>> {
        host_vec::copied(self.host()?, Call::Copy)
    }

    /// Sets all elements to one value.
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.as_slice().fill(value)
    }

    /// Makes both replicas current: the device's in the order of `stream`.
    pub fn synchronize(&mut self, stream: impl Into<StreamHandle>) -> Result<()> {
        let all = 0..self.raw.size();
        self.raw.acquire_host(all.clone(), Access::Read)?;
        self.raw.acquire_device(all, Access::Read, stream.into())?;
        Ok(())
    }

    /// Frees the memory of a replica, after copying data that only it has to the other. Returns the bytes freed. Copies
    /// to the device are enqueued on `stream`, and waited for. Host memory that the program supplied
    /// ([`Memory::wrap`](super::Memory::wrap)) is kept.
    pub fn compact(&mut self, replica: Replica, stream: impl Into<StreamHandle>) -> Result<Bytes> {
        Ok(Bytes::new(self.raw.drop_replica(replica, stream.into())?))
    }

    /// Discards the contents of a replica; the next use copies them from the other one. Elements that the other lacks
    /// become zero. Has no effect if there is one replica, or on read-only host memory.
    pub fn invalidate(&mut self, replica: Replica) {
        let all = 0..self.raw.size();
        self.raw.invalidate(replica, all);
    }

    /// Changes the number of elements: keeps the first ones, zeroes new ones. Moves the contents to new host memory.
    /// Fails if the program owns the host memory.
    pub fn resize(&mut self, length: usize) -> Result<()> {
        self.raw.resize(size_of_elements::<T>(length)?)?;
        self.length = length;
        Ok(())
    }

    /// Whether both buffers have the same elements, byte for byte. Copies what the host lacks of either.
    pub fn equals(&mut self, other: &mut Self) -> Result<bool> {
        if self.length != other.length {
            return Ok(false);
        }
        let (one, two) = (self.host()?, other.host()?);
        Ok(bytemuck::cast_slice::<T, u8>(one) == bytemuck::cast_slice::<T, u8>(two))
    }
}

impl<'a, T: Pod> BufferSlice<'a, T> {
    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// A part of this slice, which it borrows.
    pub fn slice(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSlice<'_, T>> {
        let within = resolve(range, self.len())?;
        let start = self.elements.start;
        let elements = start + within.start..start + within.end;
        Ok(BufferSlice { raw: self.raw, elements, element: PhantomData })
    }

    /// Reinterprets the bytes as elements of another type. Fails unless their start, counted from the beginning of the
    /// buffer, and their size are multiples of its size.
    ///
    /// ```
    /// # use forebay::buffer::Memory;
    /// # use forebay::HostDevice;
    /// # let memory = Memory::new(&HostDevice::open()?)?;
    /// let mut buffer = memory.buffer_from(&[1.0_f32; 6])?;
    /// assert_eq!(buffer.slice(2..)?.cast::<u32>()?.host()?, [0x3f80_0000; 4]);
    /// assert!(buffer.slice(1..)?.cast::<[u8; 16]>().is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn cast<U: Pod>(self) -> Result<BufferSlice<'a, U>> {
        let bytes = bytes_of::<T>(&self.elements);
        let size = size_of::<U>() as u64;
        let fits = |at: u64| size != 0 && at.is_multiple_of(size);
        let aligned =
            align_of::<U>() as u64 <= (align_of::<T>() as u64).max(self.raw.host_alignment());
        if !fits(bytes.start) || !fits(bytes.end) || !aligned {
            let given = format!("bytes {} to {}", bytes.start, bytes.end);
            let allowed =
                format!("whole elements of {size} B, from the beginning of the buffer on");
            return Err(invalid(Call::Copy, "type", given, allowed).into());
        }
        let index = |at: u64| usize::try_from(at / size).unwrap_or(usize::MAX);
        let elements = index(bytes.start)..index(bytes.end);
        Ok(BufferSlice { raw: self.raw, elements, element: PhantomData })
    }

    /// As [`Buffer::host`].
    pub fn host(&mut self) -> Result<&[T]> {
        self.reborrow().into_host()
    }

    /// As [`Buffer::host_mut`].
    pub fn host_mut(&mut self) -> Result<HostMut<'_, T>> {
        self.reborrow().into_host_mut(Access::Update)
    }

    /// As [`Buffer::map`].
    pub fn map(&mut self, access: Access) -> Result<HostMut<'_, T>> {
        self.reborrow().into_host_mut(access)
    }

    /// As [`Buffer::on_device`].
    pub fn on_device(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.reborrow().into_device(Access::Read, stream.into())
    }

    /// As [`Buffer::on_device_mut`].
    pub fn on_device_mut(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.reborrow().into_device(Access::Update, stream.into())
    }

    /// As [`Buffer::on_device_overwrite`].
    pub fn on_device_overwrite(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        self.reborrow().into_device(Access::Overwrite, stream.into())
    }

    /// As [`Buffer::copy_from_slice`].
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.check_length("from", from.len())?;
        self.map(Access::Overwrite)?.copy_from_slice(from);
        Ok(())
    }

    /// As [`Buffer::copy_to_slice`].
    pub fn copy_to_slice(&mut self, to: &mut [T]) -> Result<()> {
        self.check_length("to", to.len())?;
        to.copy_from_slice(self.host()?);
        Ok(())
    }

    /// As [`Buffer::fill`]. Zeroing costs nothing until the elements are needed, on either side.
    pub fn fill(&mut self, value: T) -> Result<()> {
        let is_zero = bytemuck::bytes_of(&value).iter().all(|&byte| byte == 0);
        // Write memory of the program at once: the program may read it after the buffer is gone.
        if is_zero && !self.raw.is_external() {
            self.raw.clear(bytes_of::<T>(&self.elements));
            return Ok(());
        }
        bulk::fill(&mut self.map(Access::Overwrite)?, value);
        Ok(())
    }

    fn reborrow(&mut self) -> BufferSlice<'_, T> {
        BufferSlice { raw: self.raw, elements: self.elements.clone(), element: PhantomData }
    }

    fn into_host(self) -> Result<&'a [T]> {
        self.raw.acquire_host(bytes_of::<T>(&self.elements), Access::Read)?;
        // SAFETY: acquired, and borrowed as long as the elements are.
        let bytes = unsafe { self.raw.host_bytes() };
        Ok(elements_of(bytes, &self.elements))
    }

    pub(super) fn into_host_mut(self, access: Access) -> Result<HostMut<'a, T>> {
        let access = if access == Access::Read { self.raw.access_of_guard() } else { access };
        self.raw.acquire_host(bytes_of::<T>(&self.elements), access)?;
        Ok(HostMut::new(self.raw, self.elements))
    }

    /// Makes a guard once the copies that were [started](RawBuffer::start_host) are done.
    pub(super) fn into_arrived(self) -> Result<HostMut<'a, T>> {
        self.raw.finish_host(self.raw.access_of_guard())?;
        Ok(HostMut::new(self.raw, self.elements))
    }

    fn into_device(self, access: Access, stream: StreamHandle) -> Result<OnDevice<'a>> {
        let (bytes, stream) = (bytes_of::<T>(&self.elements), stream.resolved());
        let start = self.raw.acquire_device(bytes.clone(), access, stream)?;
        let address = offset(start, bytes.start)?;
        Ok(OnDevice::new(address, Bytes::new(bytes.end - bytes.start), stream))
    }

    fn check_length(&self, argument: &'static str, given: usize) -> Result<()> {
        if given == self.len() {
            return Ok(());
        }
        let allowed = format!("{} elements, as many as the buffer or slice has", self.len());
        Err(invalid(Call::Copy, argument, format!("{given} elements"), allowed).into())
    }
}
