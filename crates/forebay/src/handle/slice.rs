//! Parts of an array, and all copies to, from and between arrays.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ops::RangeBounds;

use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, Location};

use super::{OwnedBlock, Pod, order};
use crate::range::{check_device, check_length, resolve};
use crate::{Allocate, Error, Pool, Result, bulk, host_vec};

/// Bytes copied at once through a staging buffer. Large enough to hide the start-up cost of a copy; small enough to
/// leak when a device fails midway.
const STAGE: usize = 4 << 20;

/// Elements of a [`DeviceArray`](super::DeviceArray), to read. Made by [`slice`](super::DeviceArray::slice).
///
/// ```
/// use forebay::Pool;
///
/// let pool = Pool::open("host")?;
/// let array = pool.default_stream().from_slice(&[1, 2, 3, 4])?;
/// assert_eq!(array.slice(1..3)?.to_vec()?, [2, 3]);
/// assert!(array.slice(3..5).is_err());
/// # Ok::<(), forebay::Error>(())
/// ```
pub struct DeviceSlice<'a, T: Pod, A: Allocate = Pool> {
    part: Part<'a, A>,
    elements: PhantomData<&'a [T]>,
}

/// Elements of a [`DeviceArray`](super::DeviceArray), to write. Made by [`slice_mut`](super::DeviceArray::slice_mut).
pub struct DeviceSliceMut<'a, T: Pod, A: Allocate = Pool> {
    part: Part<'a, A>,
    elements: PhantomData<&'a mut [T]>,
}

/// Elements of a block, by index.
struct Part<'a, A: Allocate> {
    block: &'a OwnedBlock<A>,
    first: usize,
    length: usize,
}

impl<A: Allocate> Clone for Part<'_, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<A: Allocate> Copy for Part<'_, A> {}

impl<A: Allocate> Part<'_, A> {
    /// Those of its elements within `range`.
    fn part(mut self, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = resolve(range, self.length)?;
        self.first += range.start;
        self.length = range.len();
        Ok(self)
    }

    /// The address of the first element. The block is at least as large as its elements, so nothing overflows.
    fn address<T>(&self) -> Address {
        self.block.address().saturating_add(bytes::<T>(self.first))
    }

    fn show<T>(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("element", &core::any::type_name::<T>())
            .field("first", &self.first)
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

fn bytes<T>(count: usize) -> Bytes {
    Bytes::new(size_of::<T>() as u64) * count as u64
}

/// Number of elements that fit in the stage, at least one.
fn stage_length<T>() -> usize {
    STAGE.checked_div(size_of::<T>()).unwrap_or(STAGE).max(1)
}

impl<T: Pod, A: Allocate> Clone for DeviceSlice<'_, T, A> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Pod, A: Allocate> Copy for DeviceSlice<'_, T, A> {}

impl<'a, T: Pod, A: Allocate> DeviceSlice<'a, T, A> {
    /// The first `length` elements of a block, which is large enough for them.
    pub(super) fn of(block: &'a OwnedBlock<A>, length: usize) -> Self {
        Self { part: Part { block, first: 0, length }, elements: PhantomData }
    }

    pub(super) fn block(&self) -> &'a OwnedBlock<A> {
        self.part.block
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.part.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.part.length == 0
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        self.part.address::<T>()
    }

    /// The elements in `range` of this slice. Fails if `range` is out of bounds.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { part: self.part.part(range)?, elements: PhantomData })
    }

    /// Copies the elements to `to`, in the order of the array's stream, and waits for the copy. Fails if the lengths
    /// differ. An error midway leaves a part of `to` written.
    ///
    /// Copies of a megabyte and more use the device's [transfer engine](crate::transfer), if the program made one.
    /// Others are simple, not fast: they go through a staging buffer, because a device that fails midway may keep
    /// writing, and must not write to the caller's memory then.
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        check_length("to", to.len(), self.len())?;
        // There may be up to `usize::MAX` elements without bytes.
        if size_of_val(to) == 0 {
            return Ok(());
        }
        let mut from = self.address();
        let host = Location::Host(Address::of_pointer(to.as_mut_ptr()));
        if copy_in_bulk(self.part.block, host, Location::Device(from), size_of_val(to)) {
            return Ok(());
        }
        let mut stage = Vec::with_capacity(stage_length::<T>().min(to.len()));
        for chunk in to.chunks_mut(stage_length::<T>()) {
            stage.clear();
            // Initialise the stage, so that it holds valid values whatever the device does: a phantom device writes
            // nothing.
            stage.extend_from_slice(chunk);
            stage = pass(self.part.block, stage, |host| (host, Location::Device(from)))?;
            chunk.copy_from_slice(&stage);
            from = from.saturating_add(bytes::<T>(chunk.len()));
        }
        Ok(())
    }

    /// Copies the elements to a vector, as [`copy_to_slice`](Self::copy_to_slice) does.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = host_vec::zeroed(self.part.length, Call::Copy)?;
        self.copy_to_slice(&mut elements)?;
        Ok(elements)
    }
}

