//! A trait for everything that has elements on a device, so that code can be generic over them.

#[cfg(feature = "host")]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use bytemuck::Pod;
use forebay_core::Bytes;
use forebay_hal::StreamHandle;

use super::access::Access;
use super::guard::OnDevice;
use super::typed::Buffer;
use crate::range::check_length;
#[cfg(feature = "host")]
use crate::range::out_of_range;
use crate::{Allocate, DeviceArray, Result};

/// Number of bytes the provided methods copy at once.
const CHUNK: usize = 1 << 20;

/// Elements on a device that the host can read and write. Implemented by [`Buffer`] (managed memory too),
/// [`DeviceArray`], `PinnedArray`, [`SharedBuffer`](crate::SharedBuffer), and types of your own.
///
/// ```
/// use forebay::buffer::{Access, Buffer, DeviceBuffer, BufferManager, OnDevice};
/// use forebay::{Result, StreamHandle};
///
/// /// A type of the program's own.
/// struct Matrix {
///     columns: usize,
///     elements: Buffer<f32>,
/// }
///
/// impl DeviceBuffer for Matrix {
///     type Element = f32;
///
///     fn len(&self) -> usize {
///         self.elements.len()
///     }
///
///     fn read(&self, first: usize, to: &mut [f32]) -> Result<()> {
///         DeviceBuffer::read(&self.elements, first, to)
///     }
///
///     fn write(&mut self, first: usize, from: &[f32]) -> Result<()> {
///         DeviceBuffer::write(&mut self.elements, first, from)
///     }
///
///     fn with_device<R>(
///         &mut self,
///         access: Access,
///         stream: StreamHandle,
///         work: impl FnOnce(OnDevice<'_>) -> Result<R>,
///     ) -> Result<R> {
///         self.elements.with_device(access, stream, work)
///     }
/// }
///
/// /// Code for all of them.
/// fn total(buffer: &impl DeviceBuffer<Element = f32>) -> Result<f32> {
///     let mut elements = vec![0.0; buffer.len()];
///     buffer.read(0, &mut elements)?;
///     Ok(elements.iter().sum())
/// }
///
/// let memory = BufferManager::host()?;
/// let mut matrix = Matrix { columns: 10, elements: memory.buffer(100)? };
/// let mut array = memory.pool().default_stream().uninit::<f32>(100)?;
/// array.fill(2.0)?;
/// matrix.copy_all_from(&array)?;
/// assert_eq!((total(&matrix)?, total(&array)?, matrix.columns), (200.0, 200.0, 10));
/// # Ok::<(), forebay::Error>(())
/// ```
pub trait DeviceBuffer {
    /// The type of the elements.
    type Element: Pod;

    /// The number of elements.
    fn len(&self) -> usize;

    /// Copies the elements from index `first` on to `to`, after earlier work that writes them. Fails if the range is
    /// out of bounds.
    fn read(&self, first: usize, to: &mut [Self::Element]) -> Result<()>;

    /// Copies `from` to the elements from index `first` on, after earlier work that uses them. Fails, without writing
    /// anything, if the range is out of bounds.
    fn write(&mut self, first: usize, from: &[Self::Element]) -> Result<()>;

