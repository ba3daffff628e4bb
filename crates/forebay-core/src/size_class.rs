//! Size classes: which size a request is rounded to, and how much that can waste.
//!
//! ```text
//! geometric, 8 steps a doubling, from 512 B:
//!
//!   512 1024 1536 ... 4096 | 4608 5120 ... 8192 | 9216 ... 16384 | ... | largest | multiples of 512
//!   \__ step 512 ________/   \__ step 512 ___/    \_ step 1024 _/                  \_ no class ___
//! ```
//!
//! Rounding less finely lets more requests share a cached block; rounding more finely wastes less.
//! The default keeps the loss under an eighth of the request where requests are small and many,
//! and under one granule where they are large. Whatever the classes, no size is refused for being
//! large: above the largest class a request is rounded to the granule alone.

use crate::{Alignment, Bytes, QuantityError};

/// The steps of a doubling in the geometric classes. Eight: 1/8 = 12.5 % is the most they waste.
const STEPS_LOG2: u8 = 3;

/// Which class of a [`SizeClasses`], counted from 0 for the smallest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassId(u32);

impl ClassId {
    /// The index, for tables that have an entry a class.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// How sizes grow from class to class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// Eight equal steps between a power of two and the next.
    Geometric,
    /// One class a power of two.
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
/// assert_eq!(SizeClasses::powers_of_two()?.round(Bytes::new(9000))?.get(), 16384);
/// assert_eq!(SizeClasses::exact().round(Bytes::new(9000))?.get(), 9216);
/// assert_eq!(classes.round(Bytes::ZERO)?, Bytes::ZERO);
/// # Ok::<(), forebay_core::QuantityError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SizeClasses {
    growth: Growth,
    granule: Alignment,
    /// The size of the last class; a power of two, at least the granule. The granule for `Exact`.
    largest: Alignment,
}

impl SizeClasses {
    /// The default: eight steps a doubling from 512 B to 1 MiB, multiples of 512 B above.
    ///
    /// Above 1 MiB requests are few and large, and an eighth of one is worth having.
    pub const fn geometric() -> Self {
        Self { growth: Growth::Geometric, granule: Alignment::BLOCK, largest: Alignment::MIB }
    }

    /// Eight steps a doubling from `granule` to `largest`, multiples of `granule` above.
    pub fn geometric_between(granule: Alignment, largest: Bytes) -> Result<Self, QuantityError> {
        Self::between(Growth::Geometric, granule, largest)
    }

    /// One class a power of two from 512 B to 2 GiB, multiples of 512 B above.
    pub fn powers_of_two() -> Result<Self, QuantityError> {
        Self::powers_of_two_between(Alignment::BLOCK, Bytes::gib(2))
    }

    /// One class a power of two from `smallest` to `largest`, multiples of `smallest` above.
    pub fn powers_of_two_between(
        smallest: Alignment,
        largest: Bytes,
    ) -> Result<Self, QuantityError> {
        Self::between(Growth::PowersOfTwo, smallest, largest)
    }

    /// No classes: multiples of 512 B.
    pub const fn exact() -> Self {
        Self::exact_multiples_of(Alignment::BLOCK)
    }

    /// No classes: multiples of `granule`.
    pub const fn exact_multiples_of(granule: Alignment) -> Self {
        Self { growth: Growth::Exact, granule, largest: granule }
    }

    fn between(growth: Growth, granule: Alignment, largest: Bytes) -> Result<Self, QuantityError> {
        let largest = Alignment::new(largest.get())?;
        if largest < granule {
            return Err(QuantityError::OutOfRange {
                what: "largest class",
                given: largest.get(),
                least: granule.get(),
                most: 1 << 63,
            });
        }
        Ok(Self { growth, granule, largest })
    }

    /// The granule: every rounded size is a multiple of it.
    pub const fn granule(&self) -> Alignment {
        self.granule
    }

    /// The size of the largest class; larger sizes are rounded to the granule alone.
    pub const fn largest(&self) -> Bytes {
        self.largest.bytes()
    }

    /// The block size for a request of `size`: at least `size`, and 0 for 0.
    ///
    /// Rounding a rounded size changes nothing. Fails only if the result does not fit in 64 bits.
    pub fn round(&self, size: Bytes) -> Result<Bytes, QuantityError> {
        size.align_up(self.step_at(size))
    }