impl<'a, T: Pod, A: Allocate> DeviceSliceMut<'a, T, A> {
    /// The first `length` elements of a block, which is large enough for them.
    pub(super) fn of(block: &'a mut OwnedBlock<A>, length: usize) -> Self {
        Self { part: Part { block, first: 0, length }, elements: PhantomData }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.part.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.part.length == 0
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        self.part.address::<T>()
    }

    /// The elements in `range` of this slice. Fails if `range` is out of bounds.
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceSliceMut<'_, T, A>> {
        Ok(DeviceSliceMut { part: self.part.part(range)?, elements: PhantomData })
    }

    /// As [`slice_mut`](Self::slice_mut), for as long as the array is borrowed.
    pub fn into_slice(self, range: impl RangeBounds<usize>) -> Result<Self> {
        Ok(Self { part: self.part.part(range)?, ..self })
    }

    /// The same elements, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T, A> {
        DeviceSlice { part: self.part, elements: PhantomData }
    }

    /// The elements before index `middle`, and the others. Fails if `middle` is out of bounds.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let pool = Pool::open("host")?;
    /// let mut array = pool.default_stream().from_slice(&[1, 2, 3, 4])?;
    /// let (mut low, high) = array.slice_mut(..)?.split_at_mut(2)?;
    /// low.copy_from(high.as_slice())?;
    /// assert_eq!(array.to_vec()?, [3, 4, 3, 4]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn split_at_mut(self, middle: usize) -> Result<(Self, Self)> {
        let (low, high) = (self.part.part(..middle)?, self.part.part(middle..)?);
        Ok((Self { part: low, ..self }, Self { part: high, ..self }))
    }

    /// Copies `from` to the elements, in the order of the array's stream, and waits for the copy. Fails if the lengths
    /// differ. As fast as [`copy_to_slice`](DeviceSlice::copy_to_slice).
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        check_length("from", from.len(), self.len())?;
        if size_of_val(from) == 0 {
            return Ok(());
        }
        let mut to = self.address();
        let host = Location::Host(Address::of_pointer(from.as_ptr()));
        if copy_in_bulk(self.part.block, Location::Device(to), host, size_of_val(from)) {
            return Ok(());
        }
        let mut stage = Vec::with_capacity(stage_length::<T>().min(from.len()));
        for chunk in from.chunks(stage_length::<T>()) {
            stage.clear();
            stage.extend_from_slice(chunk);
            stage = pass(self.part.block, stage, |host| (Location::Device(to), host))?;
            to = to.saturating_add(bytes::<T>(chunk.len()));
        }
        Ok(())
    }

    /// Enqueues a copy of `from` to the elements, in the order of the array's stream. The host goes on; `from` is
    /// dropped when the copy is done. Fails if the lengths differ, and during a capture, whose graph would copy from
    /// the vector again.
    pub fn copy_from_vec(&mut self, from: Vec<T>) -> Result<()>
    where
        T: Send,
    {
        check_length("from", from.len(), self.len())?;
        if size_of_val(from.as_slice()) == 0 {
            return Ok(());
        }
        let block = self.part.block;
        if block.allocator().is_capturing() {
            let missing = "a vector that lives as long as the graph".into();
            return Err(hal::Error::Unsupported { call: Call::Copy, missing }.into());
        }
        let host = Location::Host(Address::of_pointer(from.as_ptr()));
        let (to, size) = (Location::Device(self.address()), bytes::<T>(from.len()));
        let copy = hal::Copy::linear(to, host, size)?;
        let (device, stream) = (block.allocator().device(), block.stream_to_use()?);
        device.descriptor().check_process(Call::Copy)?;
        // SAFETY: the vector is dropped after the copy, or never. The device's side is within the block, which is reused
        // only after the work of this stream.
        if let Err(error) = unsafe { device.copy(&copy, stream) } {
            // Nothing of a copy that failed touches the host's memory any more, except on a device that is lost.
            if matches!(error, hal::Error::Lost { .. }) {
                core::mem::forget(from);
            }
            return Err(error.into());
        }
        // Leaked if the task is dropped without being run.
        let from = ManuallyDrop::new(from);
        let task = Box::new(move || drop(ManuallyDrop::into_inner(from)));
        // The copy is enqueued, so the call has succeeded even if the vector leaks.
        let _ = device.enqueue_host(task, stream);
        Ok(())
    }

    /// Enqueues a copy of `from`, of an array or slice on the same device, to the elements. The host does not wait:
    /// this array's stream waits, on the device, for the work so far on the other's, and later work of the other
    /// array's calls comes after the copy. Fails if the lengths differ.
    ///
    /// Between devices, use [`copy_between`](crate::TransferEngine::copy_between).
    pub fn copy_from<'b, B: Allocate + 'b>(
        &mut self,
        from: impl Into<DeviceSlice<'b, T, B>>,
    ) -> Result<()>
    where
        T: 'b,
    {
        let from = from.into();
        check_length("from", from.len(), self.len())?;
        let (to, source) = (self.part.block, from.part.block);
        let (device, other) = (to.allocator().device(), source.allocator().device());
        check_device(other, device)?;
        let size = bytes::<T>(from.len());
        if size.is_zero() {
            return Ok(());
        }
        let (there, here) = (Location::Device(from.address()), Location::Device(self.address()));
        let copy = hal::Copy::linear(here, there, size)?;
        let earlier = source.stream_in_order()?;
        let stream = to.stream_to_use()?;
        order::after(device, stream, [earlier])?;
        device.descriptor().check_process(Call::Copy)?;
        // SAFETY: both sides are within their blocks. Each is reused only after the work of this stream: it is the
        // one's own, and a recorded use of the other.
        let copied = unsafe { device.copy(&copy, stream) };
        // Also after an error, as a part may be under way.
        source.leave_work_on(stream);
        Ok(copied?)
    }

    /// Sets all elements to one value, in the order of the array's stream. If the value repeats one, two or four bytes,
    /// as zeros do, the device fills without a wait; else the values are copied.
    pub fn fill(&mut self, value: T) -> Result<()> {
        let size = bytes::<T>(self.len());
        if size.is_zero() {
            return Ok(());
        }
        let Some(pattern) = pattern_of(bytemuck::bytes_of(&value)) else {
            let chunk = vec![value; stage_length::<T>().min(self.len())];
            for first in (0..self.len()).step_by(chunk.len().max(1)) {
                let count = chunk.len().min(self.len() - first);
                let mut part = self.slice_mut(first..first + count)?;
                part.copy_from_slice(chunk.get(..count).unwrap_or_default())?;
            }
            return Ok(());
        };
        let block = self.part.block;
        let (device, stream) = (block.allocator().device(), block.stream_to_use()?);
        device.descriptor().check_process(Call::Fill)?;
        let fill = hal::Fill::linear(self.address(), size, pattern)?;
        // SAFETY: the elements are within the block, which is reused only after the work of this stream, wherever the
        // handle goes.
        unsafe { device.fill(&fill, stream) }?;
        Ok(())
    }
}

