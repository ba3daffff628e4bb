//! Size classes: which size a request is rounded to, and how much that can waste.
//!
//! ```text
//! geometric, 8 steps a doubling, from 512 B:
//!
//!   512 1024 1536 ... 4096 | 4608 5120 ... 8192 | 9216 ... 16384 | ... | largest | multiples of 512
//!   \__ step 512 ________/   \__ step 512 ___/    \_ step 1024 _/                  \_ no class ___
//! ```
//!
//! Coarser rounding lets more requests share a cached block; finer rounding wastes less. The default keeps the loss
//! under an eighth of the request for small requests, which are many, and under one granule for large ones. Whatever
//! the classes, no size is refused for being large: above the largest class a request is rounded only to the granule.

use crate::{Alignment, Bytes, QuantityError};

/// The steps of a doubling in the geometric classes. Eight: 1/8 = 12.5 % is the most they waste.
const STEPS_LOG2: u8 = 3;

/// The granule: every rounded size is a multiple of it.
const GRANULE: Alignment = Alignment::BLOCK;

/// How sizes grow from class to class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// Eight equal steps between a power of two and the next.
    Geometric,
    /// One class per power of two.
    PowersOfTwo,
    /// No classes: multiples of the granule.
    Exact,
}

/// A rule that rounds sizes.
///
/// ```
/// use forebay_core::{Bytes, SizeClasses};
/// let classes = SizeClasses::geometric();
/// assert_eq!(classes.round(Bytes::new(9000))?.get(), 9216);
/// assert_eq!(SizeClasses::powers_of_two().round(Bytes::new(9000))?.get(), 16384);
/// assert_eq!(SizeClasses::exact().round(Bytes::new(9000))?.get(), 9216);
/// assert_eq!(classes.round(Bytes::ZERO)?, Bytes::ZERO);
/// # Ok::<(), forebay_core::QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClasses {
    growth: Growth,
    /// The size of the last class, a power of two.
    largest: Bytes,
}

impl SizeClasses {
    /// The default: eight steps per doubling from 512 B to 1 MiB, multiples of 512 B above.
    ///
    /// Above 1 MiB requests are few and large, and an eighth of one is worth saving.
    pub const fn geometric() -> Self {
        Self { growth: Growth::Geometric, largest: Bytes::mib(1) }
    }

    /// One class per power of two from 512 B to 2 GiB, multiples of 512 B above.
    pub const fn powers_of_two() -> Self {
        Self { growth: Growth::PowersOfTwo, largest: Bytes::gib(2) }
    }

    /// No classes: multiples of 512 B.
    pub const fn exact() -> Self {
        Self { growth: Growth::Exact, largest: GRANULE.bytes() }
    }

    /// The block size for a request of `size`: at least `size`, and 0 for 0.
    ///
    /// Rounding a rounded size changes nothing. Fails only if the result does not fit in 64 bits.
    pub fn round(&self, size: Bytes) -> Result<Bytes, QuantityError> {
        size.align_up(self.step_at(size))
    }

    /// The distance between the multiples that `size` is rounded to.
    fn step_at(&self, size: Bytes) -> Alignment {
        if size <= GRANULE.bytes() || size > self.largest {
            return GRANULE;
        }
        // The power of two below `size`; `size - 1` because a power of two is its round's end.
        let below = (size.get() - 1).ilog2();
        let step = match self.growth {
            Growth::Exact => return GRANULE,
            Growth::PowersOfTwo => 1_u64 << (below + 1),
            Growth::Geometric => (1_u64 << below) >> STEPS_LOG2,
        };
        Alignment::new(step).map_or(GRANULE, |step| step.max(GRANULE))
    }
}

#[cfg(test)]
mod tests;