    /// The most that [`round`](Self::round) can add to `size`, in bytes.
    ///
    /// Below an eighth of `size` or one granule for geometric classes, below `size` or one granule
    /// for powers of two, below one granule for exact sizes.
    pub fn waste_bound(&self, size: Bytes) -> Bytes {
        self.step_at(size).bytes().saturating_sub(Bytes::new(1))
    }

    /// The class of `size`; `None` for 0, for sizes above the largest class, and if there are no
    /// classes.
    pub fn class_of(&self, size: Bytes) -> Option<ClassId> {
        if self.growth == Growth::Exact || size.is_zero() || size > self.largest() {
            return None;
        }
        let rounded = self.round(size).ok()?.get();
        let granule = u32::from(self.granule.log2());
        let id = match self.growth {
            Growth::PowersOfTwo => rounded.trailing_zeros() - granule,
            _ => {
                let steps = u32::from(STEPS_LOG2);
                let units = rounded >> granule;
                // Up to two rounds of steps the classes are the granule's multiples; then each
                // doubling adds one round. `units - 1` puts a power of two at its round's end.
                let below = (units - 1).checked_ilog2().unwrap_or(0);
                if below <= steps {
                    u32::try_from(units - 1).ok()?
                } else {
                    let shift = below - steps;
                    let within = u32::try_from((units - 1) >> shift).ok()?;
                    (shift << steps) + within
                }
            }
        };
        Some(ClassId(id))
    }

    /// The size of class `id`; `None` where there is no such class.
    pub fn size_of(&self, id: ClassId) -> Option<Bytes> {
        let steps = u32::from(STEPS_LOG2);
        let units = match self.growth {
            Growth::Exact => return None,
            Growth::PowersOfTwo => 1_u64.checked_shl(id.0)?,
            Growth::Geometric if id.0 < 2 << steps => u64::from(id.0) + 1,
            Growth::Geometric => {
                let shift = (id.0 >> steps) - 1;
                let within = u64::from(id.0 - (shift << steps)) + 1;
                within.checked_mul(1_u64.checked_shl(shift)?)?
            }
        };
        self.granule.bytes().checked_mul(units).filter(|&size| size <= self.largest())
    }

    /// How many classes there are; 0 where sizes are exact.
    pub fn count(&self) -> usize {
        self.class_of(self.largest()).map_or(0, |last| last.index() + 1)
    }

    /// The distance between the multiples that `size` is rounded to.
    fn step_at(&self, size: Bytes) -> Alignment {
        if size.get() <= self.granule.get() || size > self.largest() {
            return self.granule;
        }
        // The power of two below `size`; `size - 1` because a power of two is its round's end.
        // An alignment above 2^62 cannot come up: `size` is at most `largest`, at most 2^63.
        let below = (size.get() - 1).ilog2();
        let step = match self.growth {
            Growth::Exact => return self.granule,
            Growth::PowersOfTwo => 1_u64 << (below + 1),
            Growth::Geometric => (1_u64 << below) >> STEPS_LOG2,
        };
        Alignment::new(step).map_or(self.granule, |step| step.max(self.granule))
    }
}

