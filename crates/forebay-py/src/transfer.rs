//! Copies and fills of buffers. They wait until they are done, unless told not to: an object that Python
//! passes may be freed right after the call.

use std::sync::Arc;

use forebay::bindings::host_vec;
use forebay::hal::{Call, Copy, Fill, Location, Pattern};
use forebay::{Address, Bytes, Span};

use crate::allocation::{Allocation, MemorySpace, Pin};
use crate::array_view::{ArrayView, Rows};
use crate::failure::Failure;
use crate::open_device::StreamRef;

/// A range of pinned memory: its first byte in the allocation, and its rows.
#[derive(Clone, Copy)]
pub(crate) struct MemoryRange<'a> {
    pub(crate) pin: &'a Pin,
    pub(crate) offset: u64,
    pub(crate) rows: Rows,
}

impl<'a> MemoryRange<'a> {
    /// The memory of an array.
    pub(crate) fn of(pin: &'a Pin, array: &ArrayView) -> Self {
        Self { pin, offset: array.offset(), rows: array.in_rows() }
    }

    /// `size` bytes of an array that is contiguous, from byte `offset` of it on.
    pub(crate) fn within(
        pin: &'a Pin,
        array: &ArrayView,
        (offset, size): (u64, u64),
    ) -> Result<Self, Failure> {
        array.contiguous()?;
        Ok(Self { pin, offset: array.span(offset, size)?, rows: Rows::linear(size) })
    }

    fn address(&self) -> Result<Address, Failure> {
        let start = self.pin.allocation().address();
        let address = start.checked_add(Bytes::new(self.offset));
        address.ok_or_else(|| Failure::invalid("the range ends past the last address"))
    }

    /// The range as one end of a device copy.
    fn copy_end(&self) -> Result<Location, Failure> {
        let address = self.address()?;
        Ok(match self.pin.allocation().space() {
            MemorySpace::Host => Location::Host(address),
            MemorySpace::HostDevice | MemorySpace::Device => Location::Device(address),
        })
    }

    /// From its first byte to its last.
    fn span(&self) -> Result<Span, Failure> {
        Ok(Span::new(self.address()?, Bytes::new(self.rows.extent()))?)
    }

    fn is_host_memory(&self) -> bool {
        self.pin.allocation().space() == MemorySpace::Host
    }

    /// Whether the host does a copy between this range and host memory itself: where both are plain host
    /// memory, or where they overlap, which no device copies. In the second case this waits for work that may
    /// still use the memory.
    fn is_host_copy(&self, other: HostPointer, stream_ref: &StreamRef) -> Result<bool, Failure> {
        if self.is_host_memory() {
            return Ok(true);
        }
        let other = Span::new(other.address, Bytes::new(self.rows.bytes()))?;
        if self.pin.allocation().space() != MemorySpace::HostDevice || !self.span()?.overlaps(other)
        {
            return Ok(false);
        }
        self.pin.allocation().stream_ref().synchronize()?;
        stream_ref.synchronize()?;
        Ok(true)
    }
}

/// A copy between two ends of as many bytes. Only rows of one length can be copied, so one side at least has no gaps, or both
/// have rows of the same length.
fn copy_of(
    (to, to_rows): (Location, Rows),
    (from, from_rows): (Location, Rows),
) -> Result<Copy, Failure> {
    if to_rows.is_linear() && from_rows.is_linear() {
        return Ok(Copy::linear(to, from, Bytes::new(to_rows.bytes()))?);
    }
    let (to_rows, from_rows) = (to_rows.cut_as(from_rows), from_rows.cut_as(to_rows));
    let extent = (Bytes::new(to_rows.width), to_rows.count);
    Ok(Copy::planes(to, Bytes::new(to_rows.pitch), from, Bytes::new(from_rows.pitch), extent)?)
}

/// Copies between rows of host memory, one after the other.
///
/// # Safety
///
/// * At the two addresses are those rows, valid to be written and read. Rows may overlap those of the other side only if all
///   are without gaps.
unsafe fn copy_rows(to: *mut u8, to_rows: Rows, from: *const u8, from_rows: Rows) {
    // What is in memory is not longer than its addresses.
    #[allow(clippy::cast_possible_truncation)]
    let place = |rows: Rows, row: u64| (rows.pitch * row) as usize;
    let (to_rows, from_rows) = (to_rows.cut_as(from_rows), from_rows.cut_as(to_rows));
    for row in 0..to_rows.count {
        // SAFETY: as the caller promised.
        unsafe {
            let (to, from) = (to.add(place(to_rows, row)), from.add(place(from_rows, row)));
            #[allow(clippy::cast_possible_truncation)]
            core::ptr::copy(from, to, to_rows.width as usize);
        }
    }
}