/// Copies large memory of the caller with a transfer engine of the device, if there is one, in the order of the
/// array's stream. Returns whether it did; if not, nothing is in flight.
fn copy_in_bulk(
    block: &OwnedBlock<impl Allocate>,
    to: Location,
    from: Location,
    size: usize,
) -> bool {
    if size < bulk::LEAST {
        return false;
    }
    let Some(engine) = bulk::engine_of(block.allocator().device()) else { return false };
    let Ok(copy) = hal::Copy::linear(to, from, Bytes::new(size as u64)) else { return false };
    let Ok(stream) = block.stream_in_order() else { return false };
    // SAFETY: the host's side is borrowed by the caller until the copy is done, and the device's side is within the
    // block, which this handle keeps. Both are plain bytes.
    unsafe { engine.copy(&copy, stream) }.is_ok()
}

/// Copies between the stage and the device, in the direction that `ends` (to, from) gives, and waits. Returns the
/// stage, or leaks it if the device may still be using it.
fn pass<T: Pod>(
    block: &OwnedBlock<impl Allocate>,
    mut stage: Vec<T>,
    ends: impl FnOnce(Location) -> (Location, Location),
) -> Result<Vec<T>> {
    let size = bytes::<T>(stage.len());
    let (to, from) = ends(Location::Host(Address::of_pointer(stage.as_mut_ptr())));
    let copy = hal::Copy::linear(to, from, size)?;
    let (device, stream) = (block.allocator().device(), block.stream_to_use()?);
    device.descriptor().check_process(Call::Copy)?;
    // Holders of its address are responsible for not freeing the block.
    // SAFETY: the host's side is the stage, given to nobody until the stream was synchronised and
    // leaked where that failed; a copy that fails has let go of it. The device's side is within the
    // block, which `new` or `from_block` has measured, and which this handle gives back after what it
    // was used on, the same stream among that.
    if let Err(error) = unsafe { device.copy(&copy, stream) } {
        // Nothing of a copy that failed touches the host's memory any more, except on a device
        // that is lost. On the device's side a part may still be under way in the order of the stream, which the
        // handle carries wherever it goes.
        if matches!(error, hal::Error::Lost { .. }) {
            core::mem::forget(stage);
        }
        return Err(error.into());
    }
    let mut waited = device.synchronize_stream(stream);
    if waited.as_ref().is_err_and(hal::Error::may_pass) {
        waited = device.synchronize_stream(stream);
    }
    if let Err(error) = waited {
        core::mem::forget(stage);
        return Err(Error::Device(error));
    }
    Ok(stage)
}

/// The pattern of one, two or four bytes that `bytes` repeats, if any.
fn pattern_of(bytes: &[u8]) -> Option<hal::Pattern> {
    let repeats = |width: usize| {
        bytes.len().is_multiple_of(width)
            && bytes.iter().zip(bytes.iter().skip(width)).all(|(a, b)| a == b)
    };
    let [one, two, four] = [1, 2, 4].map(|width| bytes.get(..width).filter(|_| repeats(width)));
    if let Some(&[byte]) = one {
        return Some(hal::Pattern::U8(byte));
    }
    if let Some(&[a, b]) = two {
        return Some(hal::Pattern::U16(u16::from_ne_bytes([a, b])));
    }
    match four {
        Some(&[a, b, c, d]) => Some(hal::Pattern::U32(u32::from_ne_bytes([a, b, c, d]))),
        _ => None,
    }
}

impl<T: Pod, A: Allocate> fmt::Debug for DeviceSlice<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.show::<T>("DeviceSlice", f)
    }
}

impl<T: Pod, A: Allocate> fmt::Debug for DeviceSliceMut<'_, T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.part.show::<T>("DeviceSliceMut", f)
    }
}