    /// Calls `work` with the elements in device memory. `work` enqueues work on `stream` that uses them according to
    /// `access`, ordered after earlier and before later uses of the elements. Returns the result of `work`.
    ///
    /// Fails without calling `work` if the device cannot reach the elements.
    fn with_device<R>(
        &mut self,
        access: Access,
        stream: StreamHandle,
        work: impl FnOnce(OnDevice<'_>) -> Result<R>,
    ) -> Result<R>;

    /// Whether it has no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of the elements in bytes.
    fn size(&self) -> Bytes {
        Bytes::new((self.len() as u64).saturating_mul(size_of::<Self::Element>() as u64))
    }

    /// Sets all elements to one value, using [`write`](Self::write). An error midway leaves some elements written.
    fn fill_all(&mut self, value: Self::Element) -> Result<()> {
        let chunk = vec![value; chunk_length::<Self::Element>().min(self.len())];
        for (first, count) in chunks::<Self::Element>(self.len()) {
            self.write(first, chunk.get(..count).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Replaces all elements with those of `from`, through the host. Fails if the lengths differ. An error midway
    /// leaves some elements written.
    fn copy_all_from(&mut self, from: &impl DeviceBuffer<Element = Self::Element>) -> Result<()> {
        check_length("from", from.len(), self.len())?;
        let length = chunk_length::<Self::Element>().min(self.len());
        let mut chunk = vec![bytemuck::Zeroable::zeroed(); length];
        for (first, count) in chunks::<Self::Element>(self.len()) {
            let part = chunk.get_mut(..count).unwrap_or_default();
            from.read(first, part)?;
            self.write(first, part)?;
        }
        Ok(())
    }
}

fn chunk_length<T>() -> usize {
    (CHUNK / size_of::<T>().max(1)).max(1)
}

/// Splits `length` elements into chunks: the index of the first element and the count of each.
fn chunks<T>(length: usize) -> impl Iterator<Item = (usize, usize)> {
    let step = chunk_length::<T>();
    (0..length).step_by(step).map(move |first| (first, step.min(length - first)))
}

/// Saturates, so that an impossible range is out of bounds in every buffer.
fn end(first: usize, count: usize) -> usize {
    first.saturating_add(count)
}

impl<T: Pod> DeviceBuffer for Buffer<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        self.slice(first..end(first, to.len()))?.copy_to_slice(to)
    }

    fn write(&mut self, first: usize, from: &[T]) -> Result<()> {
        self.slice_mut(first..end(first, from.len()))?.copy_from_slice(from)
    }

    fn with_device<R>(
        &mut self,
        access: Access,
        stream: StreamHandle,
        work: impl FnOnce(OnDevice<'_>) -> Result<R>,
    ) -> Result<R> {
        work(self.on_device_as(access, stream)?)
    }
}

impl<T: Pod, A: Allocate> DeviceBuffer for DeviceArray<T, A> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        self.slice(first..end(first, to.len()))?.copy_to_slice(to)
    }

    fn write(&mut self, first: usize, from: &[T]) -> Result<()> {
        self.slice_mut(first..end(first, from.len()))?.copy_from_slice(from)
    }

    /// The array belongs to `stream` from then on.
    fn with_device<R>(
        &mut self,
        _: Access,
        stream: StreamHandle,
        work: impl FnOnce(OnDevice<'_>) -> Result<R>,
    ) -> Result<R> {
        self.hand_over_to(stream)?;
        work(OnDevice::new(self.address(), DeviceBuffer::size(self), stream))
    }
}

#[cfg(feature = "host")]
impl<T: Pod> DeviceBuffer for crate::PinnedArray<T> {
    type Element = T;

    fn len(&self) -> usize {
        self.len()
    }

    fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        let (range, length) = (first..end(first, to.len()), self.len());
        let from = self.host()?.get(range.clone()).ok_or_else(|| out_of_range(&range, length))?;
        to.copy_from_slice(from);
        Ok(())
    }

    fn write(&mut self, first: usize, from: &[T]) -> Result<()> {
        let (range, length) = (first..end(first, from.len()), self.len());
        let to = self.host_mut()?.get_mut(range.clone());
        to.ok_or_else(|| out_of_range(&range, length))?.copy_from_slice(from);
        Ok(())
    }

    /// For [mapped](crate::pinned::PinnedOptions::mapped) memory. Waits on the host for earlier work, since pinned
    /// memory is not ordered between streams.
    fn with_device<R>(
        &mut self,
        access: Access,
        stream: StreamHandle,
        work: impl FnOnce(OnDevice<'_>) -> Result<R>,
    ) -> Result<R> {
        let address = self.device_address()?;
        self.wait()?;
        let on_device = OnDevice::new(address, DeviceBuffer::size(self), stream);
        let done = catch_unwind(AssertUnwindSafe(|| work(on_device)));
        // Even if the work failed or panicked, it may have enqueued a part.
        let recorded = match access {
            Access::Read => self.read_on(stream),
            Access::Update | Access::Overwrite => self.written_on(stream),
        };
        let done = done.unwrap_or_else(|panic| resume_unwind(panic))?;
        recorded?;
        Ok(done)
    }
}
