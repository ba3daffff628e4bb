//! Arrays in power-of-two sizes, with one object pool per size.

use core::fmt;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use forebay_core::{Bytes, Serial};

use super::array_id::{ArrayId, RawArray};
use super::error::{ArrayError, ObjectError};
use super::handle::Pooled;
use super::options::ObjectPoolOptions;
use super::pool::ObjectPool;
use super::statistics::ArrayStatistics;
use crate::pool_id::PoolId;
use crate::sync::fork::LeakOnFork;
use crate::sync::tracked::lock;

/// The shortest array that a pool makes. Shorter ones cost more to keep than to allocate.
const SHORTEST: usize = 16;

/// Options of a new array pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "options do nothing until a pool is built"]
pub struct ArrayPoolOptions {
    longest: usize,
    max_idle: usize,
    clear: bool,
}

impl Default for ArrayPoolOptions {
    /// Arrays of up to 1,048,576 elements, at most 16 idle of each size, not cleared.
    fn default() -> Self {
        Self { longest: 1 << 20, max_idle: 16, clear: false }
    }
}

impl ArrayPoolOptions {
    /// Sets the longest array to keep, in elements; rounded down to a power of two. A longer one is made for one rental
    /// and dropped afterwards.
    pub fn longest(mut self, longest: usize) -> Self {
        self.longest = longest;
        self
    }

    /// Sets the most idle arrays of each size.
    pub fn max_idle(mut self, max_idle: usize) -> Self {
        self.max_idle = max_idle;
        self
    }

    /// Sets whether returned arrays are overwritten with default values. Otherwise the next user finds the values left
    /// there.
    pub fn clear(mut self, clear: bool) -> Self {
        self.clear = clear;
        self
    }

    /// Builds the pool.
    pub fn build<T: Clone + Default + Send + 'static>(self) -> ArrayPool<T> {
        let sizes = self.longest.checked_ilog2().map_or(0, |log2| log2 as usize + 1);
        let inner = Inner {
            id: PoolId::next().get(),
            options: self,
            sizes: (0..sizes).map(|_| OnceLock::new()).collect(),
            too_long_to_keep: AtomicU64::new(0),
            by_id: Mutex::default(),
        };
        ArrayPool { inner: LeakOnFork::new(inner) }
    }
}

/// Arrays of any length, kept by size and rented out again.
///
/// ```
/// use forebay::objects::ArrayPool;
///
/// let pool = ArrayPool::<f32>::new();
/// for len in [1000, 900, 600] {
///     let mut array = pool.rent(len)?;
///     array.fill(2.5);
///     assert_eq!((array.len(), array.capacity()), (len, 1024));
/// }
/// assert_eq!(pool.statistics().arrays.creations, 1);
/// # Ok::<(), forebay::objects::ArrayError>(())
/// ```
///
/// Languages without ownership rent by id. A second return of the same id is an error:
///
/// ```
/// use forebay::objects::{ArrayError, ArrayPool};
///
/// let pool = ArrayPool::<u8>::new();
/// let array = pool.rent_by_id(100)?;
/// pool.return_by_id(array.id)?;
/// assert_eq!(pool.return_by_id(array.id), Err(ArrayError::AlreadyReturned { id: array.id }));
/// # Ok::<(), ArrayError>(())
/// ```
pub struct ArrayPool<T: Send + 'static> {
    inner: LeakOnFork<Inner<T>>,
}

/// The pool of arrays of one length, made on first use.
type OneSize<T> = OnceLock<ObjectPool<Box<[T]>>>;

struct Inner<T: Send + 'static> {
    id: u64,
    options: ArrayPoolOptions,
    /// Arrays of length 2^n at position n.
    sizes: Box<[OneSize<T>]>,
    too_long_to_keep: AtomicU64,
    /// Locked only for a lookup: arrays are created, dropped and returned without it.
    by_id: Mutex<ById<T>>,
}

/// Arrays rented by id.
struct ById<T: Send + 'static> {
    serials: Serial,
    last: u64,
    rented: HashMap<u64, RentedArray<'static, T>>,
}

