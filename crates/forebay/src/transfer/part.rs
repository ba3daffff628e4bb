//! One part: between host memory or a file and a slot, and between the slot and the device.

use core::ops::Range;
use core::slice;
use std::fs::File;
use std::path::PathBuf;

use forebay_core::transfer::{Item, Load, Piece, Run};
use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, Copy, Fill, Pattern, Place, StreamHandle, invalid};

use super::copy_memory::copy_memory;
use super::engine::Engine;
use super::host_end::pointer;
use super::job::{HostEnd, Part};
use super::state::Task;
use crate::pinned::PinnedArray;
use crate::{Error, Result};

/// The shortest run of zeros that is filled in on the device. Long, since each run is a call of the device; which length
/// is best was not measured.
const ZEROS: usize = 256 << 10;

/// Consecutive bytes of a slot that are one copy, or one fill, on the device.
struct Wire {
    offset: u64,
    device: u64,
    size: u64,
    is_zero: bool,
}

impl Engine {
    /// Fills the slot with a part, and enqueues its copy to the device. Returns how many of its bytes were zero and not
    /// copied.
    ///
    /// # Safety
    ///
    /// * The host's side is readable, and the device's side is memory of the device, until the work on the stream of the
    ///   task that was enqueued by this call is done.
    pub(super) unsafe fn send(&self, task: &Task, slot: &mut PinnedArray<u8>) -> Result<u64> {
        let (start, past_caches) = (slot.address().get(), self.options.past_caches);
        // Waits until the device has read what was in the slot before.
        let bytes = slot.host_mut()?;
        let outcome = match &task.part {
            Part::Rows(piece) if piece.rows > 1 => {
                // SAFETY: as the caller promised.
                unsafe { gather_rows(piece, bytes, past_caches) };
                let to = Place::Device(Address::new(piece.to.start));
                let packed = (Place::Host(Address::new(start)), Bytes::new(piece.width));
                self.copy_rows((to, Bytes::new(piece.to.row)), packed, piece, task.stream)
                    .map(|()| 0)
            }
            Part::Rows(piece) => {
                // SAFETY: as the caller promised.
                let wires = unsafe { self.stage(piece, &task.host, bytes) }?;
                self.send_wires(start, &wires, task.stream)
            }
            Part::Load(items, load) => {
                for (item, range) in items_of(items, load) {
                    let Some(room) = bytes.get_mut(range) else { continue };
                    // SAFETY: as the caller promised; a slot is not the program's.
                    unsafe { copy_in(item.host, room, past_caches) };
                }
                let wire = |run: &Run| Wire {
                    offset: run.offset,
                    device: run.device,
                    size: run.size,
                    is_zero: false,
                };
                let wires: Vec<Wire> = load.runs.iter().map(wire).collect();
                self.send_wires(start, &wires, task.stream)
            }
        };
        // Also after a failure, since a part of the copies may have been enqueued.
        let noted = slot.read_on(task.stream);
        let zeros = outcome?;
        noted.map(|()| zeros)
    }

    /// Brings a row into the slot, except for long runs of zeros.
    ///
    /// # Safety
    ///
    /// * The host's side is readable.
    unsafe fn stage(&self, piece: &Piece, host: &HostEnd, bytes: &mut [u8]) -> Result<Vec<Wire>> {
        let size = usize::try_from(piece.width).unwrap_or(usize::MAX);
        let past_caches = self.options.past_caches;
        let whole =
            |is_zero| Wire { offset: 0, device: piece.to.start, size: piece.width, is_zero };
        let Some(bytes) = bytes.get_mut(..size) else { return Err(too_large(piece.width)) };
        if let HostEnd::File(file) = host {
            read_at(file, bytes, piece.from.start)?;
            return Ok(vec![whole(false)]);
        }
        if !self.options.fill_zeros || size < ZEROS {
            // SAFETY: as the caller promised; a slot is not the program's.
            unsafe { copy_in(piece.from.start, bytes, past_caches) };
            return Ok(vec![whole(false)]);
        }
        let mut wires: Vec<Wire> = Vec::new();
        let (mut offset, mut address) = (0_u64, piece.from.start);
        for block in bytes.chunks_mut(ZEROS) {
            // SAFETY: readable, as the caller promised, and nobody writes to it meanwhile.
            let from = unsafe { slice::from_raw_parts(pointer(address).cast_const(), block.len()) };
            let is_zero = block.len() == ZEROS && is_zero(from);
            if !is_zero {
                // SAFETY: two slices of one length; a slot is not the program's.
                unsafe { copy_in(address, block, past_caches) };
            }
            let size = block.len() as u64;
            match wires.last_mut() {
                Some(last) if last.is_zero == is_zero => last.size += size,
                _ => wires.push(Wire { offset, device: piece.to.start + offset, size, is_zero }),
            }
            offset += size;
            address += size;
        }
        Ok(wires)
    }

    /// Enqueues copies from a slot, and fills. Returns how many bytes were filled.
    fn send_wires(&self, slot: u64, wires: &[Wire], stream: StreamHandle) -> Result<u64> {
        let (mut zeros, mut copies) = (0, Vec::with_capacity(wires.len()));
        for wire in wires {
            let (to, size) = (Address::new(wire.device), Bytes::new(wire.size));
            if wire.is_zero {
                let fill = Fill::linear(to, size, Pattern::U8(0))?;
                // SAFETY: memory of the device, as the caller of `send` promised.
                unsafe { self.device.fill(&fill, stream) }?;
                zeros += wire.size;
            } else {
                let from = Place::Host(Address::new(slot + wire.offset));
                copies.push(Copy::linear(Place::Device(to), from, size)?);
            }
        }
        self.copy_all(&copies, stream)?;
        Ok(zeros)
    }

