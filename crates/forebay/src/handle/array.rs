//! A block as typed elements.

use core::fmt;
use core::marker::PhantomData;

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{self as hal, Call, Place, StreamHandle, invalid, valid_span};

use super::failure::does_not_fit;
use super::{OwnedBlock, Pod, Refused};
use crate::{Allocate, Error, Pool, Request, Result, bulk, host_vec};

/// Bytes copied at once through a staging buffer. Large enough to hide the start-up cost of a copy; small enough to
/// leak when a device fails midway.
const STAGE: usize = 4 << 20;

/// An array of plain elements on a device, freed when it is dropped.
///
/// Elements are any [`Pod`] type: numbers, `half::f16`, arrays of these, and types that derive `Pod`. `bool` and `char`
/// are excluded, because some bytes are not valid values of them.
///
/// ```
/// use forebay::{DeviceArray, HostDevice, Pool, StreamHandle};
///
/// let device = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
/// let mut array = DeviceArray::<f32>::new(&pool, 1000, StreamHandle::DEFAULT)?;
/// array.copy_from_slice(&[1.5; 1000])?;
/// let mut back = [0.0; 1000];
/// array.copy_to_slice(&mut back)?;
/// assert_eq!(back, [1.5; 1000]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "the array is freed when it is dropped"]
pub struct DeviceArray<T: Pod, A: Allocate = Pool> {
    block: OwnedBlock<A>,
    length: usize,
    element: PhantomData<T>,
}

impl<T: Pod, A: Allocate> DeviceArray<T, A> {
    /// Allocates `length` elements for `stream`. The contents are undefined. [`Pool::array`] is a shorthand.
    pub fn new(allocator: &A, length: usize, stream: impl Into<StreamHandle>) -> Result<Self>
    where
        A: Clone,
    {
        let size = Self::size_of(length)?;
        // Blocks are aligned to 512 B in any case; few types need more.
        let alignment = Self::alignment().max(Alignment::BLOCK);
        let block = OwnedBlock::new(allocator, Request::new(size, stream).aligned_to(alignment))?;
        // A custom allocator may return less than requested; copies rely on the size.
        Ok(Self::from_block(block, length)?)
    }

    /// Makes an array from an owned block. Fails if `length` elements do not fit or the block is not aligned for the
    /// type.
    pub fn from_block(
        block: OwnedBlock<A>,
        length: usize,
    ) -> core::result::Result<Self, Refused<OwnedBlock<A>>> {
        let size = match Self::size_of(length) {
            Ok(size) => size,
            Err(error) => return Err(Refused::new(block, error)),
        };
        if size > block.size() {
            let given = format!("{length} elements, {} B", size.get());
            let allowed = format!("{} B, the block's size, at most", block.size().get());
            let error = invalid(Call::Allocate, "length", given, allowed);
            return Err(Refused::new(block, error.into()));
        }
        if !block.address().is_aligned_to(Self::alignment()) {
            let allowed = format!("a multiple of {} B", Self::alignment().get());
            let error = invalid(Call::Allocate, "address", block.address(), allowed);
            return Err(Refused::new(block, error.into()));
        }
        Ok(Self { block, length, element: PhantomData })
    }

    fn size_of(length: usize) -> Result<Bytes> {
        Bytes::of::<T>(length as u64).map_err(|error| does_not_fit("length", &error))
    }

    fn alignment() -> Alignment {
        // Alignments of types are powers of two, so the default is never used.
        Alignment::new(align_of::<T>() as u64).unwrap_or_default()
    }

    /// Returns the block, without the type.
    pub fn into_block(self) -> OwnedBlock<A> {
        self.block
    }

    /// The block, for its properties and to record [further streams](OwnedBlock::used_on).
    // Not mutable: copies rely on the block being as large as the elements.
    pub fn block(&self) -> &OwnedBlock<A> {
        &self.block
    }

    /// As [`OwnedBlock::hand_over_to`].
    pub fn hand_over_to(&mut self, stream: impl Into<StreamHandle>) -> Result<()> {
        self.block.hand_over_to(stream)
    }

