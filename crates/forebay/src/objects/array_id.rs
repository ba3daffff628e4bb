//! Arrays identified by a number, for languages without ownership.

use core::fmt;
use core::ptr::NonNull;

/// The id of a rented array, unique among the rentals of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayId {
    pool: u64,
    serial: u64,
}

impl ArrayId {
    /// The id of the `serial`th rental of a pool.
    pub const fn from_parts(pool: u64, serial: u64) -> Self {
        Self { pool, serial }
    }

    /// The number of the array pool.
    pub const fn pool(self) -> u64 {
        self.pool
    }

    /// The number of the rental within that pool, from 1.
    pub const fn serial(self) -> u64 {
        self.serial
    }
}

impl fmt::Display for ArrayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "array {} of array pool {}", self.serial, self.pool)
    }
}

/// An array rented by id. It owns nothing: the array stays rented, and the address valid, until its id is returned or
/// the pool is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the array stays rented until its id is returned"]
#[non_exhaustive]
pub struct RawArray<T> {
    /// The id to return it with.
    pub id: ArrayId,
    /// The first element.
    pub address: NonNull<T>,
    /// The number of elements: at least as many as requested, all initialised.
    pub len: usize,
}