    fn copy_all(&self, copies: &[Copy], stream: StreamHandle) -> Result<()> {
        // SAFETY: as for `copy`, also if it fails: the slot notes the work of the stream then, too.
        Ok(unsafe { self.device.copy_all(copies, stream) }?)
    }

    fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        // SAFETY: the device's side is as the caller of `send` or `fetch` promised. The host's side is a slot, which
        // notes the work on the stream afterwards and is neither used nor freed before that is done.
        Ok(unsafe { self.device.copy(copy, stream) }?)
    }

    fn copy_rows(
        &self,
        to: (Place, Bytes),
        from: (Place, Bytes),
        piece: &Piece,
        stream: StreamHandle,
    ) -> Result<()> {
        let extent = (Bytes::new(piece.width), piece.rows);
        self.copy(&Copy::planes(to.0, to.1, from.0, from.1, extent)?, stream)
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
        let packed = |offset: u64| Place::Host(Address::new(start + offset));
        let device = |address: u64| Place::Device(Address::new(address));
        let outcome = match &task.part {
            Part::Rows(piece) => self.copy_rows(
                (packed(0), Bytes::new(piece.width)),
                (device(piece.from.start), Bytes::new(piece.from.row)),
                piece,
                task.stream,
            ),
            Part::Load(_, load) => {
                let copy = |run: &Run| {
                    Copy::linear(packed(run.offset), device(run.device), Bytes::new(run.size))
                };
                let copies: hal::Result<Vec<Copy>> = load.runs.iter().map(copy).collect();
                copies.map_err(Error::from).and_then(|copies| self.copy_all(&copies, task.stream))
            }
        };
        // Also after a failure, since a part of the copies may have been enqueued.
        let noted = slot.written_on(task.stream);
        outcome.and(noted)
    }

    /// Waits for the copy into the slot, and empties it.
    ///
    /// # Safety
    ///
    /// * The host's side is writable, or readable if it is compared, and used by nobody else.
    pub(super) unsafe fn land(&self, task: &Task, slot: &PinnedArray<u8>) -> Result<()> {
        let (bytes, past_caches) = (slot.host()?, self.options.past_caches);
        match &task.part {
            Part::Rows(piece) => {
                let size = usize::try_from(piece.bytes().get()).unwrap_or(usize::MAX);
                let Some(bytes) = bytes.get(..size) else {
                    return Err(too_large(piece.bytes().get()));
                };
                if let HostEnd::File(file) = &task.host {
                    return write_at(file, bytes, piece.to.start);
                }
                let width = usize::try_from(piece.width).unwrap_or(usize::MAX).max(1);
                for (row, from) in (0..piece.rows).zip(bytes.chunks_exact(width)) {
                    let to = piece.to.on(row, 0).start;
                    // SAFETY: as the caller promised; a slot is not the program's.
                    unsafe { land_row(from, to, &task.host, past_caches) }?;
                }
            }
            Part::Load(items, load) => {
                for (item, range) in items_of(items, load) {
                    let Some(from) = bytes.get(range) else { continue };
                    // SAFETY: as the caller promised; a slot is not the program's.
                    unsafe { land_row(from, item.host, &task.host, past_caches) }?;
                }
            }
        }
        Ok(())
    }
}

/// The items of a load, cut to what is in it, and where each is in the slot.
fn items_of<'a>(
    items: &'a [Item],
    load: &Load,
) -> impl Iterator<Item = (Item, Range<usize>)> + use<'a> {
    let (mut skip, mut offset, end) = (load.skip, 0, load.size);
    let items = items.get(load.items.clone()).unwrap_or_default();
    items.iter().map(move |item| {
        let (host, size) = (item.host + skip, (item.size - skip).min(end - offset));
        let range = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let place = range(offset)..range(offset + size);
        (skip, offset) = (0, offset + size);
        (Item { host, size, ..*item }, place)
    })
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
/// * As many bytes are at `to`, used by nobody else, and not in `bytes`: writable, or readable if they are compared.
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

/// Whether all bytes are zero.
fn is_zero(bytes: &[u8]) -> bool {
    // Wide enough for the compiler to use vectors, short enough to end soon.
    bytes.chunks(1024).all(|chunk| chunk.iter().fold(0, |all, byte| all | byte) == 0)
}

fn too_large(size: u64) -> Error {
    invalid(Call::Copy, "part", format!("{size} B"), "no more than a slot holds").into()
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    let size = bytes.len();
    file.read_exact_at(bytes, offset).map_err(|error| file_error("reading", size, offset, &error))
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> Result<()> {
    use std::os::unix::fs::FileExt as _;
    file.write_all_at(bytes, offset)
        .map_err(|error| file_error("writing", bytes.len(), offset, &error))
}

#[cfg(not(unix))]
fn read_at(_: &File, bytes: &mut [u8], offset: u64) -> Result<()> {
    Err(file_error("reading", bytes.len(), offset, &std::io::ErrorKind::Unsupported.into()))
}

#[cfg(not(unix))]
fn write_at(_: &File, bytes: &[u8], offset: u64) -> Result<()> {
    Err(file_error("writing", bytes.len(), offset, &std::io::ErrorKind::Unsupported.into()))
}

/// The error of a file whose name is not known.
fn file_error(what: &str, size: usize, offset: u64, error: &std::io::Error) -> Error {
    let reason = format!("{what} {size} B at offset {offset}: {error}");
    Error::File { path: PathBuf::from("(open file)"), reason }
}
