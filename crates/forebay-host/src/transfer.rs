//! Runs copies and fills on the stream's worker thread.

use core::ptr;

use forebay_core::Span;
use forebay_hal::{self as hal, Access, Call, Location, Pattern, Result, StreamHandle, Transfers};

use crate::HostDevice;
use crate::mapping::pointer;
use crate::space::MappingTable;
use crate::stream::Command;

/// How much of a fill is copied at once. Half of a usual first-level cache: the source is read
/// again for every copy.
const FILL_STEP: usize = 16 << 10;

// SAFETY: work goes through the stream's queue, which keeps its order; the device's sides are
// looked up before it is enqueued; `run_copy` and `run_fill` touch the rows of the shape alone.
unsafe impl Transfers for HostDevice {
    unsafe fn copy(&self, copy: &hal::Copy, stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::Copy, stream)?;
        if copy.extent().is_empty() {
            return Ok(());
        }
        {
            let table = self.space.table();
            if let Location::Device(_) = copy.to() {
                let rows = copy.rows().map(|(to, _)| to);
                check_rows(&table, (Call::Copy, "to"), copy.written(), rows, Access::ReadWrite)?;
            }
            if let Location::Device(_) = copy.from() {
                let rows = copy.rows().map(|(_, from)| from);
                check_rows(&table, (Call::Copy, "from"), copy.read(), rows, Access::Read)?;
            }
        }
        self.push(Call::Copy, stream, &queue, Command::Copy(*copy))
    }

    unsafe fn fill(&self, fill: &hal::Fill, stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::Fill, stream)?;
        if fill.extent().is_empty() {
            return Ok(());
        }
        check_rows(
            &self.space.table(),
            (Call::Fill, "to"),
            fill.written(),
            fill.rows(),
            Access::ReadWrite,
        )?;
        self.push(Call::Fill, stream, &queue, Command::Fill(*fill))
    }
}

/// Refuses rows that are not live memory of the device. `reach` is all of them with their gaps:
/// where that is memory, so is every row.
fn check_rows(
    table: &MappingTable,
    (call, argument): (Call, &'static str),
    reach: Span,
    mut rows: impl Iterator<Item = Span>,
    need: Access,
) -> Result<()> {
    if table.book.check_use(call, argument, reach, need).is_ok() {
        return Ok(());
    }
    rows.try_for_each(|row| table.book.check_use(call, argument, row, need))
}

/// Makes a copy.
///
/// # Safety
///
/// * The rows read are readable memory and the rows written writable memory.
pub(crate) unsafe fn run_copy(copy: &hal::Copy) {
    for (to, from) in copy.rows() {
        let Ok(length) = to.size().to_usize() else { return };
        // SAFETY: as the caller promised. The two may lie anywhere to each other.
        unsafe { ptr::copy(pointer(from.start()), pointer(to.start()), length) };
    }
}

/// Makes a fill.
///
/// # Safety
///
/// * The rows are writable memory.
pub(crate) unsafe fn run_fill(fill: &hal::Fill) {
    for row in fill.rows() {
        // SAFETY: as the caller promised.
        unsafe { fill_row(row, fill.pattern()) };
    }
}

/// # Safety
///
/// * The span is writable memory.
unsafe fn fill_row(row: Span, pattern: Pattern) {
    let Ok(length) = row.size().to_usize() else { return };
    let start = pointer(row.start());
    if let Pattern::U8(byte) = pattern {
        // SAFETY: as the caller promised.
        unsafe { ptr::write_bytes(start, byte, length) };
        return;
    }
    let four = pattern.four_bytes();
    let mut filled = length.min(four.len());
    // SAFETY: `filled` is no more than the row and no more than the four bytes.
    unsafe { ptr::copy_nonoverlapping(four.as_ptr(), start, filled) };
    while filled < length {
        // What is filled so far is a whole number of patterns, so copying its beginning goes on
        // with it; the last copy is cut to the row.
        let step = filled.min(FILL_STEP).min(length - filled);
        // SAFETY: `step` bytes from the start are filled, and as many lie between `filled` and the
        // end of the row; the two do not overlap because `step` is no more than `filled`.
        unsafe { ptr::copy_nonoverlapping(start, start.add(filled), step) };
        filled += step;
    }
}
