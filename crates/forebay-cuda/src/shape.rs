//! The shape of a copy, and its pieces.

use forebay_core::Bytes;
use forebay_hal as hal;

/// A pointer the host may follow, where the address is one of the host's.
pub(crate) fn host_pointer(address: u64) -> *mut u8 {
    // Pointers are 64 bits wide wherever this crate builds, so nothing is ever cut.
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}

/// One end of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CopyEnd {
    pub(crate) start: u64,
    /// From a row to the next.
    pub(crate) row: u64,
    /// From a slice to the next.
    pub(crate) slice: u64,
}

impl CopyEnd {
    /// The place `rows` rows and `bytes` bytes on. Shapes are checked when they are made, so this
    /// never passes the end of the addresses.
    const fn on(self, rows: u64, bytes: u64) -> Self {
        let start = self.start.wrapping_add(rows.wrapping_mul(self.row)).wrapping_add(bytes);
        Self { start, ..self }
    }
}

/// A copy, with what lies side by side made one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopyShape {
    pub(crate) to: CopyEnd,
    pub(crate) from: CopyEnd,
    pub(crate) width: u64,
    pub(crate) rows: u64,
    pub(crate) slices: u64,
}

/// Rows of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) to: CopyEnd,
    pub(crate) from: CopyEnd,
    pub(crate) width: u64,
    pub(crate) rows: u64,
}

impl CopyShape {
    pub(crate) fn new(copy: &hal::Copy) -> Self {
        let extent = copy.extent();
        let side = |place: hal::Place, pitch: hal::Pitch| CopyEnd {
            start: place.address().get(),
            row: pitch.row.get(),
            slice: pitch.slice.get(),
        };
        let mut to = side(copy.to(), copy.to_pitch());
        let mut from = side(copy.from(), copy.from_pitch());
        let mut width = extent.width.get();
        let (mut rows, mut slices) = (extent.rows, extent.slices);
        // Rows without a gap on either side are one; then slices are rows; then once more.
        for _ in 0..2 {
            if rows > 1 && to.row == width && from.row == width {
                width = width.saturating_mul(rows);
                rows = 1;
            }
            if rows == 1 && slices > 1 {
                rows = slices;
                slices = 1;
                to.row = to.slice;
                from.row = from.slice;
            }
        }
        Self { to, from, width, rows, slices }
    }

    /// All bytes, gaps left out.
    pub(crate) const fn bytes(&self) -> Bytes {
        Bytes::new(self.width.saturating_mul(self.rows).saturating_mul(self.slices))
    }

    /// The copy in pieces of at most `room` bytes, each of rows of one slice; one row each where a
    /// pitch is beyond `max_pitch`.
    pub(crate) fn pieces(
        &self,
        room: Bytes,
        max_pitch: u64,
    ) -> impl Iterator<Item = Piece> + use<> {
        let shape = *self;
        let room = room.get().max(1);
        let narrow = shape.to.row <= max_pitch && shape.from.row <= max_pitch;
        let at_once =
            if narrow { (room / shape.width.max(1)).clamp(1, shape.rows.max(1)) } else { 1 };
        let width = shape.width.min(room);
        let mut next = (0, 0, 0);
        core::iter::from_fn(move || {
            let (slice, row, column) = next;
            if slice >= shape.slices || shape.rows == 0 || shape.width == 0 {
                return None;
            }
            let rows = at_once.min(shape.rows - row);
            let length = width.min(shape.width - column);
            let place = |side: CopyEnd| {
                let start = side.start.wrapping_add(slice.wrapping_mul(side.slice));
                CopyEnd { start, ..side }.on(row, column)
            };
            let piece = Piece { to: place(shape.to), from: place(shape.from), width: length, rows };
            // Across the row first; rows are cut only where one is longer than the room.
            next.2 = column + length;
            if next.2 >= shape.width {
                next = (slice, row + rows, 0);
            }
            if next.1 >= shape.rows {
                next = (slice + 1, 0, 0);
            }
            Some(piece)
        })
    }
}

impl Piece {
    pub(crate) const fn bytes(&self) -> Bytes {
        Bytes::new(self.width.saturating_mul(self.rows))
    }

    /// Copies the rows here and now.
    ///
    /// # Safety
    ///
    /// * The rows on both sides are memory of the host: readable where read, and where written, used
    ///   by nobody else.
    pub(crate) unsafe fn copy_here(&self) {
        let Ok(length) = usize::try_from(self.width) else { return };
        for row in 0..self.rows {
            let (from, to) = (self.from.on(row, 0).start, self.to.on(row, 0).start);
            let (from, to) = (host_pointer(from), host_pointer(to));
            // SAFETY: as the caller promised.
            unsafe { core::ptr::copy(from, to, length) };
        }
    }
}

#[cfg(test)]
mod tests;
