//! Errors of object pools and array pools.

use core::fmt;
use std::error::Error;

use forebay_core::Bytes;

use super::array_id::ArrayId;
use crate::sync::fork::Forked;

/// Why an object pool could not provide an object.
#[derive(Debug)]
#[non_exhaustive]
pub enum ObjectError {
    /// No object was idle, and the create hook failed.
    Create(Box<dyn Error + Send + Sync>),
    /// The pool was made before the process forked, and belongs to the parent. Make another in the child.
    Forked,
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Create(error) => {
                write!(f, "no object was idle, and the create hook failed: {error}")
            }
            Self::Forked => Forked.fmt(f),
        }
    }
}

impl Error for ObjectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Create(error) => Some(&**error),
            Self::Forked => None,
        }
    }
}

impl From<Forked> for ObjectError {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}

/// Why a call of an array pool failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ArrayError {
    /// An array of this length would exceed the address space.
    TooLong {
        /// The number of elements.
        len: usize,
        /// The size of one element.
        element: Bytes,
    },
    /// The system has no memory for the array.
    OutOfMemory {
        /// The number of elements, rounded up.
        len: usize,
        /// Their total size.
        bytes: Bytes,
    },
    /// The array was already returned.
    AlreadyReturned {
        /// Which array.
        id: ArrayId,
    },
    /// The pool never rented out an array with this id.
    NeverRented {
        /// The id.
        id: ArrayId,
    },
    /// The array is from another pool.
    WrongPool {
        /// Which array.
        id: ArrayId,
        /// The number of the pool that was called.
        pool: u64,
    },
    /// The pool was made before the process forked, and belongs to the parent. Make another in the child.
    Forked,
}

impl fmt::Display for ArrayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { len, element } => {
                write!(f, "{len} elements of {element} exceed the address space; rent fewer")
            }
            Self::OutOfMemory { len, bytes } => write!(
                f,
                "the system has no memory for an array of {len} elements ({bytes}); return arrays, \
                 shrink the pool or rent fewer elements"
            ),
            Self::AlreadyReturned { id } => {
                write!(f, "{id} was returned already; return each array once")
            }
            Self::NeverRented { id } => write!(f, "{id} was never rented out"),
            Self::WrongPool { id, pool } => {
                write!(f, "{id} was returned to array pool {pool}; return it to its own")
            }
            Self::Forked => Forked.fmt(f),
        }
    }
}

impl Error for ArrayError {}

impl From<Forked> for ArrayError {
    fn from(_: Forked) -> Self {
        Self::Forked
    }
}
