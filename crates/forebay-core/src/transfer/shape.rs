//! The shape of a copy, and its pieces.

use crate::Bytes;

/// One end of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CopyEnd {
    /// The address of the first byte.
    pub start: u64,
    /// The distance from one row to the next.
    pub row: u64,
    /// The distance from one slice to the next.
    pub slice: u64,
}

impl CopyEnd {
    /// The place `rows` rows and `bytes` bytes on. Shapes are checked when they are made, so this
    /// never passes the end of the addresses.
    pub const fn on(self, rows: u64, bytes: u64) -> Self {
        let start = self.start.wrapping_add(rows.wrapping_mul(self.row)).wrapping_add(bytes);
        Self { start, ..self }
    }
}

/// A copy, with adjacent rows and slices merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyShape {
    /// The destination.
    pub to: CopyEnd,
    /// The source.
    pub from: CopyEnd,
    /// The bytes of a row.
    pub width: u64,
    /// The rows of a slice.
    pub rows: u64,
    /// The slices.
    pub slices: u64,
}

/// Rows of one slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The destination.
    pub to: CopyEnd,
    /// The source.
    pub from: CopyEnd,
    /// The bytes of a row.
    pub width: u64,
    /// The rows.
    pub rows: u64,
}

impl CopyShape {
    /// The copy of `slices` slices of `rows` rows of `width` bytes. The ends must not reach past the last address.
    pub fn new(to: CopyEnd, from: CopyEnd, (width, rows, slices): (u64, u64, u64)) -> Self {
        let (mut to, mut from, mut width, mut rows, mut slices) = (to, from, width, rows, slices);
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

    /// The copy of `size` bytes in a row.
    pub fn linear(to: u64, from: u64, size: u64) -> Self {
        let end = |start| CopyEnd { start, row: size, slice: size };
        Self::new(end(to), end(from), (size, 1, 1))
    }

    /// All bytes, without the gaps.
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(self.width.saturating_mul(self.rows).saturating_mul(self.slices))
    }

    /// The copy in pieces of at most `room` bytes, each of rows of one slice; one row each where a pitch is beyond
    /// `max_pitch`.
    pub fn pieces(&self, room: Bytes, max_pitch: u64) -> Pieces {
        let shape = *self;
        let room = room.get().max(1);
        let narrow = shape.to.row <= max_pitch && shape.from.row <= max_pitch;
        let at_once =
            if narrow { (room / shape.width.max(1)).clamp(1, shape.rows.max(1)) } else { 1 };
        let pace = Pace { least: room, threads: 1 };
        Pieces { shape, at_once, width: shape.width.min(room), pace, next: (0, 0, 0) }
    }
}

/// The sizes of the pieces of a row that several threads copy in parallel: small ones first, so that the device has
/// work soon, and small ones last, so that all threads finish together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The smallest piece; others are multiples of it.
    pub least: u64,
    /// How many threads there are.
    pub threads: u64,
}

impl Pace {
    /// The size of the piece that begins after `done` of `total` bytes, `most` at most, the tail aside.
    pub fn size(self, done: u64, total: u64, most: u64) -> u64 {
        let (least, threads) = (self.least.clamp(1, most.max(1)), self.threads.max(1));
        // Pieces double with each round of the threads; then each has two of what is left to do.
        let grown = 1 + done / least.saturating_mul(threads);
        let fair = (total.saturating_sub(done) / threads.saturating_mul(2)).div_ceil(least).max(1);
        least.saturating_mul(grown.min(fair)).min(most.max(1))
    }
}

/// The pieces of a copy, in order: every byte is in exactly one.
#[derive(Clone, Debug)]
pub struct Pieces {
    shape: CopyShape,
    /// How many rows a piece has, unless the slice ends.
    at_once: u64,
    /// The most of a row that one piece has.
    width: u64,
    pace: Pace,
    /// The slice, row and column where the next piece begins.
    next: (u64, u64, u64),
}

impl Pieces {
    /// The same copy, a single row of which is cut at this pace. Rows are not.
    #[must_use]
    pub fn paced(self, pace: Pace) -> Self {
        Self { pace, ..self }
    }
}

impl Iterator for Pieces {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        let (shape, (slice, row, column)) = (self.shape, self.next);
        if slice >= shape.slices || shape.rows == 0 || shape.width == 0 {
            return None;
        }
        let rows = self.at_once.min(shape.rows - row);
        let most = if shape.rows == 1 && shape.slices == 1 {
            self.pace.size(column, shape.width, self.width)
        } else {
            self.width
        };
        let width = most.min(shape.width - column);
        let place = |side: CopyEnd| {
            let start = side.start.wrapping_add(slice.wrapping_mul(side.slice));
            CopyEnd { start, ..side }.on(row, column)
        };
        // Across the row first; rows are cut only where one is longer than the room.
        self.next.2 = column + width;
        if self.next.2 >= shape.width {
            self.next = (slice, row + rows, 0);
        }
        if self.next.1 >= shape.rows {
            self.next = (slice + 1, 0, 0);
        }
        Some(Piece { to: place(shape.to), from: place(shape.from), width, rows })
    }
}

impl Piece {
    /// All bytes, without the gaps.
    pub const fn bytes(&self) -> Bytes {
        Bytes::new(self.width.saturating_mul(self.rows))
    }
}
