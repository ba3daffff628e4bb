//! Copies and fills.

use forebay_core::transfer::{CopyEnd, CopyShape};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::address_book::Reason;
use forebay_hal::{
    self as hal, Access, Asked, Call, Location, Pattern, Result, StreamHandle, Transfers, invalid,
};
use forebay_sync::lock;

use crate::batch::GROUP;
use crate::context::host_pointer;
use crate::device::CudaDevice;
use crate::piece::enqueue_plane;
use crate::space::USABLE;
use crate::stream::StreamCore;
use crate::sys::values::memory_type;
use crate::sys::{Copy3d, Outcome, RawStream, Symbols};

/// Rows up to this width go to pinned memory by way of a stage where they are gathered: the host copies so much in about
/// the time of a driver's call. Wider ones are better left to the driver, one by one.
const NARROW: u64 = 64 << 10;

impl CudaDevice {
    /// Refuses rows that are not memory of the device, as far as the books or the driver know.
    pub(crate) fn check_rows(
        &self,
        (call, argument): (Call, &'static str),
        reach: Span,
        mut rows: impl Iterator<Item = Span>,
        need: Access,
    ) -> Result<()> {
        // Where all from the first byte to the last is memory, so is every row.
        if self.space().book.check(reach, need).is_ok() {
            return Ok(());
        }
        rows.try_for_each(|row| {
            let space = self.space();
            let Err(unusable) = space.book.check(row, need) else { return Ok(()) };
            if unusable.why != Reason::Unknown {
                return Err(invalid(call, argument, space.book.explain(row, unusable), USABLE));
            }
            drop(space);
            // Accept another library's memory if the driver knows it. Refuse the slack that the driver
            // adds to our own allocations, and memory of our other devices.
            match self.context.pointer(row.start()) {
                Some(known)
                    if known.span.contains_span(row) && !self.context.is_ours(known.span) =>
                {
                    Ok(())
                }
                _ => {
                    let given =
                        format!("{row}, where neither this device nor the driver has memory");
                    Err(invalid(call, argument, given, USABLE))
                }
            }
        })
    }

    /// Whether the driver copies to and from this memory of the host's side on its own.
    fn is_reached(&self, span: Span) -> bool {
        self.space().is_pinned(span)
            || self
                .context
                .pointer(span.start())
                .is_some_and(|known| known.span.contains_span(span))
    }

    /// Whether a copy to the host goes by way of a stage. To pinned memory it does where the driver would need a call for
    /// each of many rows; a graph would use the stage when it is somebody else's, so not while the stream is captured.
    fn stages_to_host(&self, copy: &hal::Copy, shape: &CopyShape, core: &StreamCore) -> bool {
        !self.is_reached(copy.written())
            || (shape.width <= NARROW && self.gathers(shape.rows) && !self.may_be_captured(core))
    }

    /// A copy from host to host: a task, since the driver has nothing to do with it.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy`.
    unsafe fn copy_on_host(&self, copy: hal::Copy, core: &StreamCore) -> Outcome {
        let task = Box::new(move || {
            for (to, from) in copy.rows() {
                let Ok(length) = to.size().to_usize() else { return };
                let (from, to) = (host_pointer(from.start().get()), host_pointer(to.start().get()));
                // SAFETY: valid until the copy is done, as the caller promised.
                unsafe { core::ptr::copy(from, to, length) };
            }
        });
        let lane = core.lane();
        let mut lane = lock(&lane);
        // One task: where it is refused it never runs.
        self.enqueue_own(task, copy.extent().bytes(), core.raw, &mut lane)
    }

    /// A copy the driver makes alone, in one call unless its rows lie too far apart. Where it fails
    /// half way and the host's memory takes part, what was enqueued is waited for: the driver
    /// cannot be told to leave that memory alone.
    fn copy_direct(&self, copy: &hal::Copy, shape: &CopyShape, core: &StreamCore) -> Result<()> {
        let mut enqueued = 0_u64;
        let outcome = self.enqueue_direct(shape, core, &mut enqueued);
        let Err(refusal) = outcome else { return Ok(()) };
        if enqueued > 0 && (copy.to().is_host() || copy.from().is_host()) {
            self.wait_for_parts(refusal, enqueued, core)?;
        }
        Err(self.copy_refused(copy, refusal))
    }

    /// Enqueues the parts of such a copy, and counts them.
    fn enqueue_direct(&self, shape: &CopyShape, core: &StreamCore, enqueued: &mut u64) -> Outcome {
        let fits = |side: CopyEnd| side.row <= self.max_pitch;
        self.context.call(|table| match *shape {
            CopyShape { slices: slices @ 2.., rows, width, to, from } if fits(to) && fits(from) => {
                let copy = Copy3d {
                    src_type: memory_type::UNIFIED,
                    src_device: from.start,
                    src_pitch: from.row,
                    src_height: from.slice / from.row.max(1),
                    dst_type: memory_type::UNIFIED,
                    dst_device: to.start,
                    dst_pitch: to.row,
                    dst_height: to.slice / to.row.max(1),
                    width,
                    height: rows,
                    depth: slices,
                    ..Copy3d::default()
                };
                // SAFETY: a description of our own, a live stream, and memory that was looked up or
                // promised by the caller.
                unsafe { table.memcpy_3d(&raw const copy, core.raw) }
            }
            _ => {
                for piece in shape.pieces(Bytes::MAX, self.max_pitch) {
                    enqueue_plane(table, &piece, core.raw)?;
                    *enqueued += 1;
                }
                Ok(())
            }
        })
    }
}

// SAFETY: every byte of a shape goes through exactly one of the driver's calls or one task, in the
// order of the stream; device sides are looked up first, in the books and with the driver. Where a
// copy fails half way, its tasks are called off and its copies of the host's memory waited for.
unsafe impl Transfers for CudaDevice {
    unsafe fn copy(&self, copy: &hal::Copy, stream: StreamHandle) -> Result<()> {
        let call = Call::Copy;
        let core = self.stream(call, stream)?;
        if copy.extent().is_empty() {
            return Ok(());
        }
        if let Location::Device(_) = copy.to() {
            let rows = copy.rows().map(|(to, _)| to);
            self.check_rows((call, "to"), copy.written(), rows, Access::ReadWrite)?;
        }
        if let Location::Device(_) = copy.from() {
            let rows = copy.rows().map(|(_, from)| from);
            self.check_rows((call, "from"), copy.read(), rows, Access::Read)?;
        }
        let shape = copy.shape();
        let can_stage = self.context.table().launch_host_function.is_some()
            && self.context.table().mem_host_alloc.is_some();
        let outcome = match (copy.to(), copy.from()) {
            (Location::Host(_), Location::Host(_)) if can_stage => {
                // SAFETY: as the caller promised.
                unsafe { self.copy_on_host(*copy, &core) }
            }
            (Location::Device(_), Location::Host(_))
                if can_stage && !self.is_reached(copy.read()) =>
            {
                // SAFETY: as the caller promised.
                return unsafe { self.copy_staged(copy, &shape, &core) };
            }
            (Location::Host(_), Location::Device(_))
                if can_stage && self.stages_to_host(copy, &shape, &core) =>
            {
                // SAFETY: as the caller promised.
                return unsafe { self.copy_staged(copy, &shape, &core) };
            }
            _ => return self.copy_direct(copy, &shape, &core),
        };
        outcome.map_err(|refusal| self.copy_refused(copy, refusal))
    }

