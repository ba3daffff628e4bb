//! Copies and fills in one, two and three dimensions.
//!
//! A [`Copy`] or [`Fill`] is checked on construction, so a device that receives one need not check that its sizes are
//! consistent.
//!
//! ```text
//!   slices   +-----------------------------+
//!      rows  | <--- width ---> |  unused   |   row pitch: from one row to the next
//!            | <--- width ---> |           |   slice pitch: from one slice to the next
//!            +-----------------------------+
//! ```

use core::fmt;

use forebay_core::transfer::{CopyEnd, CopyShape};
use forebay_core::{Address, Alignment, Bytes, Span};

use crate::{Call, Error, Result, StreamHandle, invalid, valid_span};

/// One end of a copy.
///
/// The side is explicit because some devices' addresses are not the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// Host memory, pinned or not.
    Host(Address),
    /// Memory of the device.
    Device(Address),
}

impl Location {
    /// The address, on either side.
    pub const fn address(self) -> Address {
        match self {
            Self::Host(address) | Self::Device(address) => address,
        }
    }

    /// Whether this is host memory.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::Host(_))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(address) => write!(f, "host {address}"),
            Self::Device(address) => write!(f, "device {address}"),
        }
    }
}

/// The distances between rows and slices. The pitch of a single row or slice is ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pitch {
    /// From the start of a row to the start of the next.
    pub row: Bytes,
    /// From the start of a slice to the start of the next.
    pub slice: Bytes,
}

impl Pitch {
    /// Rows `row` apart, in one slice.
    pub const fn rows(row: Bytes) -> Self {
        Self { row, slice: Bytes::ZERO }
    }
}

/// The size of a copy or fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The bytes of a row.
    pub width: Bytes,
    /// The rows of a slice.
    pub rows: u64,
    /// The slices.
    pub slices: u64,
}

impl Extent {
    /// One row.
    pub const fn linear(width: Bytes) -> Self {
        Self { width, rows: 1, slices: 1 }
    }

    /// One slice.
    pub const fn plane(width: Bytes, rows: u64) -> Self {
        Self { width, rows, slices: 1 }
    }

    /// Whether there is nothing to do.
    pub const fn is_empty(self) -> bool {
        self.width.is_zero() || self.rows == 0 || self.slices == 0
    }

    /// The bytes moved, without gaps; saturates at [`Bytes::MAX`].
    pub const fn bytes(self) -> Bytes {
        Bytes::new(self.width.get().saturating_mul(self.rows).saturating_mul(self.slices))
    }

    /// The bytes from first to last, including gaps.
    fn reach(self, call: Call, argument: &'static str, pitch: Pitch) -> Result<Bytes> {
        if self.is_empty() {
            return Ok(Bytes::ZERO);
        }
        let overflow = |error| Error::quantity(call, argument, &error);
        if self.rows > 1 && pitch.row < self.width {
            let least = format!("{} B (the width) or more", self.width.get());
            return Err(invalid(call, argument, format!("row pitch {} B", pitch.row.get()), least));
        }
        // A row's pitch stands in for a slice's where there is one row: then only order matters.
        let row = if self.rows > 1 { pitch.row } else { self.width };
        if self.slices > 1 {
            let least = row.try_mul(self.rows).map_err(overflow)?;
            let whole = self.rows <= 1 || pitch.slice.get().is_multiple_of(row.get());
            if pitch.slice < least || !whole {
                let given = format!("slice pitch {} B", pitch.slice.get());
                let allowed = format!(
                    "a multiple of the row pitch {} B, {} B or more",
                    row.get(),
                    least.get()
                );
                return Err(invalid(call, argument, given, allowed));
            }
        }
        let slices = pitch.slice.try_mul(self.slices - 1).map_err(overflow)?;
        let rows = row.try_mul(self.rows - 1).map_err(overflow)?;
        let slices = if self.slices > 1 { slices } else { Bytes::ZERO };
        slices.try_add(rows).and_then(|sum| sum.try_add(self.width)).map_err(overflow)
    }
}

/// A copy of any shape, already checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copy {
    to: Location,
    to_pitch: Pitch,
    from: Location,
    from_pitch: Pitch,
    extent: Extent,
}

impl Copy {
    /// `size` bytes in a row.
    ///
    /// Returns an error if source and destination overlap, which drivers leave undefined.
    pub fn linear(to: Location, from: Location, size: Bytes) -> Result<Self> {
        let copy =
            Self::volumes(to, Pitch::default(), from, Pitch::default(), Extent::linear(size))?;
        if to.is_host() == from.is_host() && copy.written().overlaps(copy.read()) {
            let given = format!("{} onto {}", copy.read(), copy.written());
            return Err(invalid(Call::Copy, "to", given, "spans that do not overlap"));
        }
        Ok(copy)
    }

