//! How requests are rounded. A request is rounded once, where it enters the pool; every room below gets both sizes.

use forebay_core::{Bytes, SizeClasses};

use crate::sync::map::LARGEST;

/// The rounding of a pool.
#[derive(Debug)]
pub(in crate::pool) struct Sizes {
    classes: SizeClasses,
}

impl Sizes {
    pub(in crate::pool) fn new(classes: SizeClasses) -> Self {
        Self { classes }
    }

    /// Whether sizes are only rounded up to 512 B, which takes two instructions.
    #[inline(always)]
    fn is_exact(&self) -> bool {
        self.classes == SizeClasses::Exact
    }

    /// The size of the block for a request. Zero, and sizes above the largest block, become sizes that no cache has; the
    /// heap path refuses them ([`is_possible`](Self::is_possible)).
    #[inline(always)]
    pub(in crate::pool) fn round(&self, requested: Bytes) -> Bytes {
        if self.is_exact() { to_units(requested) } else { self.round_by_class(requested) }
    }

    /// The same, if it needs no function call.
    #[inline(always)]
    pub(in crate::pool) fn round_in_place(&self, requested: Bytes) -> Option<Bytes> {
        if self.is_exact() { Some(to_units(requested)) } else { None }
    }

    /// Whether `size` is the rounded size of a request that a pool can have.
    pub(in crate::pool) fn is_possible(requested: Bytes, size: Bytes) -> bool {
        !requested.is_zero() && requested <= LARGEST && !size.is_zero() && size <= LARGEST
    }

    #[cold]
    #[inline(never)]
    fn round_by_class(&self, requested: Bytes) -> Bytes {
        self.classes.round(requested).unwrap_or_default()
    }
}

#[inline(always)]
fn to_units(requested: Bytes) -> Bytes {
    Bytes::new(requested.get().wrapping_add(511) & !511)
}
