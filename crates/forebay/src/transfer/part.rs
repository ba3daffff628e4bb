//! Moves one part: between host memory or a file and a slot, and between the slot and the device.

use core::ops::Range;
use core::slice;

use forebay_core::transfer::{Piece, Run, ranges_to_send};
use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, Copy, Fill, Pattern, StreamHandle, invalid};

use super::copy_memory::copy_memory;
use super::engine::Engine;
use super::host_end::pointer;
use super::job::{Direction, HostEnd, Part};
use super::state::Task;
use crate::pinned::PinnedArray;
use crate::{Error, Result};

/// The granularity of the search for zeros.
const ZERO_BLOCK: u64 = 4 << 10;

/// The shortest run of zeros that is not sent. Skipping it splits a copy in two, and an extra copy takes the device
/// some microseconds; the best length was not measured.
const ZERO_RUN: u64 = 64 << 10;

/// Bytes probed at first: a cache line.
const LOOK: usize = 64;

/// The device operations for a part.
#[derive(Default)]
struct Sending {
    /// The range to fill with zeros first.
    zeros: Option<(u64, u64)>,
    /// Copies: offset in the slot, address on the device, and size.
    copies: Vec<Run>,
    /// Number of bytes not copied.
    skipped: u64,
}

impl Sending {
    /// All of a piece in one copy.
    fn whole(piece: &Piece) -> Self {
        let copies = vec![Run { offset: 0, device: piece.to.start, size: piece.width }];
        Self { copies, ..Self::default() }
    }
}

impl Engine {
    /// Fills the slot with a part, and enqueues its copy to the device. Returns the number of bytes that were zero and
    /// not copied.
    ///
    /// # Safety
    ///
    /// * The host's side is readable, and the device's side is memory of the device, until the work on the stream of the
    ///   task that was enqueued by this call is done.
    pub(super) unsafe fn send(&self, task: &Task, slot: &mut PinnedArray<u8>) -> Result<u64> {
        let start = slot.address().get();
        let past_caches = self.options.goes_past_caches(true, task.part.bytes());
        // Waits until the device has read the slot's previous contents.
        let bytes = slot.host_mut()?;
        let outcome = match &task.part {
            Part::Rows(piece) if piece.rows > 1 => {
                // SAFETY: as the caller promised.
                unsafe { gather_rows(piece, bytes, past_caches) };
                copy_of_rows(Direction::Up, start, piece)
                    .map_err(Error::from)
                    .and_then(|copy| self.copy(&[copy], task.stream))
                    .map(|()| 0)
            }
            Part::Rows(piece) => {
                // SAFETY: as the caller promised.
                let sending = unsafe { self.stage(piece, &task.host, bytes, past_caches) }?;
                self.enqueue(start, &sending, task.stream)
            }
            Part::Load(items, load) => {
                if let HostEnd::Files(files) = &task.host {
                    files.read_load(items, load, bytes)?;
                } else {
                    for (item, range) in load.parts(items) {
                        let Some(room) = bytes.get_mut(range) else { continue };
                        // SAFETY: as the caller promised; a slot is not the program's.
                        unsafe { copy_in(item.host, room, past_caches) };
                    }
                }
                let sending = Sending { copies: load.runs.clone(), ..Sending::default() };
                self.enqueue(start, &sending, task.stream)
            }
        };
        // Even after a failure, since some of the copies may have been enqueued.
        let noted = slot.read_on(task.stream);
        let zeros = outcome?;
        noted.map(|()| zeros)
    }

