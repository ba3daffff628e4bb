//! A pool and a stream together.

use core::fmt;
use core::marker::PhantomData;
use core::time::Duration;

use forebay_core::Bytes;
use forebay_hal::{Priority, Stream, StreamHandle};

use super::{Allocation, DeviceArray, OwnedBlock, Pod, allocate_async};
use crate::{Block, Pool, Request, Result, host_vec};

/// A pool bound to a stream: what it allocates is used, and freed, in the order of that stream. Made by [`Pool::on`]
/// and [`Pool::default_stream`].
///
/// ```
/// use forebay::{Bytes, Pool};
///
/// let pool = Pool::open("host")?; // "cuda:0" for the first GPU
/// let stream = pool.stream()?;
/// let gpu = pool.on(&stream);
///
/// let mut x = gpu.from_slice(&[1.0, 2.0, 3.0])?;
/// let zeros = gpu.zeros::<f64>(2)?;
/// x.slice_mut(1..)?.copy_from(&zeros)?;
/// assert_eq!(x.to_vec()?, [1.0, 0.0, 0.0]);
///
/// let block = gpu.allocate(Bytes::mib(1))?; // plain data, which you free yourself
/// gpu.free(block)?;
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy)]
#[must_use = "it allocates nothing by itself"]
pub struct OnStream<'a> {
    pool: &'a Pool,
    stream: StreamHandle,
    /// The stream lives as long as this.
    of_stream: PhantomData<&'a StreamHandle>,
}

impl Pool {
    /// Creates a stream on the pool's device.
    pub fn stream(&self) -> Result<Stream> {
        Ok(Stream::new(self.device(), Priority::Normal)?)
    }

    /// The pool bound to a stream.
    pub fn on<'a>(&'a self, stream: impl Into<StreamHandle> + 'a) -> OnStream<'a> {
        OnStream { pool: self, stream: stream.into(), of_stream: PhantomData }
    }

    /// The pool bound to the device's default stream, for programs that have no streams of their own.
    pub fn default_stream(&self) -> OnStream<'_> {
        self.on(StreamHandle::DEFAULT)
    }
}

impl OnStream<'_> {
    /// The pool.
    pub fn pool(&self) -> &Pool {
        self.pool
    }

    /// The stream's handle.
    pub fn handle(&self) -> StreamHandle {
        self.stream
    }

    /// As [`Pool::allocate`].
    #[inline(always)]
    pub fn allocate(&self, size: Bytes) -> Result<Block> {
        self.pool.allocate(size, self.stream)
    }

    /// As [`Pool::free_block`].
    #[inline(always)]
    pub fn free(&self, block: Block) -> Result<()> {
        self.pool.free_block(block, self.stream)
    }

    /// Allocates at least `size` bytes. Dropping the handle frees them.
    pub fn owned(&self, size: Bytes) -> Result<OwnedBlock> {
        OwnedBlock::new(self.pool, Request::new(size, self.stream))
    }

    /// As [`owned`](Self::owned), for sizes that vary from use to use: rounds the request up by at most an eighth, so that
    /// the next one of about this size finds the freed block in the thread's cache.
    ///
    /// ```
    /// use forebay::{Bytes, Pool};
    ///
    /// let pool = Pool::open("host")?;
    /// for batch in [100_000, 99_000, 98_500] {
    ///     let rented = pool.default_stream().rent(Bytes::new(batch))?;
    ///     assert!(rented.size() >= Bytes::new(batch));
    /// }
    /// assert_eq!(pool.statistics().magazine_hits, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rent(&self, least: Bytes) -> Result<OwnedBlock> {
        OwnedBlock::rent(self.pool, least, self.stream)
    }

    /// A future for at least `size` bytes. If the memory is not free now, it waits for some, for up to `patience`. Dropping the future
    /// cancels the request. See [`allocate_async`](super::allocate_async).
    ///
    /// ```no_run
    /// use forebay::{Bytes, Pool};
    /// use std::time::Duration;
    ///
    /// async fn serve(pool: Pool) -> Result<(), forebay::Error> {
    ///     let block = pool.default_stream().owned_async(Bytes::mib(64), Duration::from_secs(5)).await?;
    ///     // ... use it ...
    ///     drop(block);
    ///     Ok(())
    /// }
    /// ```
    pub fn owned_async(&self, size: Bytes, patience: Duration) -> Allocation {
        allocate_async(self.pool, Request::new(size, self.stream), patience)
    }

    /// Allocates an array of `length` elements, uninitialised memory of the device: write them before you read them.
    pub fn uninit<T: Pod>(&self, length: usize) -> Result<DeviceArray<T>> {
        DeviceArray::new(self.pool, length, self.stream)
    }

    /// Allocates an array of zero bytes. The device zeroes it; the host does not wait.
    pub fn zeros<T: Pod>(&self, length: usize) -> Result<DeviceArray<T>> {
        self.filled(length, T::zeroed())
    }

    /// Allocates an array whose elements are all `value`.
    pub fn filled<T: Pod>(&self, length: usize, value: T) -> Result<DeviceArray<T>> {
        let mut array = self.uninit(length)?;
        array.fill(value)?;
        Ok(array)
    }

    /// Allocates an array with the elements of `from`. Waits for the copy.
    pub fn from_slice<T: Pod>(&self, from: &[T]) -> Result<DeviceArray<T>> {
        let mut array = self.uninit(from.len())?;
        array.copy_from_slice(from)?;
        Ok(array)
    }

    /// Allocates an array with the elements of `from`. The host does not wait: `from` is dropped once it is copied.
    pub fn from_vec<T: Pod + Send>(&self, from: Vec<T>) -> Result<DeviceArray<T>> {
        let mut array = self.uninit(from.len())?;
        array.copy_from_vec(from)?;
        Ok(array)
    }

    /// Allocates an array whose element at each index is what `element` returns for it.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let squares = Pool::open("host")?.default_stream().from_fn(4, |index| index * index)?;
    /// assert_eq!(squares.to_vec()?, [0, 1, 4, 9]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn from_fn<T: Pod + Send>(
        &self,
        length: usize,
        mut element: impl FnMut(usize) -> T,
    ) -> Result<DeviceArray<T>> {
        let mut elements: Vec<T> = host_vec::zeroed(length, forebay_hal::Call::Copy)?;
        for (index, place) in elements.iter_mut().enumerate() {
            *place = element(index);
        }
        self.from_vec(elements)
    }
}

impl From<OnStream<'_>> for StreamHandle {
    fn from(bound: OnStream<'_>) -> Self {
        bound.stream
    }
}

impl From<&OnStream<'_>> for StreamHandle {
    fn from(bound: &OnStream<'_>) -> Self {
        bound.stream
    }
}

impl fmt::Debug for OnStream<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnStream")
            .field("pool", &self.pool.id())
            .field("stream", &self.stream)
            .finish()
    }
}
