//! The part of a hole that a request needs.

use forebay_core::{Alignment, Bytes};

use crate::sync::map::{LARGEST, Side};

/// The part of a hole that a request needs.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Piece {
    pub(super) size: Bytes,
    pub(super) alignment: Alignment,
    whole: Bytes,
}

impl Piece {
    /// `size` bytes at a multiple of `alignment`; `None` if no block can be that large.
    #[inline]
    pub(in crate::pool) fn new(size: Bytes, alignment: Alignment) -> Option<Self> {
        let slack = alignment.bytes().saturating_sub(Alignment::BLOCK.bytes());
        let whole = size.checked_add(slack).filter(|&whole| whole <= LARGEST)?;
        Some(Self { size, alignment, whole })
    }

    /// The address space it is taken from.
    pub(in crate::pool) fn side(&self) -> Side {
        Side::of(self.size)
    }

    /// The size of a hole in which the piece fits wherever the hole begins. The rest before and after the piece stays
    /// free.
    pub(in crate::pool) fn whole(&self) -> Bytes {
        self.whole
    }
}
