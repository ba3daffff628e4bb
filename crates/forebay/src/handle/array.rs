//! A block as typed elements.

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeBounds;

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Call, StreamHandle, invalid};

use super::failure::does_not_fit;
use super::{DeviceSlice, DeviceSliceMut, OwnedBlock, Pod, Refused};
use crate::{Allocate, Pool, Request, Result};

/// An array of plain elements on a device, freed when it is dropped.
///
/// Elements are any [`Pod`] type: numbers, `half::f16`, arrays of these, and types that derive `Pod`. `bool` and `char`
/// are excluded, because some bytes are not valid values of them.
///
/// ```
/// use forebay::{DeviceArray, Pool, StreamHandle};
///
/// let pool = Pool::open("host")?;
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
    /// Allocates `length` elements for `stream`. The contents are undefined. [`OnStream::uninit`](super::OnStream::uninit) is a shorthand.
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

    /// The same bytes as elements of another type. Fails, and returns the array, if they are no whole number of those or
    /// the block is not aligned for them.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let array = Pool::open("host")?.default_stream().from_slice(&[1.0_f32, 0.0])?;
    /// assert_eq!(array.cast::<u32>()?.to_vec()?, [1.0_f32.to_bits(), 0]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn cast<U: Pod>(self) -> core::result::Result<DeviceArray<U, A>, Refused<Self>> {
        let Self { block, length, .. } = self;
        let back = |block| Self { block, length, element: PhantomData };
        let bytes = length.saturating_mul(size_of::<T>());
        let elements = bytes.checked_div(size_of::<U>()).unwrap_or(0);
        if elements.saturating_mul(size_of::<U>()) != bytes {
            let allowed = format!("a whole number of elements of {} B", size_of::<U>());
            let error = invalid(Call::Copy, "array", format!("{bytes} B"), allowed);
            return Err(Refused::new(back(block), error.into()));
        }
        DeviceArray::from_block(block, elements).map_err(|refused| {
            let (block, error) = refused.into_parts();
            Refused::new(back(block), error)
        })
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

    /// The elements in `range`, to read. Fails if `range` is out of bounds. Copies nothing.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<DeviceSlice<'_, T, A>> {
        self.as_slice().slice(range)
    }

    /// The elements in `range`, to write. Fails if `range` is out of bounds. Copies nothing.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let pool = Pool::open("host")?;
    /// let mut array = pool.default_stream().zeros::<u32>(6)?;
    /// array.slice_mut(2..4)?.copy_from_slice(&[7, 8])?;
    /// assert_eq!(array.to_vec()?, [0, 0, 7, 8, 0, 0]);
    /// assert!(array.slice_mut(5..7).is_err());
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn slice_mut(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> Result<DeviceSliceMut<'_, T, A>> {
        self.as_slice_mut().into_slice(range)
    }

    /// All elements, to read.
    pub fn as_slice(&self) -> DeviceSlice<'_, T, A> {
        DeviceSlice::of(&self.block, self.length)
    }

    fn as_slice_mut(&mut self) -> DeviceSliceMut<'_, T, A> {
        DeviceSliceMut::of(&mut self.block, self.length)
    }

    /// Replaces all elements, as [`DeviceSliceMut::copy_from_slice`].
    pub fn copy_from_slice(&mut self, from: &[T]) -> Result<()> {
        self.as_slice_mut().copy_from_slice(from)
    }

    /// Replaces all elements without waiting, as [`DeviceSliceMut::copy_from_vec`].
    pub fn copy_from_vec(&mut self, from: Vec<T>) -> Result<()>
    where
        T: Send,
    {
        self.as_slice_mut().copy_from_vec(from)
    }

    /// Replaces all elements by those of another array or slice of the device, as [`DeviceSliceMut::copy_from`].
    pub fn copy_from<'b, B: Allocate + 'b>(
        &mut self,
        from: impl Into<DeviceSlice<'b, T, B>>,
    ) -> Result<()>
    where
        T: 'b,
    {
        self.as_slice_mut().copy_from(from)
    }

    /// Copies all elements to `to`, as [`DeviceSlice::copy_to_slice`].
    pub fn copy_to_slice(&self, to: &mut [T]) -> Result<()> {
        self.as_slice().copy_to_slice(to)
    }

    /// Copies all elements to a vector, as [`DeviceSlice::to_vec`].
    pub fn to_vec(&self) -> Result<Vec<T>> {
        self.as_slice().to_vec()
    }

    /// Copies the array on the device, as [`DeviceSlice::to_array`].
    pub fn try_clone(&self) -> Result<Self>
    where
        A: Clone,
    {
        self.as_slice().to_array()
    }

    /// Sets all elements to one value, as [`DeviceSliceMut::fill`].
    pub fn fill(&mut self, value: T) -> Result<()> {
        self.as_slice_mut().fill(value)
    }

    /// How many elements the array has room for without a new block.
    pub fn capacity(&self) -> usize {
        let room = (self.block.size().get()).checked_div(size_of::<T>() as u64).unwrap_or(u64::MAX);
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Changes the number of elements. Keeps the first ones, and sets new ones to `value`. If there is no
    /// [room](Self::capacity), moves them to a new block: the address changes, and the device copies. An error changes
    /// nothing.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let pool = Pool::open("host")?;
    /// let mut array = pool.default_stream().from_slice(&[1.0, 2.0])?;
    /// array.resize(4, 0.5)?;
    /// assert_eq!(array.to_vec()?, [1.0, 2.0, 0.5, 0.5]);
    /// array.resize(1, 0.0)?;
    /// assert_eq!(array.to_vec()?, [1.0]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn resize(&mut self, length: usize, value: T) -> Result<()>
    where
        A: Clone,
    {
        let before = self.length;
        if length <= self.capacity() {
            self.length = length;
            if length > before
                && let Err(error) = self.slice_mut(before..)?.fill(value)
            {
                self.length = before;
                return Err(error);
            }
            return Ok(());
        }
        let mut grown = Self::new(self.block.allocator(), length, self.block.stream())?;
        grown.slice_mut(..before)?.copy_from(&*self)?;
        grown.slice_mut(before..)?.fill(value)?;
        *self = grown;
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
}

impl<'a, T: Pod, A: Allocate> From<&'a DeviceArray<T, A>> for DeviceSlice<'a, T, A> {
    fn from(array: &'a DeviceArray<T, A>) -> Self {
        array.as_slice()
    }
}

impl<T: Pod, A: Allocate> DeviceSlice<'_, T, A> {
    /// Copies the elements to a new array of the same allocator and stream, on the device. The host does not wait.
    pub fn to_array(&self) -> Result<DeviceArray<T, A>>
    where
        A: Clone,
    {
        let block = self.block();
        let mut array = DeviceArray::new(block.allocator(), self.len(), block.stream())?;
        array.copy_from(*self)?;
        Ok(array)
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
