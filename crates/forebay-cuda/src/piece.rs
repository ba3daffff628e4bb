//! Pieces of copies: what enqueues one of them, and what happens if the driver refuses it.

use forebay_core::Bytes;
use forebay_core::transfer::{CopyEnd, Piece};
use forebay_hal::{self as hal, Asked, Call, Result};

use crate::context::host_pointer;
use crate::device::CudaDevice;
use crate::refusal::words;
use crate::stream::{StreamCore, TaskLane};
use crate::sys::values::memory_type;
use crate::sys::{Copy2d, DriverError, Outcome, RawStream, Symbols};
use crate::vendor::RowsToHost;

/// Host tasks up to this size run on the driver's own thread, because passing one to another thread takes longer.
const BRIEF: Bytes = Bytes::new(64 << 10);

/// If the driver copies rows to the host one by one, more rows than this are gathered on the device first, which takes two
/// calls and device memory.
const FEW_ROWS: u64 = 4;

/// How often a stream is waited for after a copy failed half way, before the device counts as lost.
pub(crate) const WAITS: usize = 3;

impl CudaDevice {
    /// Whether rows that go to the host are gathered on the device first.
    pub(crate) fn gathers(&self, rows: u64) -> bool {
        self.context.vendor.rows_to_host == RowsToHost::OneByOne && rows > FEW_ROWS
    }

    /// Enqueues a host task of this crate, which touches `bytes` bytes.
    pub(crate) fn enqueue_own(
        &self,
        task: hal::HostTask,
        bytes: Bytes,
        stream: RawStream,
        lane: &mut TaskLane,
    ) -> Outcome {
        if bytes <= BRIEF || !self.context.has_tasks() {
            self.context.enqueue_brief(task, stream)
        } else {
            self.pools.tasks.enqueue(task, stream, &mut lane.signal)
        }
    }

    /// Waits for the parts of a copy that were enqueued on a stream before one was refused. If that fails too, the device
    /// is lost.
    pub(crate) fn wait_for_parts(
        &self,
        refusal: DriverError,
        enqueued: u64,
        core: &StreamCore,
    ) -> Result<()> {
        let mut waited = self.wait_for(core);
        for _ in 1..WAITS {
            waited = waited.or_else(|_| self.wait_for(core));
        }
        waited.map_err(|later| {
            let table = Some(self.context.table());
            let reason = format!(
                "{} after {enqueued} parts of a copy, and these cannot be waited for: {}",
                words(refusal, table),
                words(later, table)
            );
            hal::Error::Lost { call: Call::Copy, reason: reason.into() }
        })
    }

    pub(crate) fn copy_refused(&self, copy: &hal::Copy, refusal: DriverError) -> hal::Error {
        let given =
            format!("{} B from {} to {}", copy.extent().bytes().get(), copy.from(), copy.to());
        self.refused(Call::Copy, refusal, &Asked::of("copy", given, "allocated memory"))
    }
}

/// Enqueues the rows of one slice.
pub(crate) fn enqueue_plane(table: &Symbols, piece: &Piece, stream: RawStream) -> Outcome {
    let Piece { to, from, width, rows } = *piece;
    if rows == 1 {
        // SAFETY: a live stream, and memory that was looked up or promised by the caller of `copy`.
        return unsafe { table.memcpy(to.start, from.start, width, stream) };
    }
    let copy = Copy2d {
        src_type: memory_type::UNIFIED,
        src_device: from.start,
        src_pitch: from.row,
        dst_type: memory_type::UNIFIED,
        dst_device: to.start,
        dst_pitch: to.row,
        width,
        height: rows,
        ..Copy2d::default()
    };
    // SAFETY: as above, with a description of our own.
    unsafe { table.memcpy_2d(&raw const copy, stream) }
}

/// Enqueues the rows of one slice to packed memory of the host, by way of as much of the device's at `gathered`.
pub(crate) fn enqueue_gathered(
    table: &Symbols,
    piece: &Piece,
    gathered: u64,
    stream: RawStream,
) -> Outcome {
    let packed = CopyEnd { start: gathered, ..piece.to };
    enqueue_plane(table, &Piece { to: packed, ..*piece }, stream)?;
    // SAFETY: a live stream, and two packed pieces of memory that are the stream's alone.
    unsafe { table.memcpy(piece.to.start, gathered, piece.bytes().get(), stream) }
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
