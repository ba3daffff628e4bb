//! What a buffer lends out: a view of the host's replica, and an address on the device.

use core::ops::{Deref, DerefMut, Range};

use bytemuck::Pod;
use forebay_core::{Address, Bytes, Coherence, Replica};
use forebay_hal::StreamHandle;

use super::access::Access;
use super::raw::RawBuffer;
use super::replicas::Replicas;
use super::replicas::offset;
use crate::Result;

/// Elements of a buffer in host memory, to read and write. The first mutable use marks them as newer than the device's;
/// reading marks nothing.
///
/// The guard borrows the buffer, so that nothing copies the elements meanwhile:
///
/// ```compile_fail,E0502
/// # use forebay::buffer::BufferManager;
/// # use forebay::{HostDevice, StreamHandle};
/// # let memory = BufferManager::new(&HostDevice::open()?)?;
/// let mut buffer = memory.buffer::<f32>(10)?;
/// let mut view = buffer.host_mut()?;
/// buffer.on_device(StreamHandle::DEFAULT)?;
/// view.fill(1.0);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "it is for writing through"]
pub struct HostMut<'a, T: Pod> {
    elements: &'a mut [T],
    /// Where to mark these bytes as written; `None` once they are.
    unmarked: Option<(&'a mut Coherence, Range<u64>)>,
}

impl<'a, T: Pod> HostMut<'a, T> {
    /// Elements of `raw` for an access that writes.
    pub(super) fn acquire(
        raw: &'a mut RawBuffer,
        elements: &Range<usize>,
        access: Access,
    ) -> Result<Self> {
        let bytes = bytes_of::<T>(elements);
        let (part, coherence) = raw.host_mut(bytes.clone(), access)?;
        // The memory is aligned for the type, so the cast succeeds.
        let elements = bytemuck::try_cast_slice_mut(part).unwrap_or_default();
        Ok(Self { elements, unmarked: Some((coherence, bytes)) })
    }
}

impl<T: Pod> Deref for HostMut<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Pod> DerefMut for HostMut<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        if let Some((coherence, bytes)) = self.unmarked.take() {
            coherence.written(Replica::Host, bytes);
        }
        self.elements
    }
}

/// The byte range of elements.
pub(super) fn bytes_of<T>(elements: &Range<usize>) -> Range<u64> {
    let size = size_of::<T>() as u64;
    let byte = |index: usize| (index as u64).saturating_mul(size);
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
    buffer: core::marker::PhantomData<&'a ()>,
}

impl OnDevice<'_> {
    /// Elements of type `T` in a buffer whose replicas are given.
    pub(super) fn acquire<T>(
        replicas: &mut Replicas,
        elements: &Range<usize>,
        access: Access,
        stream: StreamHandle,
    ) -> Result<Self> {
        let (bytes, stream) = (bytes_of::<T>(elements), stream.resolved());
        let start = replicas.acquire_device(bytes.clone(), access, stream)?;
        Ok(Self::new(offset(start, bytes.start)?, Bytes::new(bytes.end - bytes.start), stream))
    }

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