    /// Copies `rows` rows of `width` bytes; each side has its own row pitch.
    pub fn planes(
        to: Location,
        to_row: Bytes,
        from: Location,
        from_row: Bytes,
        extent: (Bytes, u64),
    ) -> Result<Self> {
        let extent = Extent::plane(extent.0, extent.1);
        Self::volumes(to, Pitch::rows(to_row), from, Pitch::rows(from_row), extent)
    }

    /// Copies slices of rows; each side has its own pitches.
    ///
    /// Rows of the two sides may interleave but must not overlap.
    pub fn volumes(
        to: Location,
        to_pitch: Pitch,
        from: Location,
        from_pitch: Pitch,
        extent: Extent,
    ) -> Result<Self> {
        let reach = extent.reach(Call::Copy, "to", to_pitch)?;
        valid_span(Call::Copy, "to", to.address(), reach)?;
        let reach = extent.reach(Call::Copy, "from", from_pitch)?;
        valid_span(Call::Copy, "from", from.address(), reach)?;
        Ok(Self { to, to_pitch, from, from_pitch, extent })
    }

    /// The destination.
    pub const fn to(&self) -> Location {
        self.to
    }

    /// The pitches there.
    pub const fn to_pitch(&self) -> Pitch {
        self.to_pitch
    }

    /// The source.
    pub const fn from(&self) -> Location {
        self.from
    }

    /// The pitches there.
    pub const fn from_pitch(&self) -> Pitch {
        self.from_pitch
    }

    /// The size.
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// The addresses from the first byte written to the last, gaps counted.
    pub fn written(&self) -> Span {
        reach_span(self.to.address(), self.extent, self.to_pitch)
    }

    /// The addresses from the first byte read to the last, including gaps.
    pub fn read(&self) -> Span {
        reach_span(self.from.address(), self.extent, self.from_pitch)
    }

    /// The shape, with adjacent rows and slices merged.
    pub fn shape(&self) -> CopyShape {
        let end = |place: Location, pitch: Pitch| CopyEnd {
            start: place.address().get(),
            row: pitch.row.get(),
            slice: pitch.slice.get(),
        };
        let Extent { width, rows, slices } = self.extent;
        let (to, from) = (end(self.to, self.to_pitch), end(self.from, self.from_pitch));
        CopyShape::new(to, from, (width.get(), rows, slices))
    }

    /// The rows, as pairs of spans: written, read. Adjacent rows come as one.
    pub fn rows(&self) -> Rows {
        Rows::of(self.shape())
    }
}

/// The pattern of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pattern {
    /// One repeated byte.
    U8(u8),
    /// Two bytes in the host's order.
    U16(u16),
    /// Four bytes in the host's order.
    U32(u32),
}

impl Pattern {
    /// The number of bytes that repeat.
    pub const fn width(self) -> Alignment {
        match self {
            Self::U8(_) => Alignment::ONE,
            Self::U16(_) => Alignment::TWO,
            Self::U32(_) => Alignment::FOUR,
        }
    }

    /// The pattern as four bytes, with shorter ones repeated. A fill's length is a multiple of [`width`](Self::width),
    /// so these bytes, repeated and cut, produce every fill.
    pub const fn four_bytes(self) -> [u8; 4] {
        match self {
            Self::U8(byte) => [byte; 4],
            Self::U16(value) => {
                let [a, b] = value.to_ne_bytes();
                [a, b, a, b]
            }
            Self::U32(value) => value.to_ne_bytes(),
        }
    }
}

/// A fill of any shape, already checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    to: Address,
    pitch: Pitch,
    extent: Extent,
    pattern: Pattern,
}

impl Fill {
    /// `size` bytes in a row.
    pub fn linear(to: Address, size: Bytes, pattern: Pattern) -> Result<Self> {
        Self::plane(to, Bytes::ZERO, (size, 1), pattern)
    }

    /// `rows` rows of `width` bytes, `row` bytes apart.
    ///
    /// Address, width and pitch must be multiples of the pattern's width.
    pub fn plane(to: Address, row: Bytes, extent: (Bytes, u64), pattern: Pattern) -> Result<Self> {
        let extent = Extent::plane(extent.0, extent.1);
        let pitch = Pitch::rows(row);
        let width = pattern.width();
        let multiple = || format!("multiples of the pattern's {} B", width.get());
        if !extent.is_empty() && !to.is_aligned_to(width) {
            return Err(invalid(Call::Fill, "to", to, multiple()));
        }
        if !extent.width.is_aligned_to(width) {
            let given = format!("{} B", extent.width.get());
            return Err(invalid(Call::Fill, "width", given, multiple()));
        }
        if extent.rows > 1 && !row.is_aligned_to(width) {
            return Err(invalid(Call::Fill, "pitch", format!("{} B", row.get()), multiple()));
        }
        let reach = extent.reach(Call::Fill, "to", pitch)?;
        valid_span(Call::Fill, "to", to, reach)?;
        Ok(Self { to, pitch, extent, pattern })
    }