impl Default for SizeClasses {
    fn default() -> Self {
        Self::geometric()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn every_kind() -> Vec<SizeClasses> {
        let align = |bytes| Alignment::new(bytes).unwrap();
        vec![
            SizeClasses::geometric(),
            SizeClasses::geometric_between(align(256), Bytes::gib(64)).unwrap(),
            SizeClasses::geometric_between(align(64), Bytes::new(64)).unwrap(),
            SizeClasses::geometric_between(align(1), Bytes::new(1 << 63)).unwrap(),
            SizeClasses::powers_of_two().unwrap(),
            SizeClasses::powers_of_two_between(align(256), Bytes::mib(16)).unwrap(),
            SizeClasses::powers_of_two_between(align(1), Bytes::new(1 << 63)).unwrap(),
            SizeClasses::exact(),
            SizeClasses::exact_multiples_of(align(1)),
            SizeClasses::exact_multiples_of(align(1 << 63)),
        ]
    }

    /// Sizes of every magnitude, and those next to powers of two.
    fn sizes() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>().prop_flat_map(|bits| (0_u32..64).prop_map(move |shift| bits >> shift)),
            (0_u32..64, 0_u64..5)
                .prop_map(|(shift, near)| (1_u64 << shift).wrapping_add(near).wrapping_sub(2)),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn rounding_is_enough_and_within_its_bound(size in sizes()) {
            for classes in every_kind() {
                let Ok(rounded) = classes.round(Bytes::new(size)) else {
                    let step = classes.waste_bound(Bytes::new(size)).get();
                    prop_assert!(u128::from(size) + u128::from(step) > u128::from(u64::MAX));
                    continue;
                };
                let rounded = rounded.get();
                prop_assert!(rounded >= size);
                prop_assert!(rounded - size <= classes.waste_bound(Bytes::new(size)).get());
                prop_assert_eq!(rounded % classes.granule().get(), 0);
                prop_assert_eq!(classes.round(Bytes::new(rounded)).unwrap().get(), rounded);
            }
        }

        /// The bound people are promised, worked out without the code under test.
        #[test]
        fn geometric_wastes_at_most_an_eighth(size in sizes()) {
            let classes = SizeClasses::geometric_between(Alignment::BLOCK, Bytes::gib(64)).unwrap();
            if let Ok(rounded) = classes.round(Bytes::new(size)) {
                let waste = rounded.get() - size;
                prop_assert!(waste < 512 || waste <= size / 8, "{} -> {}", size, rounded.get());
            }
        }

        #[test]
        fn classes_and_sizes_agree(size in sizes()) {
            for classes in every_kind() {
                let size = Bytes::new(size);
                match classes.class_of(size) {
                    Some(class) => {
                        prop_assert_eq!(classes.size_of(class), classes.round(size).ok());
                        prop_assert!(class.index() < classes.count());
                    }
                    None => prop_assert!(size.is_zero() || size > classes.largest() || classes.count() == 0),
                }
            }
        }

        #[test]
        fn a_larger_request_never_gets_a_smaller_block(one in sizes(), two in sizes()) {
            let (small, large) = (Bytes::new(one.min(two)), Bytes::new(one.max(two)));
            for classes in every_kind() {
                if let (Ok(a), Ok(b)) = (classes.round(small), classes.round(large)) {
                    prop_assert!(a <= b);
                }
                if let (Some(a), Some(b)) = (classes.class_of(small), classes.class_of(large)) {
                    prop_assert!(a <= b);
                }
            }
        }
    }

    #[test]
    fn every_class_has_its_own_size_and_comes_back() {
        for classes in every_kind() {
            let mut last = Bytes::ZERO;
            for index in 0..classes.count() {
                let id = ClassId(u32::try_from(index).unwrap());
                let size = classes.size_of(id).unwrap();
                assert!(size > last, "{classes:?} class {index}");
                assert_eq!(classes.class_of(size), Some(id), "{classes:?} {size}");
                last = size;
            }
            let beyond = ClassId(u32::try_from(classes.count()).unwrap());
            assert_eq!(classes.size_of(beyond), None, "{classes:?}");
            if classes.count() > 0 {
                assert_eq!(last, classes.largest());
            }
        }
    }

    #[test]
    fn the_seeds_classes_can_be_had() {
        let rocm = SizeClasses::powers_of_two_between(Alignment::new(256).unwrap(), Bytes::mib(16))
            .unwrap();
        assert_eq!(rocm.count(), 17);
        let cuda = SizeClasses::powers_of_two().unwrap();
        assert_eq!(cuda.count(), 23);
        assert_eq!(cuda.round(Bytes::gib(5)).unwrap(), Bytes::gib(5));
    }

    #[test]
    fn impossible_classes_are_refused_with_figures() {
        let upside_down = SizeClasses::geometric_between(Alignment::DEVICE_PAGE, Bytes::mib(1));
        assert!(upside_down.unwrap_err().to_string().contains("1048576"));
        assert!(SizeClasses::powers_of_two_between(Alignment::ONE, Bytes::new(3)).is_err());
        assert!(SizeClasses::powers_of_two_between(Alignment::ONE, Bytes::ZERO).is_err());
    }
}
