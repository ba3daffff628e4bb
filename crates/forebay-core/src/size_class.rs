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

/// A rule that rounds sizes.
///
/// ```
/// use forebay_core::{Bytes, SizeClasses};
/// let size = Bytes::new(9000);
/// assert_eq!(SizeClasses::Exact.round(size)?.get(), 9216);
/// assert_eq!(SizeClasses::PowersOfTwo.round(size)?.get(), 16384);
/// assert_eq!(SizeClasses::Geometric.round(Bytes::new(9300))?.get(), 10240);
/// assert_eq!(SizeClasses::Geometric.round(Bytes::ZERO)?, Bytes::ZERO);
/// # Ok::<(), forebay_core::QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SizeClasses {
    /// No classes: multiples of 512 B.
    Exact,
    /// Eight classes per doubling from 512 B to 1 MiB, multiples of 512 B above: more requests share a cached block, at
    /// the cost of at most an eighth of waste. Above 1 MiB requests are few and large, and an eighth of one is worth
    /// saving.
    Geometric,
    /// One class per power of two from 512 B to 2 GiB, multiples of 512 B above.
    PowersOfTwo,
}

impl SizeClasses {
    /// The block size for a request of `size`: at least `size`, and 0 for 0.
    ///
    /// Rounding a rounded size changes nothing. Fails only if the result does not fit in 64 bits.
    pub fn round(self, size: Bytes) -> Result<Bytes, QuantityError> {
        size.align_up(self.step_at(size))
    }

    /// The distance between the multiples that `size` is rounded to.
    fn step_at(self, size: Bytes) -> Alignment {
        let largest = match self {
            Self::Exact => return GRANULE,
            Self::Geometric => Bytes::mib(1),
            Self::PowersOfTwo => Bytes::gib(2),
        };
        if size <= GRANULE.bytes() || size > largest {
            return GRANULE;
        }
        match self {
            Self::Geometric => eighth_of(size),
            // The power of two at or above the size.
            _ => Alignment::new(size.get().next_power_of_two()).unwrap_or(GRANULE),
        }
    }
}

/// Rounds up by at most an eighth at every size, so that sizes that differ by little become one.
pub fn round_by_an_eighth(size: Bytes) -> Result<Bytes, QuantityError> {
    size.align_up(if size <= GRANULE.bytes() { GRANULE } else { eighth_of(size) })
}

/// An eighth of the power of two below `size`, and at least 512 B. A power of two belongs to those below it.
fn eighth_of(size: Bytes) -> Alignment {
    let below = 1_u64 << (size.get() - 1).ilog2();
    Alignment::new(below >> STEPS_LOG2).map_or(GRANULE, |step| step.max(GRANULE))
}

#[cfg(test)]
mod tests;