    /// As [`OwnedBlock::set_stream`], which keeps earlier work in order.
    pub fn set_stream(&mut self, stream: impl Into<StreamHandle>) {
        self.block.set_stream(stream);
    }

    /// The address of the first element; null if the elements have no bytes.
    pub fn address(&self) -> Address {
        self.block.address()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The address of an element; `None` past the last one.
    pub fn address_of(&self, index: usize) -> Option<Address> {
        if index >= self.length {
            return None;
        }
        self.address().checked_add(Bytes::of::<T>(index as u64).ok()?)
    }

    /// Frees the array in the order of its stream. Unlike a drop, returns any error.
    pub fn free(self) -> core::result::Result<(), Refused<OwnedBlock<A>>> {
        self.block.free()
    }

    /// Copies `from` to the array, in the order of its stream, and waits for the copy. Fails if the lengths differ.
    ///
    /// Copies of a megabyte and more use the device's [transfer engine](crate::transfer), if the program made one.
    /// Others are simple, not fast: they go through a staging buffer, because a device that fails midway may keep
    /// reading, and must not read the caller's memory then.
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.check_length("from", from.len())?;
        self.write(0, from)
    }

    /// Copies the array to `to`, in the order of its stream, and waits for the copy. Fails if the lengths differ. As
    /// fast as [`copy_from_slice`](Self::copy_from_slice). An error midway leaves a part of `to` written.
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.check_length("to", to.len())?;
        self.read(0, to)
    }

    /// Copies `from` to the elements from index `first` on, as [`copy_from_slice`](Self::copy_from_slice) does. Fails
    /// if the range is out of bounds.
    ///
    /// ```
    /// use forebay::{HostDevice, Pool, StreamHandle};
    ///
    /// let pool = Pool::new(&HostDevice::open()?)?;
    /// let mut array = pool.zeros::<u32>(6, StreamHandle::DEFAULT)?;
    /// array.write(2, &[7, 8])?;
    /// assert_eq!(array.to_vec()?, [0, 0, 7, 8, 0, 0]);
    /// assert!(array.write(5, &[7, 8]).is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn write(&mut self, first: usize, from: &[T]) -> Result<()> {
        let mut to = self.check_range(first, from.len())?;
        // There may be up to `usize::MAX` elements without bytes.
        if size_of_val(from) == 0 {
            return Ok(());
        }
        let host = Place::Host(Address::of_pointer(from.as_ptr()));
        if self.copy_in_bulk(Place::Device(to), host, size_of_val(from)) {
            return Ok(());
        }
        let mut stage = Vec::with_capacity(Self::stage_length().min(from.len()));
        for chunk in from.chunks(Self::stage_length()) {
            stage.clear();
            stage.extend_from_slice(chunk);
            stage = self.pass(stage, |host| (Place::Device(to), host))?;
            to = valid_span(Call::Copy, "to", to, Self::size_of(chunk.len())?)?.end();
        }
        Ok(())
    }

    /// Copies the elements from index `first` on to `to`, as [`copy_to_slice`](Self::copy_to_slice) does. Fails if the
    /// range is out of bounds.
    pub fn read(&self, first: usize, to: &mut [T]) -> Result<()> {
        let mut from = self.check_range(first, to.len())?;
        if size_of_val(to) == 0 {
            return Ok(());
        }
        let host = Place::Host(Address::of_pointer(to.as_mut_ptr()));
        if self.copy_in_bulk(host, Place::Device(from), size_of_val(to)) {
            return Ok(());
        }
        let mut stage = Vec::with_capacity(Self::stage_length().min(to.len()));
        for chunk in to.chunks_mut(Self::stage_length()) {
            stage.clear();
            // Initialise the stage, so that it holds valid values whatever the device does: a phantom device writes
            // nothing.
            stage.extend_from_slice(chunk);
            stage = self.pass(stage, |host| (host, Place::Device(from)))?;
            chunk.copy_from_slice(&stage);
            from = valid_span(Call::Copy, "from", from, Self::size_of(chunk.len())?)?.end();
        }
        Ok(())
    }

    /// Copies all elements to a vector, as [`copy_to_slice`](Self::copy_to_slice) does.
    pub fn to_vec(&self) -> Result<Vec<T>> {
        let mut elements = host_vec::zeroed(self.length, Call::Copy)?;
        self.copy_to_slice(&mut elements)?;
        Ok(elements)
    }

    /// Sets all elements to one value, in the order of the array's stream. If the value repeats one, two or four bytes,
    /// as zeros do, the device fills without a wait; else the values are copied.
    pub fn fill(&mut self, value: T) -> Result<()> {
        let size = Self::size_of(self.length)?;
        if size.is_zero() {
            return Ok(());
        }
        let Some(pattern) = pattern_of(bytemuck::bytes_of(&value)) else {
            let chunk = vec![value; Self::stage_length().min(self.length)];
            let mut first = 0;
            while first < self.length {
                let count = chunk.len().min(self.length - first);
                self.write(first, chunk.get(..count).unwrap_or_default())?;
                first += count;
            }
            return Ok(());
        };
        let (device, stream) = (self.block.allocator().device(), self.block.stream_to_use()?);
        device.descriptor().check_process(Call::Fill)?;
        let fill = hal::Fill::linear(self.address(), size, pattern)?;
        // SAFETY: the elements are within the block, which is reused only after the work of this stream, wherever the
        // handle goes.
        unsafe { device.fill(&fill, stream) }?;
        Ok(())
    }

    /// The address of the element at `first`, if `count` elements from there on are in the array.
    pub(crate) fn check_range(&self, first: usize, count: usize) -> Result<Address> {
        let fits = first.checked_add(count).is_some_and(|end| end <= self.length);
        let start = Self::size_of(first).ok().and_then(|size| self.address().checked_add(size));
        match start.filter(|_| fits) {
            Some(start) => Ok(start),
            None => {
                let given = format!("{count} elements from index {first} on");
                let (room, all) = (self.length.saturating_sub(first), self.length);
                let allowed =
                    format!("at most {room} from there on, as the array has {all} elements");
                Err(invalid(Call::Copy, "range", given, allowed).into())
            }
        }
    }

    fn check_length(&self, argument: &'static str, given: usize) -> Result<()> {
        if given == self.length {
            return Ok(());
        }
        let allowed = format!("{} elements, as many as the array has", self.length);
        Err(invalid(Call::Copy, argument, format!("{given} elements"), allowed).into())
    }

    /// Number of elements that fit in the stage, at least one.
    fn stage_length() -> usize {
        STAGE.checked_div(size_of::<T>()).unwrap_or(STAGE).max(1)
    }

    /// Copies large memory of the caller with a transfer engine of the device, if there is one, in the order of the
    /// array's stream. Returns whether it did; if not, nothing is in flight.
    fn copy_in_bulk(&self, to: Place, from: Place, size: usize) -> bool {
        if size < bulk::LEAST {
            return false;
        }
        let Some(engine) = bulk::engine_of(self.block.allocator().device()) else { return false };
        let Ok(copy) = hal::Copy::linear(to, from, Bytes::new(size as u64)) else { return false };
        let Ok(stream) = self.block.stream_in_order() else { return false };
        // SAFETY: the host's side is borrowed by the caller until the copy is done, and the device's side is within the
        // block, which this handle keeps. Both are plain bytes.
        unsafe { engine.copy(&copy, stream) }.is_ok()
    }

    /// Copies between the stage and the device, in the direction that `ends` (to, from) gives, and waits. Returns the
    /// stage, or leaks it if the device may still be using it.
    fn pass(
        &self,
        mut stage: Vec<T>,
        ends: impl FnOnce(Place) -> (Place, Place),
    ) -> Result<Vec<T>> {
        let size = Self::size_of(stage.len())?;
        let (to, from) = ends(Place::Host(Address::of_pointer(stage.as_mut_ptr())));
        let copy = hal::Copy::linear(to, from, size)?;
        let (device, stream) = (self.block.allocator().device(), self.block.stream_to_use()?);
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

impl<T: Pod, A: Allocate> fmt::Debug for DeviceArray<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceArray")
            .field("element", &core::any::type_name::<T>())
            .field("length", &self.length)
            .field("block", &self.block)
            .finish()
    }
}