    /// The destination, on the device.
    pub const fn to(&self) -> Address {
        self.to
    }

    /// The pitch of the destination.
    pub const fn pitch(&self) -> Pitch {
        self.pitch
    }

    /// The size.
    pub const fn extent(&self) -> Extent {
        self.extent
    }

    /// The pattern.
    pub const fn pattern(&self) -> Pattern {
        self.pattern
    }

    /// The addresses from the first byte written to the last, gaps counted.
    pub fn written(&self) -> Span {
        reach_span(self.to, self.extent, self.pitch)
    }

    /// The rows written. Adjacent rows come as one.
    pub fn rows(&self) -> impl Iterator<Item = Span> + use<> {
        let (row, slice) = (self.pitch.row.get(), self.pitch.slice.get());
        let end = CopyEnd { start: self.to.get(), row, slice };
        let Extent { width, rows, slices } = self.extent;
        Rows::of(CopyShape::new(end, end, (width.get(), rows, slices))).map(|(to, _)| to)
    }
}

/// The span from first to last byte of an already checked shape.
fn reach_span(start: Address, extent: Extent, pitch: Pitch) -> Span {
    extent
        .reach(Call::Copy, "extent", pitch)
        .ok()
        .and_then(|reach| Span::new(start, reach).ok())
        .unwrap_or_default()
}

/// The rows of a shape, as pairs of spans: written, read.
#[derive(Clone, Debug)]
pub struct Rows {
    shape: CopyShape,
    row: u64,
    slice: u64,
}

impl Rows {
    fn of(shape: CopyShape) -> Self {
        let slices = if shape.bytes().is_zero() { 0 } else { shape.slices };
        Self { shape: CopyShape { slices, ..shape }, row: 0, slice: 0 }
    }

    fn at(&self, end: CopyEnd) -> Option<Span> {
        let (slices, rows) = (end.slice.checked_mul(self.slice)?, end.row.checked_mul(self.row)?);
        let start = end.start.checked_add(slices)?.checked_add(rows)?;
        Span::new(Address::new(start), Bytes::new(self.shape.width)).ok()
    }
}

impl Iterator for Rows {
    type Item = (Span, Span);

    fn next(&mut self) -> Option<(Span, Span)> {
        if self.slice >= self.shape.slices {
            return None;
        }
        let spans = (self.at(self.shape.to)?, self.at(self.shape.from)?);
        self.row += 1;
        if self.row == self.shape.rows {
            self.row = 0;
            self.slice += 1;
        }
        Some(spans)
    }
}

/// Copies and fills, in stream order.
///
/// # Safety
///
/// An implementation promises:
///
/// * Exactly the bytes of the shape are written: the tail is complete and gaps are untouched.
/// * Work enqueued on a stream starts after all that was enqueued there before it.
/// * An empty copy or fill succeeds, once the stream was found live.
/// * A device address that is not memory of this device is refused with
///   [`Error::Invalid`](crate::Error::Invalid) where the device can tell when the call is made.
/// * A call that fails, except [`copy_all`](Self::copy_all), has finished with the host's memory when it returns:
///   nothing that it enqueued reads or writes there any more. Bytes already written there stay. The call may have
///   waited for a part that was in flight.
/// * A call that fails affects the device's memory as if it had succeeded, except for the bytes: in stream order, the
///   rows read may still be read, and the rows written may still be written with undefined bytes. Free that memory in
///   stream order, or wait for the stream first. No other memory is touched.
/// * After [`Error::Lost`](crate::Error::Lost) neither is promised: host memory lent to the copy must stay valid.
pub unsafe trait Transfers {
    /// Enqueues a copy.
    ///
    /// # Safety
    ///
    /// * The rows on the host's side are valid memory, until the copy is done: readable where read,
    ///   and where written, not used by anything else meanwhile.
    /// * The rows on the device's side are memory of the device, until the copy is done.
    /// * No row written shares a byte with a row read.
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()>;

    /// Enqueues several copies, unordered among themselves: for many small ones, which a device may batch into one
    /// call. If it fails, some of them may be in flight, including those of host memory.
    ///
    /// # Safety
    ///
    /// * As for [`copy`](Self::copy), for each of them; no row written shares a byte with a row of another. If the call
    ///   fails, the memory of the host stays valid until the stream was synchronised.
    unsafe fn copy_all(&self, copies: &[Copy], stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        copies.iter().try_for_each(|copy| unsafe { self.copy(copy, stream) })
    }

    /// Enqueues a fill.
    ///
    /// # Safety
    ///
    /// * The rows are memory of the device, until the fill is done.
    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()>;
}

#[cfg(test)]
mod tests;
