//! Copies and fills of buffers. They wait until they are done, unless told not to: an object that Python
//! passes may be freed right after the call.

use std::sync::Arc;

use forebay::hal::{Copy, Fill, Location, Pattern};
use forebay::{Address, Bytes, Span};

use crate::allocation::{MemorySpace, Pin};
use crate::failure::Failure;
use crate::open_device::StreamRef;

/// A range of pinned memory: its first byte in the allocation, and its size.
#[derive(Clone, Copy)]
pub(crate) struct MemoryRange<'a> {
    pub(crate) pin: &'a Pin,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl MemoryRange<'_> {
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
        let size = Bytes::new(self.size);
        let spans = Span::new(self.address()?, size)?.overlaps(Span::new(other.address, size)?);
        if self.pin.allocation().space() != MemorySpace::HostDevice || !spans {
            return Ok(false);
        }
        self.pin.allocation().stream_ref().synchronize()?;
        stream_ref.synchronize()?;
        Ok(true)
    }
}

/// An address of host memory.
#[derive(Clone, Copy)]
pub(crate) struct HostPointer {
    address: Address,
}

impl HostPointer {
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

/// Copies between a range and host memory, and waits.
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
    if range.size == 0 {
        return Ok(());
    }
    if range.is_host_copy(host, stream_ref)? {
        let (to, from) = direction.ends(pointer(range.address()?), pointer(host.address));
        // SAFETY: the caller promises its side; the range lies within memory that the host can reach and that the caller
        // has pinned. The two may overlap.
        unsafe { core::ptr::copy(from, to, usize::try_from(range.size)?) };
        return Ok(());
    }
    let (to, from) = direction.ends(range.copy_end()?, Location::Host(host.address));
    let copy = Copy::linear(to, from, Bytes::new(range.size))?;
    // SAFETY: both ends stay valid until the copy is done, which `enqueue` waits for, and do not overlap.
    unsafe { enqueue(range.pin, &copy, stream_ref) }
}

/// Copies a range to another of the same size on the same device, and waits.
pub(crate) fn copy_between(
    from: MemoryRange<'_>,
    to: MemoryRange<'_>,
    stream_ref: &StreamRef,
) -> Result<(), Failure> {
    if from.size == 0 {
        return Ok(());
    }
    let copy = Copy::linear(to.copy_end()?, from.copy_end()?, Bytes::new(from.size))?;
    stream_ref.wait_for(&from.pin.allocation().stream_ref())?;
    // SAFETY: both ranges are pinned until the copy is done, which `enqueue` waits for, and `Copy::linear`
    // refuses overlaps.
    unsafe { enqueue(to.pin, &copy, stream_ref) }
}

/// Copies a range to another of the same size on another device, through the host, after the work on a stream of each, and
/// waits.
pub(crate) fn copy_across(
    (from, from_stream): (MemoryRange<'_>, &StreamRef),
    (to, to_stream): (MemoryRange<'_>, &StreamRef),
) -> Result<(), Failure> {
    if from.size == 0 {
        return Ok(());
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
    // SAFETY: as above, and the ranges lie within memory of these devices.
    Ok(unsafe { here?.copy_between_raw(source, there?, sink, Bytes::new(from.size)) }?)
}

/// Copies a range to another of the same size on the same device, in the order of a stream, and does not wait. The use is
/// recorded with both: the memory of either is used again only after the copy.
pub(crate) fn enqueue_copy(
    from: MemoryRange<'_>,
    to: MemoryRange<'_>,
    stream_ref: &Arc<StreamRef>,
) -> Result<(), Failure> {
    if from.size == 0 {
        return Ok(());
    }
    let copy = Copy::linear(to.copy_end()?, from.copy_end()?, Bytes::new(from.size))?;
    let (from, to) = (from.pin.allocation(), to.pin.allocation());
    let device = to.device().opened()?;
    for allocation in [from, to].into_iter().filter(|one| one.space() != MemorySpace::Host) {
        stream_ref.wait_for(&allocation.stream_ref())?;
    }
    // SAFETY: both ranges are pinned, and the use that is recorded below keeps their memory until the copy is done.
    // `Copy::linear` refuses overlaps.
    let copied = unsafe { device.copy(&copy, stream_ref.handle()) };
    // Recorded where it failed too: a device that is lost may still use the memory.
    let recorded = (from.record_use(stream_ref), to.record_use(stream_ref));
    copied?;
    recorded.0.and(recorded.1)
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

/// Fills a range with a byte, in the order of a stream.
pub(crate) fn fill(
    range: MemoryRange<'_>,
    value: u8,
    stream_ref: &Arc<StreamRef>,
    wait: bool,
) -> Result<(), Failure> {
    if range.size == 0 {
        return Ok(());
    }
    let allocation = range.pin.allocation();
    if range.is_host_memory() {
        // SAFETY: the range lies within host memory that the caller has pinned.
        unsafe { pointer(range.address()?).write_bytes(value, usize::try_from(range.size)?) };
        return Ok(());
    }
    let fill = Fill::linear(range.address()?, Bytes::new(range.size), Pattern::U8(value))?;
    stream_ref.wait_for(&allocation.stream_ref())?;
    // SAFETY: the range is pinned memory of the device. Later users wait for the fill: the host below, or, by
    // the recorded use, the next owner of the memory.
    unsafe { allocation.device().opened()?.fill(&fill, stream_ref.handle()) }?;
    if wait { stream_ref.synchronize() } else { allocation.record_use(stream_ref) }
}
