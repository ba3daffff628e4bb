//! The free memory of one side. Guarded by the heap lock.

use forebay_core::address_space::{AddressSpace, Boundaries, Offset};
use forebay_core::{Address, Bytes, PageSize, Span};

use crate::pool::heap::piece::Piece;

/// The address space of one side. Offsets in it are addresses.
#[derive(Debug)]
pub(in crate::pool) struct SideHeap {
    pub(in crate::pool) space: AddressSpace,
}

impl SideHeap {
    pub(in crate::pool) fn new(granule: PageSize, boundaries: Boundaries) -> Self {
        Self { space: AddressSpace::new(granule, boundaries) }
    }

    /// Allocates `size` bytes that are free in the order of the stream with number `taker`.
    #[inline]
    pub(in crate::pool) fn allocate(&mut self, size: Bytes, taker: u32) -> Option<Address> {
        self.space.allocate_for(size, taker).map(Address::new)
    }

    /// Cuts an aligned piece out of the memory at `found` and frees the rest before and after it. Returns where the
    /// piece begins.
    pub(super) fn trim_to(&mut self, found: Address, piece: Piece, taker: u32) -> Address {
        let start = found.checked_align_up(piece.alignment).unwrap_or(found);
        let before = start.offset_from(found).unwrap_or_default();
        let after = piece.whole().saturating_sub(before).saturating_sub(piece.size);
        for (address, part) in [(Some(found), before), (start.checked_add(piece.size), after)] {
            if let Some(address) = address.filter(|_| !part.is_zero()) {
                let freed = self.free(address, part, taker);
                debug_assert!(freed, "{part} at {address} was allocated just now");
            }
        }
        start
    }

    /// Frees `size` bytes in the order of the stream with number `owner`. Returns `false` if they are not allocated.
    #[inline]
    #[must_use]
    pub(in crate::pool) fn free(&mut self, address: Address, size: Bytes, owner: u32) -> bool {
        self.space.free_for(address.get(), size, owner).is_ok()
    }
}

/// The addresses of a range in an address space.
pub(in crate::pool) fn span_of(at: Offset, size: Bytes) -> Span {
    Span::new(Address::new(at), size).unwrap_or_default()
}