    /// Copies a row into the slot, except for long runs of zeros.
    ///
    /// # Safety
    ///
    /// * The host's side is readable.
    unsafe fn stage(
        &self,
        piece: &Piece,
        host: &HostEnd,
        bytes: &mut [u8],
        past_caches: bool,
    ) -> Result<Sending> {
        let size = piece.width;
        let Some(bytes) = bytes.get_mut(..to_usize(size)) else { return Err(too_large(size)) };
        if let HostEnd::Files(files) = host {
            files.read(bytes, piece.from.start)?;
            return Ok(Sending::whole(piece));
        }
        // SAFETY: readable, as the caller promised, and nobody writes to it meanwhile.
        let source =
            unsafe { slice::from_raw_parts(pointer(piece.from.start).cast_const(), bytes.len()) };
        if !self.options.fill_zeros || !may_have_run(source) {
            // SAFETY: as the caller promised; a slot is not the program's.
            unsafe { copy_in(piece.from.start, bytes, past_caches) };
            return Ok(Sending::whole(piece));
        }
        let blocks = source.chunks(to_usize(ZERO_BLOCK)).map(is_zero);
        let ranges = ranges_to_send(blocks, ZERO_BLOCK, size, ZERO_RUN);
        let mut sending = Sending { skipped: size, ..Sending::default() };
        for Range { start, end } in ranges.iter().cloned() {
            if let Some(room) = bytes.get_mut(to_usize(start)..to_usize(end)) {
                // SAFETY: within what is readable; a slot is not the program's.
                unsafe { copy_in(piece.from.start + start, room, past_caches) };
            }
            let run = Run { offset: start, device: piece.to.start + start, size: end - start };
            sending.skipped -= run.size;
            sending.copies.push(run);
        }
        // A single fill from the first skipped byte to the last: the copies overwrite what lies between.
        let first = ranges.first().filter(|first| first.start == 0).map_or(0, |first| first.end);
        let last = ranges.last().filter(|last| last.end == size).map_or(size, |last| last.start);
        if sending.skipped > 0 {
            sending.zeros = Some((piece.to.start + first, last - first));
        }
        Ok(sending)
    }

    /// Enqueues the fill and the copies of a part, whose bytes are in the slot at `start`. Returns the number of bytes
    /// not copied.
    fn enqueue(&self, start: u64, sending: &Sending, stream: StreamHandle) -> Result<u64> {
        if let Some((device, size)) = sending.zeros {
            let fill = Fill::linear(Address::new(device), Bytes::new(size), Pattern::U8(0))?;
            // SAFETY: memory of the device, as the caller of `send` promised.
            unsafe { self.device.fill(&fill, stream) }?;
        }
        let copies = sending.copies.iter().map(|run| copy_of_run(Direction::Up, start, run));
        self.copy(&copies.collect::<hal::Result<Vec<_>>>()?, stream)?;
        Ok(sending.skipped)
    }

    /// Enqueues copies between the device and a slot.
    fn copy(&self, copies: &[Copy], stream: StreamHandle) -> Result<()> {
        // SAFETY: the device's side is as the caller of `send` or `fetch` promised. The host's side is a slot, which
        // notes the work on the stream afterwards, also after an error, and is neither used nor freed before that is
        // done.
        Ok(unsafe {
            match copies {
                [copy] => self.device.copy(copy, stream),
                copies => self.device.copy_all(copies, stream),
            }
        }?)
    }

    /// Enqueues the copy of a part into the slot.
    ///
    /// # Safety
    ///
    /// * The device's side is memory of the device until the work on the stream of the task that was enqueued by this
    ///   call is done.
    pub(super) unsafe fn fetch(&self, task: &Task, slot: &mut PinnedArray<u8>) -> Result<()> {
        let start = slot.address().get();
        slot.wait()?;
        let copies = match &task.part {
            Part::Rows(piece) => copy_of_rows(Direction::Down, start, piece).map(|copy| vec![copy]),
            Part::Load(_, load) => {
                load.runs.iter().map(|run| copy_of_run(Direction::Down, start, run)).collect()
            }
        };
        let outcome =
            copies.map_err(Error::from).and_then(|copies| self.copy(&copies, task.stream));
        // Even after a failure, since some of the copies may have been enqueued.
        let noted = slot.written_on(task.stream);
        outcome.and(noted)
    }

    /// Waits for the copy into the slot, and empties it.
    ///
    /// # Safety
    ///
    /// * The host's side is writable, or readable if it is compared, and used by nothing else.
    pub(super) unsafe fn land(&self, task: &Task, slot: &PinnedArray<u8>) -> Result<()> {
        let bytes = slot.host()?;
        let past_caches = self.options.goes_past_caches(false, task.part.bytes());
        match &task.part {
            Part::Rows(piece) => {
                let size = usize::try_from(piece.bytes().get()).unwrap_or(usize::MAX);
                let Some(bytes) = bytes.get(..size) else {
                    return Err(too_large(piece.bytes().get()));
                };
                if let HostEnd::Files(files) = &task.host {
                    return files.write(bytes, piece.to.start);
                }
                let width = usize::try_from(piece.width).unwrap_or(usize::MAX).max(1);
                for (row, from) in (0..piece.rows).zip(bytes.chunks_exact(width)) {
                    let to = piece.to.on(row, 0).start;
                    // SAFETY: as the caller promised; a slot is not the program's.
                    unsafe { land_row(from, to, &task.host, past_caches) }?;
                }
            }
            Part::Load(items, load) => {
                for (item, range) in load.parts(items) {
                    let Some(from) = bytes.get(range) else { continue };
                    // SAFETY: as the caller promised; a slot is not the program's.
                    unsafe { land_row(from, item.host, &task.host, past_caches) }?;
                }
            }
        }
        Ok(())
    }
}