/// An address of host memory.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer {
    address: Address,
}

impl HostPointer {
    pub(crate) fn new(address: Address) -> Self {
        Self { address }
    }

    /// The address of a pointer.
    pub(crate) fn at(start: *mut u8) -> Self {
        Self { address: Address::new(start.addr() as u64) }
    }
}

/// An address of this process as a pointer.
pub(crate) fn pointer(address: Address) -> *mut u8 {
    // Addresses of this process fit its pointers. The provenance of memory from drivers and from Python was
    // exposed when they passed its address.
    #[allow(clippy::cast_possible_truncation)]
    core::ptr::with_exposed_provenance_mut(address.get() as usize)
}

/// Which way a copy goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the host to the device.
    Up,
    /// From the device to the host.
    Down,
}

impl Direction {
    /// The ends of a copy: where to, and where from.
    pub(crate) fn ends<T>(self, far: T, near: T) -> (T, T) {
        match self {
            Self::Up => (far, near),
            Self::Down => (near, far),
        }
    }
}

/// Copies between a range and host memory without gaps, and waits.
///
/// # Safety
///
/// * At `host` are as many bytes as the range has. Upwards nobody writes them meanwhile; downwards they can be written, and
///   nobody else uses them.
pub(crate) unsafe fn copy_host(
    direction: Direction,
    range: MemoryRange<'_>,
    host: HostPointer,
    stream_ref: &StreamRef,
) -> Result<(), Failure> {
    let size = range.rows.bytes();
    if size == 0 {
        return Ok(());
    }
    let near = Rows::linear(size);
    if range.is_host_copy(host, stream_ref)? {
        let host_span = Span::new(host.address, Bytes::new(size))?;
        if !range.rows.is_linear() && range.span()?.overlaps(host_span) {
            // SAFETY: as the caller promised; the copy in between overlaps neither side.
            return unsafe { copy_by_way(direction, range, host, stream_ref) };
        }
        let (far, host) = ((pointer(range.address()?), range.rows), (pointer(host.address), near));
        let ((to, to_rows), (from, from_rows)) = direction.ends(far, host);
        // SAFETY: the caller promises its side; the range lies within memory that the host can reach and that the caller
        // has pinned. The two overlap only where both are without gaps.
        unsafe { copy_rows(to, to_rows, from, from_rows) };
        return Ok(());
    }
    let far = (range.copy_end()?, range.rows);
    let (to, from) = direction.ends(far, (Location::Host(host.address), near));
    let copy = copy_of(to, from)?;
    // SAFETY: both ends stay valid until the copy is done, which `enqueue` waits for, and do not overlap.
    unsafe { enqueue(range.pin, &copy, stream_ref) }
}

/// As `copy_host`, through memory in between, for sides that overlap.
///
/// # Safety
///
/// * As for `copy_host`.
unsafe fn copy_by_way(
    direction: Direction,
    range: MemoryRange<'_>,
    host: HostPointer,
    stream_ref: &StreamRef,
) -> Result<(), Failure> {
    let length = usize::try_from(range.rows.bytes())?;
    let mut between = host_vec::zeroed(length, Call::Copy)?;
    let middle = HostPointer::at(between.as_mut_ptr());
    let linear = Rows::linear(range.rows.bytes());
    match direction {
        // SAFETY: the caller promises the host's side, and the vector is as long.
        Direction::Up => unsafe {
            copy_rows(between.as_mut_ptr(), linear, pointer(host.address), linear);
            copy_host(Direction::Up, range, middle, stream_ref)
        },
        // SAFETY: as above.
        Direction::Down => unsafe {
            copy_host(Direction::Down, range, middle, stream_ref)?;
            copy_rows(pointer(host.address), linear, between.as_ptr(), linear);
            Ok(())
        },
    }
}

/// Copies a range to another of the same size on the same device. Waits, unless told not to: then the use is recorded with
/// both, and the memory of either is used again only after the copy.
pub(crate) fn copy_between(
    from: MemoryRange<'_>,
    to: MemoryRange<'_>,
    stream_ref: &Arc<StreamRef>,
    wait: bool,
) -> Result<(), Failure> {
    if from.rows.bytes() == 0 {
        return Ok(());
    }
    let copy = copy_of((to.copy_end()?, to.rows), (from.copy_end()?, from.rows))?;
    let (from, to) = (from.pin.allocation(), to.pin.allocation());
    let device = to.device().opened()?;
    for allocation in [from, to] {
        if wait || allocation.space() != MemorySpace::Host {
            stream_ref.wait_for(&allocation.stream_ref())?;
        }
    }
    // SAFETY: both ranges are pinned until the copy is done, which the wait below ensures, or the use that is recorded.
    // `Copy::linear` refuses overlaps, and rows that could overlap are copied through the host by the caller.
    let copied = unsafe { device.copy(&copy, stream_ref.handle()) };
    if wait {
        copied?;
        return stream_ref.synchronize();
    }
    // Recorded where it failed too: a device that is lost may still use the memory.
    let recorded = (from.record_use(stream_ref), to.record_use(stream_ref));
    copied?;
    recorded.0.and(recorded.1)
}