impl<T: Send + 'static> Default for ById<T> {
    fn default() -> Self {
        Self { serials: Serial::default(), last: 0, rented: HashMap::new() }
    }
}

impl<T: Clone + Default + Send + 'static> ArrayPool<T> {
    /// Makes a pool with the default options.
    pub fn new() -> Self {
        ArrayPoolOptions::default().build()
    }

    /// Rents an array of `len` elements until the handle is dropped. All are initialised: to default values in a new
    /// array, and to the values its last user left in a reused one, unless the pool [clears](ArrayPoolOptions::clear).
    pub fn rent(&self, len: usize) -> Result<RentedArray<'_, T>, ArrayError> {
        let inner = self.inner.get()?;
        let array = match inner.pool_for(len)? {
            Some(pool) => Array::Pooled(pool.get().map_err(|error| failure(error, len))?),
            None => Array::Unpooled(inner.make_unpooled(len)?),
        };
        Ok(RentedArray { array, len })
    }

    /// Rents an array of at least `len` elements until its id is returned.
    pub fn rent_by_id(&self, len: usize) -> Result<RawArray<T>, ArrayError> {
        let inner = self.inner.get()?;
        let array = match inner.pool_for(len)? {
            Some(pool) => Array::Pooled(pool.get_owned().map_err(|error| failure(error, len))?),
            None => Array::Unpooled(inner.make_unpooled(len)?),
        };
        let mut rented = RentedArray { array, len };
        let whole = rented.whole_mut();
        let (address, len) = (NonNull::from(&mut *whole).cast(), whole.len());
        let mut by_id = lock(&inner.by_id);
        let serial = by_id.serials.take();
        by_id.last = serial;
        by_id.rented.insert(serial, rented);
        Ok(RawArray { id: ArrayId::from_parts(inner.id, serial), address, len })
    }

    /// Returns an array that was rented by id. Its address becomes invalid.
    pub fn return_by_id(&self, id: ArrayId) -> Result<(), ArrayError> {
        let inner = self.inner.get()?;
        if id.pool() != inner.id {
            return Err(ArrayError::WrongPool { id, pool: inner.id });
        }
        let returned = {
            let mut by_id = lock(&inner.by_id);
            match by_id.rented.remove(&id.serial()) {
                Some(rented) => Ok(rented),
                None if (1..=by_id.last).contains(&id.serial()) => {
                    Err(ArrayError::AlreadyReturned { id })
                }
                None => Err(ArrayError::NeverRented { id }),
            }
        };
        returned.map(drop)
    }

    /// Evicts idle arrays, least recently used first, until `keep` of each size are left. Returns the number evicted; 0
    /// in a forked child.
    pub fn shrink_to(&self, keep: usize) -> usize {
        let Ok(inner) = self.inner.get() else { return 0 };
        inner.made().map(|(_, pool)| pool.shrink_to(keep)).sum()
    }

    /// The figures; all 0 in a forked child.
    pub fn statistics(&self) -> ArrayStatistics {
        let mut sum = ArrayStatistics::default();
        let Ok(inner) = self.inner.get() else { return sum };
        for (len, pool) in inner.made() {
            let statistics = pool.statistics();
            sum.arrays += statistics;
            sum.idle_elements += statistics.idle * len as u64;
        }
        sum.too_long_to_keep = inner.too_long_to_keep.load(Ordering::Relaxed);
        sum.rented_by_id = lock(&inner.by_id).rented.len();
        sum
    }
}

impl<T: Clone + Default + Send + 'static> Default for ArrayPool<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Clone + Default + Send + 'static> Inner<T> {
    /// The pool of the arrays that serve `len` elements; `None` for arrays too long to keep.
    #[inline]
    fn pool_for(&self, len: usize) -> Result<Option<&ObjectPool<Box<[T]>>>, ArrayError> {
        let rounded = len.max(SHORTEST).checked_next_power_of_two();
        let rounded = rounded.ok_or_else(|| too_long::<T>(len))?;
        let size = self.sizes.get(rounded.trailing_zeros() as usize);
        Ok(size.map(|size| size.get_or_init(|| self.make_pool(rounded))))
    }