/// The copy between the rows of a piece on the device and a slot at `start`, where they are packed.
fn copy_of_rows(direction: Direction, start: u64, piece: &Piece) -> hal::Result<Copy> {
    let rows = if direction == Direction::Up { &piece.to } else { &piece.from };
    let (to, from) = direction.ends(Address::new(start), Address::new(rows.start));
    let (packed, apart) = (Bytes::new(piece.width), Bytes::new(rows.row));
    let pitches = if direction == Direction::Up { (apart, packed) } else { (packed, apart) };
    Copy::planes(to, pitches.0, from, pitches.1, (packed, piece.rows))
}

/// The copy between a run on the device and its bytes in a slot at `start`.
fn copy_of_run(direction: Direction, start: u64, run: &Run) -> hal::Result<Copy> {
    let (to, from) = direction.ends(Address::new(start + run.offset), Address::new(run.device));
    Copy::linear(to, from, Bytes::new(run.size))
}

/// Copies host memory into `room`.
///
/// # Safety
///
/// * As many bytes are readable at `from`, and are not in `room`.
unsafe fn copy_in(from: u64, room: &mut [u8], past_caches: bool) {
    // SAFETY: as the caller promised.
    unsafe {
        copy_memory(pointer(from).cast_const(), room.as_mut_ptr(), room.len(), past_caches);
    }
}

/// Copies `bytes` to host memory, or compares them with it.
///
/// # Safety
///
/// * As many bytes are at `to`, used by nothing else, and not in `bytes`: writable, or readable if they are compared.
unsafe fn land_row(bytes: &[u8], to: u64, host: &HostEnd, past_caches: bool) -> Result<()> {
    let HostEnd::Compared(first) = host else {
        // SAFETY: as the caller promised.
        unsafe { copy_memory(bytes.as_ptr(), pointer(to), bytes.len(), past_caches) };
        return Ok(());
    };
    // SAFETY: as the caller promised.
    let there = unsafe { slice::from_raw_parts(pointer(to).cast_const(), bytes.len()) };
    if bytes == there {
        return Ok(());
    }
    let at = bytes.iter().zip(there).position(|(device, host)| device != host).unwrap_or(0);
    let byte = |bytes: &[u8]| bytes.get(at).copied().unwrap_or(0);
    let offset = Bytes::new(to - first + at as u64);
    Err(Error::Differs { offset, host: byte(there), device: byte(bytes) })
}

/// Packs the rows of a piece into `bytes`.
///
/// # Safety
///
/// * The rows are readable host memory.
unsafe fn gather_rows(piece: &Piece, bytes: &mut [u8], past_caches: bool) {
    let width = usize::try_from(piece.width).unwrap_or(usize::MAX).max(1);
    for (row, room) in (0..piece.rows).zip(bytes.chunks_exact_mut(width)) {
        // SAFETY: as the caller promised; a slot is not the program's.
        unsafe { copy_in(piece.from.on(row, 0).start, room, past_caches) };
    }
}

/// Whether there may be a run of zeros long enough to skip. Such a run contains a whole aligned half of the shortest
/// length, so probing each half suffices; a probe costs as much as copying some hundred bytes.
fn may_have_run(bytes: &[u8]) -> bool {
    let half = to_usize(ZERO_RUN / 2);
    let has_room = bytes.len() >= 2 * half;
    has_room && bytes.chunks_exact(half).any(|half| half.get(..LOOK).is_some_and(is_zero))
}

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    // A few bytes first, which rule out most data; then chunks of a size that suits vectors.
    let (first, rest) = bytes.split_at(bytes.len().min(LOOK));
    let none = |bytes: &[u8]| bytes.iter().fold(0, |all, byte| all | byte) == 0;
    none(first) && rest.chunks(1024).all(none)
}

/// Converts to a length in memory. This crate builds for 64-bit targets only, so nothing is truncated.
fn to_usize(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}

fn too_large(size: u64) -> Error {
    invalid(Call::Copy, "part", format!("{size} B"), "no more than a slot holds").into()
}