/// Whether two ranges have bytes in common, so that no device copies one to the other. Rows that interleave count as such.
pub(crate) fn overlaps(one: MemoryRange<'_>, other: MemoryRange<'_>) -> Result<bool, Failure> {
    let [here, there] = [one, other].map(|range| range.pin.allocation());
    let is_device = |allocation: &Allocation| allocation.space() == MemorySpace::Device;
    let is_same = Arc::ptr_eq(here.device(), there.device());
    // Addresses of different memories say nothing of each other.
    let compare = is_device(here) == is_device(there) && (is_same || !is_device(here));
    Ok(compare && one.span()?.overlaps(other.span()?))
}

/// Copies a range to another of the same size through memory of the host, after the work on a stream of each, and waits.
pub(crate) fn copy_through_host(
    (from, from_stream): (MemoryRange<'_>, &StreamRef),
    (to, to_stream): (MemoryRange<'_>, &StreamRef),
) -> Result<(), Failure> {
    let length = usize::try_from(from.rows.bytes())?;
    let mut between = host_vec::zeroed(length, Call::Copy)?;
    let host = HostPointer::at(between.as_mut_ptr());
    for (range, stream_ref) in [(from, from_stream), (to, to_stream)] {
        stream_ref.wait_for(&range.pin.allocation().stream_ref())?;
        if range.is_host_memory() {
            stream_ref.synchronize()?;
        }
    }
    // SAFETY: the vector is as long as the ranges, and nobody else has it.
    unsafe {
        copy_host(Direction::Down, from, host, from_stream)?;
        copy_host(Direction::Up, to, host, to_stream)
    }
}

/// Copies a range to another of the same size on another device, through the host, after the work on a stream of each, and
/// waits.
pub(crate) fn copy_across(
    (from, from_stream): (MemoryRange<'_>, &StreamRef),
    (to, to_stream): (MemoryRange<'_>, &StreamRef),
) -> Result<(), Failure> {
    if from.rows.bytes() == 0 {
        return Ok(());
    }
    if !from.rows.is_linear() || !to.rows.is_linear() {
        return copy_through_host((from, from_stream), (to, to_stream));
    }
    for (range, stream_ref) in [(from, from_stream), (to, to_stream)] {
        stream_ref.wait_for(&range.pin.allocation().stream_ref())?;
        // Copies with host memory are in the order of the other stream alone.
        if range.is_host_memory() {
            stream_ref.synchronize()?;
        }
    }
    // SAFETY: the range is pinned until the copy is done. A thread that writes to it meanwhile gets a mixture of both, as
    // with any copy in Python. For both.
    unsafe {
        if from.is_host_memory() {
            let host = HostPointer { address: from.address()? };
            return copy_host(Direction::Up, to, host, to_stream);
        }
        if to.is_host_memory() {
            let host = HostPointer { address: to.address()? };
            return copy_host(Direction::Down, from, host, from_stream);
        }
    }
    let [here, there] = [from, to].map(|range| range.pin.allocation().device().transfers());
    let source = (from.address()?, from_stream.handle());
    let sink = (to.address()?, to_stream.handle());
    let size = Bytes::new(from.rows.bytes());
    // SAFETY: as above, and the ranges lie within memory of these devices.
    Ok(unsafe { here?.copy_between_raw(source, there?, sink, size) }?)
}

/// # Safety
///
/// * As `Transfers::copy` wants it, until this returns.
unsafe fn enqueue(pin: &Pin, copy: &Copy, stream_ref: &StreamRef) -> Result<(), Failure> {
    let device = pin.allocation().device().opened()?;
    stream_ref.wait_for(&pin.allocation().stream_ref())?;
    // SAFETY: as the caller promised.
    unsafe { device.copy(copy, stream_ref.handle()) }?;
    stream_ref.synchronize()
}

/// Fills a range with a pattern of 1, 2, 4, 8 or 16 bytes, in the order of a stream.
pub(crate) fn fill(
    range: MemoryRange<'_>,
    pattern: &[u8],
    stream_ref: &Arc<StreamRef>,
    wait: bool,
) -> Result<(), Failure> {
    let rows = range.rows;
    if rows.bytes() == 0 {
        return Ok(());
    }
    let allocation = range.pin.allocation();
    if range.is_host_memory() {
        return fill_on_host(range, pattern);
    }
    let device = allocation.device().opened()?;
    stream_ref.wait_for(&allocation.stream_ref())?;
    let start = range.address()?;
    let (width, pitch) = (Bytes::new(rows.width), Bytes::new(rows.pitch));
    let filled = if let Some(pattern) = short_pattern(pattern) {
        let fill = Fill::plane(start, pitch, (width, rows.count), pattern)?;
        // SAFETY: the range is pinned memory of the device. Later users wait for the fill: the host below, or, by
        // the recorded use, the next owner of the memory.
        unsafe { device.fill(&fill, stream_ref.handle()) }.map_err(Failure::from)
    } else {
        // SAFETY: as above.
        unsafe { fill_by_doubling(&**device, (start, rows), pattern, stream_ref) }
    };
    if wait {
        filled?;
        return stream_ref.synchronize();
    }
    let recorded = allocation.record_use(stream_ref);
    filled.and(recorded)
}

/// The pattern of a device's own fills; `None` for those of 8 bytes and more that do not repeat within four.
fn short_pattern(pattern: &[u8]) -> Option<Pattern> {
    let (first, rest) = pattern.split_first()?;
    if rest.iter().all(|byte| byte == first) {
        return Some(Pattern::U8(*first));
    }
    match pattern {
        &[a, b] => Some(Pattern::U16(u16::from_ne_bytes([a, b]))),
        _ => {
            let (words, rest) = pattern.as_chunks::<4>();
            let (first, others) = words.split_first()?;
            let repeats = rest.is_empty() && others.iter().all(|word| word == first);
            repeats.then(|| Pattern::U32(u32::from_ne_bytes(*first)))
        }
    }
}

/// Writes one pattern, word by word, and copies what is there until the first row is full, then the rows.
///
/// # Safety
///
/// * At the address are those rows of the device's memory, which stay until the work is done.
unsafe fn fill_by_doubling(
    device: &dyn forebay::Device,
    (start, rows): (Address, Rows),
    pattern: &[u8],
    stream_ref: &StreamRef,
) -> Result<(), Failure> {
    let at = |offset: u64| {
        let address = start.checked_add(Bytes::new(offset));
        address.ok_or_else(|| Failure::invalid("the range ends past the last address"))
    };
    let stream = stream_ref.handle();
    for (offset, word) in (0..).step_by(4).zip(pattern.as_chunks::<4>().0) {
        let fill =
            Fill::linear(at(offset)?, Bytes::new(4), Pattern::U32(u32::from_ne_bytes(*word)))?;
        // SAFETY: as the caller promised.
        unsafe { device.fill(&fill, stream) }?;
    }
    let mut done = pattern.len() as u64;
    while done < rows.width {
        let next = done.min(rows.width - done);
        let (to, from) = (Location::Device(at(done)?), Location::Device(start));
        // SAFETY: as the caller promised.
        unsafe { device.copy(&Copy::linear(to, from, Bytes::new(next))?, stream) }?;
        done += next;
    }
    let (width, pitch) = (Bytes::new(rows.width), Bytes::new(rows.pitch));
    let mut done = 1;
    while done < rows.count {
        let next = done.min(rows.count - done);
        let to = Location::Device(at(done * rows.pitch)?);
        let copy = Copy::planes(to, pitch, Location::Device(start), pitch, (width, next))?;
        // SAFETY: as the caller promised.
        unsafe { device.copy(&copy, stream) }?;
        done += next;
    }
    Ok(())
}

/// Fills host memory. Whoever has the range has waited for work that uses it.
fn fill_on_host(range: MemoryRange<'_>, pattern: &[u8]) -> Result<(), Failure> {
    let Rows { width, count, pitch } = range.rows;
    let (start, width) = (pointer(range.address()?), usize::try_from(width)?);
    for row in 0..count {
        let place = usize::try_from(row * pitch)?;
        // SAFETY: the range lies within host memory that the caller has pinned, and its rows are whole patterns.
        unsafe {
            let row = start.add(place);
            match pattern {
                [byte] => row.write_bytes(*byte, width),
                pattern => (0..width).step_by(pattern.len()).for_each(|at| {
                    core::ptr::copy_nonoverlapping(pattern.as_ptr(), row.add(at), pattern.len());
                }),
            }
        }
    }
    Ok(())
}
