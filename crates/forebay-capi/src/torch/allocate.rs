//! The way of a request: from whichever library, to the pool of its GPU or to a private one.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::sync::OnceLock;

use forebay::{Address, Bytes, Error, Pool, StreamHandle, Tag};

use super::record::{self, Happened};
use super::relaxed::Relaxed;
use super::thrown::Kind;
use super::{captures, watch};
use crate::block::pointer;
use crate::error::{contained, note};
use crate::{fork, pools};

thread_local! {
    /// What the last refusal of this thread was for want of.
    static LAST: Cell<Kind> = const { Cell::new(Kind::Error) };
}

/// Whether the last request of this thread that was refused was for want of memory.
pub(super) fn last_refusal() -> Kind {
    LAST.try_with(Cell::get).unwrap_or(Kind::Error)
}

/// A library that allocates: its tag, which what it allocates has where the program has not said
/// another.
#[derive(Debug)]
pub(super) struct Face {
    name: &'static str,
    tag: OnceLock<Tag>,
}

impl Face {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, tag: OnceLock::new() }
    }

    #[inline(always)]
    pub(super) fn tag(&self) -> Tag {
        match self.tag.get() {
            Some(&tag) => tag,
            None => self.make(),
        }
    }

    /// Where there are too many tags already, none.
    #[cold]
    fn make(&self) -> Tag {
        *self.tag.get_or_init(|| Tag::named(self.name).unwrap_or(Tag::NONE))
    }
}

/// At least `size` bytes of GPU `device` in the order of `stream`, under `tag` where the thread is under
/// none; null where there are none, with the reason noted, and where `size` is 0. What the filter of a capture
/// throws goes through.
///
/// Each way in has a number of its own, and so a copy of its own: shared by two, the hit would be a
/// function apart, and its frame a seventh of all.
#[inline(always)]
pub(super) fn allocate<const WAY: u8>(
    size: isize,
    device: c_int,
    stream: *mut c_void,
    tag: Tag,
) -> *mut c_void {
    if watch::any() {
        return allocate_watched(size, device, stream, tag);
    }
    contained(core::ptr::null_mut(), move || {
        let number = stream.addr() as u64;
        match (pools::sure(device, number), u64::try_from(size)) {
            (Some((pool, stream)), Ok(bytes)) => from(pool, bytes, stream, device, tag),
            _ => from_own(size, device, stream, tag),
        }
    })
}

#[inline(always)]
fn from(pool: &Pool, bytes: u64, stream: StreamHandle, device: c_int, tag: Tag) -> *mut c_void {
    match pool.allocate_for(Bytes::new(bytes), stream, tag) {
        Ok(block) => pointer(block.address()),
        Err(error) => refused(&error, device),
    }
}

/// A block of the GPU's own pool.
#[cold]
#[inline(never)]
fn from_own(size: isize, device: c_int, stream: *mut c_void, tag: Tag) -> *mut c_void {
    let Ok(bytes) = u64::try_from(size) else { return not_a_size(size) };
    match pools::at(device, stream.addr() as u64) {
        Ok((pool, stream)) => from(pool, bytes, stream, device, tag),
        Err(reason) => cannot(&reason),
    }
}

#[cold]
#[inline(never)]
fn allocate_watched(size: isize, device: c_int, stream: *mut c_void, tag: Tag) -> *mut c_void {
    if watch::forked() {
        return contained(core::ptr::null_mut(), forked);
    }
    // Not where panics are stopped: what C++ throws is none.
    let route = captures::route(device, stream);
    let block = contained(core::ptr::null_mut(), || {
        let _relaxed = Relaxed::begin();
        let Some(private) = route else { return from_own(size, device, stream, tag) };
        let Ok(bytes) = u64::try_from(size) else { return not_a_size(size) };
        // The device has to know the stream; it is the same for both pools.
        let (pool, (_, stream)) = match (private, pools::at(device, stream.addr() as u64)) {
            (Ok(pool), Ok(known)) => (pool, known),
            (Err(reason), _) | (_, Err(reason)) => return cannot(&reason),
        };
        from(&pool, bytes, stream, device, tag)
    });
    if watch::recorded() && size > 0 {
        let (happened, address) = if block.is_null() {
            let info = pools::of(device).ok().and_then(|pool| pool.device().memory_info().ok());
            (Happened::Refused, info.map_or(0, |info| info.free.get()))
        } else {
            (Happened::Allocated, block.addr() as u64)
        };
        record::note(device, happened, address, size.unsigned_abs() as u64, stream);
    }
    block
}

