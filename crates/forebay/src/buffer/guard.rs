//! What a buffer lends out: a view of the host's replica, and an address on the device.

use core::ops::{Deref, DerefMut, Range};

use bytemuck::Pod;
use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use super::raw::RawBuffer;
use crate::Result;

/// Elements of a buffer in host memory, to read and write. The first mutable use marks them as newer than the device's;
/// reading marks nothing.
///
/// Read-only memory ([`Memory::wrap_read_only`](super::Memory::wrap_read_only)) has such guards too, made by
/// [`Buffer::map`](super::Buffer::map) with [`Access::Read`](super::Access::Read) and by
/// [`Buffer::fetch`](super::Buffer::fetch). They read all elements and write none: a mutable use gets an empty slice,
/// and [`try_mut`](Self::try_mut) an error.
///
/// The guard borrows the buffer, so that nothing copies the elements meanwhile:
///
/// ```compile_fail,E0499
/// # use forebay::buffer::Memory;
/// # use forebay::{HostDevice, StreamHandle};
/// # let memory = Memory::new(&HostDevice::open()?)?;
/// let mut buffer = memory.buffer::<f32>(10)?;
/// let mut view = buffer.host_mut()?;
/// buffer.on_device(StreamHandle::DEFAULT)?;
/// view.fill(1.0);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "it is for writing through"]
pub struct HostMut<'a, T: Pod> {
    raw: &'a mut RawBuffer,
    elements: Range<usize>,
    marked: bool,
    element: core::marker::PhantomData<T>,
}

impl<'a, T: Pod> HostMut<'a, T> {
    /// The caller has acquired `elements` on the host, for writing unless they are read-only.
    pub(super) fn new(raw: &'a mut RawBuffer, elements: Range<usize>) -> Self {
        Self { raw, elements, marked: false, element: core::marker::PhantomData }
    }
}

impl<T: Pod> HostMut<'_, T> {
    /// The elements, to write. Fails with [`Error::ReadOnly`](crate::Error::ReadOnly) if they are read-only.
    ///
    /// ```
    /// use forebay::Error;
    /// use forebay::buffer::{Access, Memory};
    ///
    /// let mut table = Memory::host()?.wrap_read_only([1, 2, 3])?;
    /// let mut view = table.map(Access::Read)?;
    /// assert_eq!(view[..], [1, 2, 3]);
    /// assert!(matches!(view.try_mut(), Err(Error::ReadOnly { .. })));
    /// assert!(matches!(table.map(Access::Update), Err(Error::ReadOnly { .. })));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn try_mut(&mut self) -> Result<&mut [T]> {
        if self.raw.is_read_only() {
            return Err(self.raw.read_only());
        }
        Ok(self)
    }
}

impl<T: Pod> Deref for HostMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: acquired when the guard was made, and borrowed since.
        let bytes = unsafe { self.raw.host_bytes() };
        elements_of(bytes, &self.elements)
    }
}

impl<T: Pod> DerefMut for HostMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if self.raw.is_read_only() {
            return &mut [];
        }
        if !self.marked {
            self.marked = true;
            self.raw.mark_host_written(bytes_of::<T>(&self.elements));
        }
        // SAFETY: acquired for writing when the guard was made, and borrowed since.
        let bytes = unsafe { self.raw.host_bytes_mut() };
        elements_of_mut(bytes, &self.elements)
    }
}

/// The byte range of elements.
pub(super) fn bytes_of<T>(elements: &Range<usize>) -> Range<u64> {
    let size = size_of::<T>() as u64;
    let byte = |index: usize| (index as u64).saturating_mul(size);
    byte(elements.start)..byte(elements.end)
}

/// Elements of a replica. The memory is aligned for the type, so the cast succeeds.
pub(super) fn elements_of<'a, T: Pod>(bytes: &'a [u8], elements: &Range<usize>) -> &'a [T] {
    let part = bytes.get(within::<T>(elements)).unwrap_or_default();
    bytemuck::try_cast_slice(part).unwrap_or_default()
}

/// The same, mutable.
pub(super) fn elements_of_mut<'a, T: Pod>(
    bytes: &'a mut [u8],
    elements: &Range<usize>,
) -> &'a mut [T] {
    let part = bytes.get_mut(within::<T>(elements)).unwrap_or_default();
    bytemuck::try_cast_slice_mut(part).unwrap_or_default()
}

fn within<T>(elements: &Range<usize>) -> Range<usize> {
    let byte = |index: usize| index.saturating_mul(size_of::<T>());
    byte(elements.start)..byte(elements.end)
}

/// Elements of a buffer in device memory, current and ordered for work on one stream.
///
/// Work enqueued on that stream from now on may use them. This borrows the buffer: work enqueued after it is dropped,
/// through a saved address, is not ordered with later uses of the buffer.
#[derive(Clone, Copy, Debug)]
#[must_use = "the address is for a kernel"]
pub struct OnDevice<'a> {
    address: Address,
    size: Bytes,
    stream: StreamHandle,
    buffer: core::marker::PhantomData<&'a mut ()>,
}

impl OnDevice<'_> {
    /// `size` bytes at `address`, for types that implement [`DeviceBuffer`](super::DeviceBuffer) over their own memory.
    pub fn new(address: Address, size: Bytes, stream: impl Into<StreamHandle>) -> Self {
        Self { address, size, stream: stream.into(), buffer: core::marker::PhantomData }
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The size of the elements in bytes.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The stream that the elements are ordered for.
    pub fn stream(&self) -> StreamHandle {
        self.stream
    }
}