    unsafe fn copy_all(&self, copies: &[hal::Copy], stream: StreamHandle) -> Result<()> {
        let core = self.stream(Call::Copy, stream)?;
        copies.chunks(GROUP).try_for_each(|group| {
            // SAFETY: as the caller promised. For both.
            unsafe {
                if self.enqueue_batch(group, &core)? {
                    return Ok(());
                }
                group.iter().try_for_each(|copy| self.copy(copy, stream))
            }
        })
    }

    unsafe fn fill(&self, fill: &hal::Fill, stream: StreamHandle) -> Result<()> {
        let call = Call::Fill;
        let core = self.stream(call, stream)?;
        let extent = fill.extent();
        if extent.is_empty() {
            return Ok(());
        }
        self.check_rows((call, "to"), fill.written(), fill.rows(), Access::ReadWrite)?;
        // Row by row where they lie too far apart: then a part may be enqueued where the rest is
        // refused, and is written in the order of the stream, as the contract allows.
        let filled = self.context.call(|table| {
            let flat = |row: Span| fill_row(table, row, fill.pattern(), core.raw);
            let mut rows = fill.rows();
            match (rows.next(), rows.next()) {
                (Some(all), None) => flat(all),
                _ if fill.pitch().row.get() <= self.max_pitch => fill_plane(table, fill, core.raw),
                _ => fill.rows().try_for_each(flat),
            }
        });
        filled.map_err(|refusal| {
            let given = format!("{} B at {}", extent.bytes().get(), fill.to());
            self.refused(call, refusal, &Asked::of("to", given, "allocated memory"))
        })
    }
}

/// Fills bytes in a row.
fn fill_row(table: &Symbols, row: Span, pattern: Pattern, stream: RawStream) -> Outcome {
    let (start, size) = (row.start().get(), row.size().get());
    // SAFETY: memory that was looked up, whose size is a multiple of the pattern's, and a live
    // stream. For all three.
    unsafe {
        match pattern {
            Pattern::U16(value) => table.memset_16(start, value, size / 2, stream),
            Pattern::U32(value) => table.memset_32(start, value, size / 4, stream),
            _ => table.memset_8(start, pattern.four_bytes()[0], size, stream),
        }
    }
}

/// Fills rows.
fn fill_plane(table: &Symbols, fill: &hal::Fill, stream: RawStream) -> Outcome {
    let (start, pitch): (Address, u64) = (fill.to(), fill.pitch().row.get());
    let (start, width, rows) = (start.get(), fill.extent().width.get(), fill.extent().rows);
    let pattern = fill.pattern();
    // SAFETY: as for `fill_row`.
    unsafe {
        match pattern {
            Pattern::U16(value) => table.memset_2d_16(start, pitch, value, width / 2, rows, stream),
            Pattern::U32(value) => table.memset_2d_32(start, pitch, value, width / 4, rows, stream),
            _ => table.memset_2d_8(start, pitch, pattern.four_bytes()[0], width, rows, stream),
        }
    }
}