/// Gives back a block in the order of `stream`; says whether it did. Null is ignored. What is no live
/// block changes nothing, and the reason is noted.
#[inline(always)]
pub(super) fn free(block: *mut c_void, device: c_int, stream: *mut c_void) -> bool {
    if watch::any() && !is_free_to_go(block, device, stream) {
        return false;
    }
    let (address, number) = (Address::new(block.addr() as u64), stream.addr() as u64);
    match pools::sure(device, number) {
        Some((pool, stream)) => match pool.free(address, stream) {
            Ok(()) => true,
            Err(error) => free_elsewhere(&error, address, stream),
        },
        None => free_surely(address, device, number),
    }
}

/// The same, once it is clear which stream it is.
#[cold]
#[inline(never)]
fn free_surely(address: Address, device: c_int, stream: u64) -> bool {
    match pools::at(device, stream) {
        Ok((pool, stream)) => match pool.free(address, stream) {
            Ok(()) => true,
            Err(error) => free_elsewhere(&error, address, stream),
        },
        Err(reason) => {
            note(&reason);
            false
        }
    }
}

/// Whether a block may be freed: not in a forked child. Where such is recorded, it is noted here: before
/// it is done, as the next moment it may be another's.
#[cold]
#[inline(never)]
fn is_free_to_go(block: *mut c_void, device: c_int, stream: *mut c_void) -> bool {
    let address = Address::new(block.addr() as u64);
    if watch::forked() {
        if !address.is_null() {
            forked();
        }
        return address.is_null();
    }
    if !watch::recorded() || address.is_null() {
        return true;
    }
    let own = pools::of(device).ok().and_then(|pool| pool.requested_at(address));
    let size = own.or_else(|| captures::owner(address)?.requested_at(address));
    if let Some(size) = size {
        record::note(device, Happened::Freed, address.get(), size.get(), stream);
    }
    true
}

/// Frees a block that the GPU's own pool does not have: one of a private pool.
#[cold]
#[inline(never)]
fn free_elsewhere(error: &Error, address: Address, stream: StreamHandle) -> bool {
    let freed = match error {
        Error::WrongPool { .. } => captures::free(address, stream),
        _ => None,
    };
    match freed {
        Some(Ok(())) => return true,
        Some(Err(error)) => note(&error),
        None => note(error),
    }
    false
}

#[cold]
#[inline(never)]
fn refused(error: &Error, device: c_int) -> *mut c_void {
    let kind = match error {
        Error::OutOfMemory(_) => Kind::OutOfMemory,
        _ => Kind::Error,
    };
    if kind == Kind::OutOfMemory {
        pools::count_refusal(device);
    }
    let _ = LAST.try_with(|last| last.set(kind));
    note(error);
    core::ptr::null_mut()
}

#[cold]
#[inline(never)]
fn cannot(reason: &dyn core::fmt::Display) -> *mut c_void {
    let _ = LAST.try_with(|last| last.set(Kind::Error));
    note(reason);
    core::ptr::null_mut()
}

/// Nothing, in a forked child.
#[cold]
#[inline(never)]
fn forked() -> *mut c_void {
    match fork::refuse() {
        Ok(()) => cannot(&"the process was forked"),
        Err(failure) => cannot(&failure),
    }
}

#[cold]
#[inline(never)]
fn not_a_size(size: isize) -> *mut c_void {
    cannot(&format_args!("{size} bytes cannot be allocated: 0 or more can"))
}
