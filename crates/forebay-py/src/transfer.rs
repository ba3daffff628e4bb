//! Copies and fills of buffers. All of them wait until they are done, unless told not to: what Python
//! hands over may go right after the call.

use std::sync::Arc;

use forebay::hal::{Copy, Fill, Pattern, Place};
use forebay::{Address, Bytes, Span};

use crate::lot::{Pin, Reach};
use crate::refusal::Refusal;
use crate::stream::Course;

/// A part of memory that is in use: from which byte of it, and how many.
#[derive(Clone, Copy)]
pub(crate) struct Part<'a> {
    pub(crate) pin: &'a Pin,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

impl Part<'_> {
    fn address(&self) -> Result<Address, Refusal> {
        let start = self.pin.lot().address();
        let address = start.checked_add(Bytes::new(self.offset));
        address.ok_or_else(|| Refusal::invalid("the part ends past the last address"))
    }

    /// The end of a copy that it is.
    fn place(&self) -> Result<Place, Refusal> {
        let address = self.address()?;
        Ok(match self.pin.lot().reach() {
            Reach::Host => Place::Host(address),
            Reach::Both | Reach::Device => Place::Device(address),
        })
    }

    fn is_plain(&self) -> bool {
        self.pin.lot().reach() == Reach::Host
    }

    /// Whether a copy between this and as much of the host is the host's own to do: where both are plain
    /// memory of the host, and where they share bytes, which no device copies. Work that may still use the
    /// memory is waited for then.
    fn is_hosts_own(&self, other: HostPart, course: &Course) -> Result<bool, Refusal> {
        if self.is_plain() {
            return Ok(true);
        }
        let size = Bytes::new(self.size);
        let spans = Span::new(self.address()?, size)?.overlaps(Span::new(other.address, size)?);
        if self.pin.lot().reach() != Reach::Both || !spans {
            return Ok(false);
        }
        self.pin.lot().course().synchronize()?;
        course.synchronize()?;
        Ok(true)
    }
}

/// An address of the host.
#[derive(Clone, Copy)]
pub(crate) struct HostPart {
    address: Address,
}

impl HostPart {
    /// The place a pointer of the host names.
    pub(crate) fn at(start: *mut u8) -> Self {
        Self { address: Address::new(start.addr() as u64) }
    }

    fn pointer(self) -> *mut u8 {
        pointer(self.address)
    }
}

/// An address of this process as a pointer.
pub(crate) fn pointer(address: Address) -> *mut u8 {
    // Addresses of this process fit its pointers. Memory of drivers and of Python was shown by its address
    // when it was handed over.
    #[allow(clippy::cast_possible_truncation)]
    core::ptr::with_exposed_provenance_mut(address.get() as usize)
}

/// Copies bytes of the host into a part, and waits for it.
///
/// # Safety
///
/// * From `from` on as many bytes as the part has can be read, and nobody writes them meanwhile.
pub(crate) unsafe fn write(part: Part<'_>, from: HostPart, course: &Course) -> Result<(), Refusal> {
    if part.size == 0 {
        return Ok(());
    }
    if part.is_hosts_own(from, course)? {
        // SAFETY: the caller's promise on the one side; on the other the part lies within memory that the
        // host can reach and whoever calls has in use. They may be the same memory.
        unsafe { core::ptr::copy(from.pointer(), pointer(part.address()?), length(part.size)?) };
        return Ok(());
    }
    let copy = Copy::linear(part.place()?, Place::Host(from.address), Bytes::new(part.size))?;
    // SAFETY: both ends are valid until the copy is done, which is waited for, and share no bytes.
    unsafe { enqueue(part.pin, &copy, course) }
}

/// Copies a part to the host, and waits for it.
///
/// # Safety
///
/// * From `to` on as many bytes as the part has can be written, and nobody else uses them meanwhile.
pub(crate) unsafe fn read(part: Part<'_>, to: HostPart, course: &Course) -> Result<(), Refusal> {
    if part.size == 0 {
        return Ok(());
    }
    if part.is_hosts_own(to, course)? {
        // SAFETY: as in `write`, the other way round.
        unsafe { core::ptr::copy(pointer(part.address()?), to.pointer(), length(part.size)?) };
        return Ok(());
    }
    let copy = Copy::linear(Place::Host(to.address), part.place()?, Bytes::new(part.size))?;
    // SAFETY: as in `write`.
    unsafe { enqueue(part.pin, &copy, course) }
}

/// Copies a part to another of the same size on the same device, and waits for it.
pub(crate) fn between(from: Part<'_>, to: Part<'_>, course: &Course) -> Result<(), Refusal> {
    if from.size == 0 {
        return Ok(());
    }
    let copy = Copy::linear(to.place()?, from.place()?, Bytes::new(from.size))?;
    from.pin.lot().course().lead(course)?;
    // SAFETY: both parts are in use until the copy is done, which is waited for, and overlaps are refused.
    unsafe { enqueue(to.pin, &copy, course) }
}

/// # Safety
///
/// * As `Transfers::copy` wants it, until this returns.
unsafe fn enqueue(pin: &Pin, copy: &Copy, course: &Course) -> Result<(), Refusal> {
    let device = pin.lot().site().device()?;
    pin.lot().course().lead(course)?;
    // SAFETY: as the caller promised.
    unsafe { device.copy(copy, course.handle()) }?;
    course.synchronize()
}

/// Fills a part with a byte, in the order of a stream.
pub(crate) fn fill(
    part: Part<'_>,
    value: u8,
    course: &Arc<Course>,
    wait: bool,
) -> Result<(), Refusal> {
    if part.size == 0 {
        return Ok(());
    }
    let lot = part.pin.lot();
    if part.is_plain() {
        // SAFETY: the part lies within memory of the host that is in use by the caller.
        unsafe { pointer(part.address()?).write_bytes(value, length(part.size)?) };
        return Ok(());
    }
    let fill = Fill::linear(part.address()?, Bytes::new(part.size), Pattern::U8(value))?;
    lot.course().lead(course)?;
    // SAFETY: the part is memory of the device, and in use. What comes after it waits for it: the host here,
    // or whatever uses the memory next, by what is noted below.
    unsafe { lot.site().device()?.fill(&fill, course.handle()) }?;
    if wait { course.synchronize() } else { lot.used_on(course) }
}

fn length(size: u64) -> Result<usize, Refusal> {
    usize::try_from(size).map_err(|error| Refusal::invalid(error.to_string()))
}
