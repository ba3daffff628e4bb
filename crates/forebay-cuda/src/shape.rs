//! Pieces of copies that the host makes itself.

use forebay_core::transfer::Piece;

/// A pointer the host may follow, where the address is one of the host's.
pub(crate) fn host_pointer(address: u64) -> *mut u8 {
    // Pointers are 64 bits wide wherever this crate builds, so nothing is ever cut.
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// Copies the rows of a piece here and now.
///
/// # Safety
///
/// * The rows on both sides are memory of the host: readable where read, and where written, used by nobody else.
pub(crate) unsafe fn copy_here(piece: &Piece) {
    let Ok(length) = usize::try_from(piece.width) else { return };
    for row in 0..piece.rows {
        let (from, to) = (piece.from.on(row, 0).start, piece.to.on(row, 0).start);
        let (from, to) = (host_pointer(from), host_pointer(to));
        // SAFETY: as the caller promised.
        unsafe { core::ptr::copy(from, to, length) };
    }
}