    fn make_pool(&self, len: usize) -> ObjectPool<Box<[T]>> {
        let options = ObjectPoolOptions::fallible(move || make_array::<T>(len));
        let options = options.max_idle(self.options.max_idle);
        match self.options.clear {
            true => options.reset(|array| array.fill(T::default())).build(),
            false => options.build(),
        }
    }

    fn make_unpooled(&self, len: usize) -> Result<Box<[T]>, ArrayError> {
        let array = make_array(len)?;
        self.too_long_to_keep.fetch_add(1, Ordering::Relaxed);
        Ok(array)
    }

    /// The pools that exist, with the length of their arrays.
    fn made(&self) -> impl Iterator<Item = (usize, &ObjectPool<Box<[T]>>)> {
        let pools = self.sizes.iter().enumerate();
        pools.filter_map(|(log2, pool)| Some((1 << log2, pool.get()?)))
    }
}

fn too_long<T>(len: usize) -> ArrayError {
    ArrayError::TooLong { len, element: Bytes::new(size_of::<T>() as u64) }
}

/// Makes an array of exactly `len` default values.
fn make_array<T: Clone + Default>(len: usize) -> Result<Box<[T]>, ArrayError> {
    let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| isize::try_from(bytes).is_ok());
    let bytes = bytes.ok_or_else(|| too_long::<T>(len))?;
    let mut array = Vec::new();
    let out_of_memory = |_| ArrayError::OutOfMemory { len, bytes: Bytes::new(bytes as u64) };
    array.try_reserve_exact(len).map_err(out_of_memory)?;
    array.resize(len, T::default());
    Ok(array.into_boxed_slice())
}

/// Converts the error of an object pool to that of the array pool.
fn failure(error: ObjectError, len: usize) -> ArrayError {
    match error {
        ObjectError::Forked => ArrayError::Forked,
        ObjectError::Create(error) => match error.downcast::<ArrayError>() {
            Ok(error) => *error,
            // Unreachable: the hook is `make_array`.
            Err(_) => ArrayError::OutOfMemory { len, bytes: Bytes::ZERO },
        },
    }
}

enum Array<'p, T: Send + 'static> {
    Pooled(Pooled<'p, Box<[T]>>),
    /// Too long to keep: dropped with its handle.
    Unpooled(Box<[T]>),
}

/// An array of a pool, which it returns to on drop. It is a slice of as many elements as were requested.
#[must_use = "an array that is not used returns at once"]
pub struct RentedArray<'p, T: Send + 'static> {
    array: Array<'p, T>,
    len: usize,
}

impl<T: Send + 'static> RentedArray<'_, T> {
    /// The length of the whole array: at least the number of elements requested.
    pub fn capacity(&self) -> usize {
        self.whole().len()
    }

    /// The whole array.
    pub fn whole(&self) -> &[T] {
        match &self.array {
            Array::Pooled(array) => array,
            Array::Unpooled(array) => array,
        }
    }

    /// The whole array, mutable.
    pub fn whole_mut(&mut self) -> &mut [T] {
        match &mut self.array {
            Array::Pooled(array) => array,
            Array::Unpooled(array) => array,
        }
    }

    /// Takes the whole array out of the pool for good.
    pub fn detach(self) -> Box<[T]> {
        match self.array {
            Array::Pooled(array) => array.detach(),
            Array::Unpooled(array) => array,
        }
    }
}

impl<T: Send + 'static> Deref for RentedArray<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.whole().get(..self.len).unwrap_or_default()
    }
}

impl<T: Send + 'static> DerefMut for RentedArray<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        let len = self.len;
        self.whole_mut().get_mut(..len).unwrap_or_default()
    }
}

impl<T: Send + fmt::Debug + 'static> fmt::Debug for RentedArray<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}

impl<T: Clone + Default + Send + 'static> fmt::Debug for ArrayPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ArrayPool").field(&self.statistics()).finish()
    }
}
