//! Consecutive elements of a buffer.

use core::marker::PhantomData;
use core::ops::{Range, RangeBounds};

use bytemuck::Pod;
use forebay_hal::{Call, StreamHandle, invalid};

use super::access::Access;
use super::bulk;
use super::guard::{HostMut, OnDevice, bytes_of};
use super::raw::RawBuffer;
use crate::Result;
use crate::range::{check_length, resolve};

/// Elements of a [`Buffer`](super::Buffer), to read. Made by [`slice`](super::Buffer::slice).
#[derive(Clone, Debug)]
#[must_use = "a slice does nothing by itself"]
pub struct BufferSlice<'a, T: Pod> {
    pub(super) raw: &'a RawBuffer,
    /// Elements of type `T`, counted from the beginning of the buffer.
    pub(super) elements: Range<usize>,
    element: PhantomData<T>,
}

/// Elements of a [`Buffer`](super::Buffer), to write. Made by [`slice_mut`](super::Buffer::slice_mut).
#[derive(Debug)]
#[must_use = "a slice does nothing by itself"]
pub struct BufferSliceMut<'a, T: Pod> {
    raw: &'a mut RawBuffer,
    elements: Range<usize>,
    element: PhantomData<T>,
}

/// The part of `elements` that is in `range`.
fn part(elements: &Range<usize>, range: impl RangeBounds<usize>) -> Result<Range<usize>> {
    let within = resolve(range, elements.len())?;
    Ok(elements.start + within.start..elements.start + within.end)
}

/// The elements of type `U` in the memory of elements of type `T`.
fn cast<T: Pod, U: Pod>(raw: &RawBuffer, elements: &Range<usize>) -> Result<Range<usize>> {
    let bytes = bytes_of::<T>(elements);
    let size = size_of::<U>() as u64;
    let fits = |at: u64| size != 0 && at.is_multiple_of(size);
    let alignment = (align_of::<T>() as u64).max(raw.shared()?.host_alignment());
    if !fits(bytes.start) || !fits(bytes.end) || align_of::<U>() as u64 > alignment {
        let given = format!("bytes {} to {}", bytes.start, bytes.end);
        let allowed = format!("whole elements of {size} B, from the beginning of the buffer on");
        return Err(invalid(Call::Copy, "type", given, allowed).into());
    }
    let index = |at: u64| usize::try_from(at / size).unwrap_or(usize::MAX);
    Ok(index(bytes.start)..index(bytes.end))
}

impl<'a, T: Pod> BufferSlice<'a, T> {
    /// The elements are within the buffer.
    pub(super) fn of(raw: &'a RawBuffer, elements: Range<usize>) -> Self {
        Self { raw, elements, element: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The elements in `range` of this slice.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self::of(self.raw, part(&self.elements, range)?))
    }

    /// Reinterprets the bytes as elements of another type. Fails unless their start, counted from the beginning of the
    /// buffer, and their size are multiples of its size.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// # use forebay::HostDevice;
    /// # let memory = BufferManager::new(&HostDevice::open()?)?;
    /// let buffer = memory.buffer_from(&[1.0_f32; 6])?;
    /// assert_eq!(buffer.slice(2..)?.cast::<u32>()?.host()?, [0x3f80_0000; 4]);
    /// assert!(buffer.slice(1..)?.cast::<[u8; 16]>().is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn cast<U: Pod>(self) -> Result<BufferSlice<'a, U>> {
        Ok(BufferSlice::of(self.raw, cast::<T, U>(self.raw, &self.elements)?))
    }

    /// As [`Buffer::host`](super::Buffer::host).
    pub fn host(&self) -> Result<&'a [T]> {
        let bytes = self.raw.host(bytes_of::<T>(&self.elements))?;
        // The memory is aligned for the type, so the cast succeeds.
        Ok(bytemuck::try_cast_slice(bytes).unwrap_or_default())
    }

    /// As [`Buffer::on_device`](super::Buffer::on_device).
    pub fn on_device(&self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'a>> {
        let mut replicas = self.raw.shared()?;
        OnDevice::acquire::<T>(&mut replicas, &self.elements, Access::Read, stream.into())
    }

    /// As [`Buffer::copy_to_slice`](super::Buffer::copy_to_slice).
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        check_length("to", to.len(), self.len())?;
        to.copy_from_slice(self.host()?);
        Ok(())
    }
}

impl<'a, T: Pod> BufferSliceMut<'a, T> {
    /// The elements are within the buffer.
    pub(super) fn of(raw: &'a mut RawBuffer, elements: Range<usize>) -> Self {
        Self { raw, elements, element: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// The same elements, to read.
    pub fn as_slice(&self) -> BufferSlice<'_, T> {
        BufferSlice::of(self.raw, self.elements.clone())
    }

    /// The elements in `range` of this slice.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Result<BufferSliceMut<'_, T>> {
        Ok(BufferSliceMut::of(self.raw, part(&self.elements, range)?))
    }

    /// As `slice_mut`, for as long as the buffer is borrowed.
    pub fn into_slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { elements: part(&self.elements, range)?, ..self })
    }

    /// As [`BufferSlice::cast`].
    pub fn cast<U: Pod>(self) -> Result<BufferSliceMut<'a, U>> {
        let elements = cast::<T, U>(self.raw, &self.elements)?;
        Ok(BufferSliceMut::of(self.raw, elements))
    }

    /// As [`Buffer::host_mut`](super::Buffer::host_mut).
    pub fn host_mut(&mut self) -> Result<HostMut<'_, T>> {
        HostMut::acquire(self.raw, &self.elements, Access::Update)
    }

    /// As [`Buffer::host_overwrite`](super::Buffer::host_overwrite).
    pub fn host_overwrite(&mut self) -> Result<HostMut<'_, T>> {
        HostMut::acquire(self.raw, &self.elements, Access::Overwrite)
    }

    /// As [`Buffer::on_device_mut`](super::Buffer::on_device_mut).
    pub fn on_device_mut(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        let replicas = self.raw.exclusive();
        OnDevice::acquire::<T>(replicas, &self.elements, Access::Update, stream.into())
    }

    /// As [`Buffer::on_device_overwrite`](super::Buffer::on_device_overwrite).
    pub fn on_device_overwrite(&mut self, stream: impl Into<StreamHandle>) -> Result<OnDevice<'_>> {
        let replicas = self.raw.exclusive();
        OnDevice::acquire::<T>(replicas, &self.elements, Access::Overwrite, stream.into())
    }

    /// As [`Buffer::copy_from_slice`](super::Buffer::copy_from_slice).
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        check_length("from", from.len(), self.len())?;
        self.host_overwrite()?.copy_from_slice(from);
        Ok(())
    }

    /// As [`Buffer::fill`](super::Buffer::fill). Zeroing costs nothing until the elements are needed, on either side.
    pub fn fill(&mut self, value: T) -> Result<()> {
        let is_zero = bytemuck::bytes_of(&value).iter().all(|&byte| byte == 0);
        let replicas = self.raw.exclusive();
        // Write memory of the program at once: the program may read it after the buffer is gone.
        if is_zero && !replicas.is_external() {
            replicas.coherence.cleared(bytes_of::<T>(&self.elements));
            return Ok(());
        }
        bulk::fill(&mut self.host_overwrite()?, value);
        Ok(())
    }
}
