//! Allocating and freeing for any client library: from the pool of the GPU, or from a private pool while a graph
//! is captured.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::sync::OnceLock;

use forebay::{Address, Bytes, Error, Pool, StreamHandle, Tag};

use super::exceptions::ExceptionKind;
use super::record::{self, EventKind};
use super::relaxed::RelaxedCapture;
use super::{captures, slow_path};
use crate::block::pointer;
use crate::error::{catch_panic, set_last_error};
use crate::{device_pools, fork};

thread_local! {
    /// Why this thread's last failed request failed.
    static LAST_FAILURE: Cell<ExceptionKind> = const { Cell::new(ExceptionKind::Error) };
}

/// Which exception this thread's last failed request becomes.
pub(super) fn last_failure() -> ExceptionKind {
    LAST_FAILURE.try_with(Cell::get).unwrap_or(ExceptionKind::Error)
}

/// A library that allocates. Its tag is the default for what it allocates.
#[derive(Debug)]
pub(super) struct Client {
    name: &'static str,
    tag: OnceLock<Tag>,
}

impl Client {
    pub(super) const fn new(name: &'static str) -> Self {
        Self { name, tag: OnceLock::new() }
    }

    #[inline(always)]
    pub(super) fn tag(&self) -> Tag {
        match self.tag.get() {
            Some(&tag) => tag,
            None => self.create_tag(),
        }
    }

    /// Creates the tag; no tag where the process has too many.
    #[cold]
    fn create_tag(&self) -> Tag {
        *self.tag.get_or_init(|| Tag::named(self.name).unwrap_or(Tag::NONE))
    }
}

/// Allocates `size` bytes of GPU `device` in the order of `stream`, under `tag` unless the thread has a tag. Null
/// on failure, with the last error set, and where `size` is 0. An exception of a capture's filter passes through.
///
/// Each entry point has a number, and so a copy of its own. A copy that two share is not inlined, and its stack
/// frame costs a seventh of a cached allocation.
#[inline(always)]
pub(super) fn allocate<const ENTRY: u8>(
    size: isize,
    device: c_int,
    stream: *mut c_void,
    tag: Tag,
) -> *mut c_void {
    if slow_path::any() {
        return allocate_slow_path(size, device, stream, tag);
    }
    catch_panic(core::ptr::null_mut(), move || {
        let number = stream.addr() as u64;
        match (device_pools::cached_pool(device, number), u64::try_from(size)) {
            (Some((pool, stream)), Ok(bytes)) => allocate_from(pool, bytes, stream, device, tag),
            _ => from_device_pool(size, device, stream, tag),
        }
    })
}

#[inline(always)]
fn allocate_from(
    pool: &Pool,
    bytes: u64,
    stream: StreamHandle,
    device: c_int,
    tag: Tag,
) -> *mut c_void {
    match pool.allocate_for(Bytes::new(bytes), stream, tag) {
        Ok(block) => pointer(block.address()),
        Err(error) => fail_with(&error, device),
    }
}

/// Allocates from the GPU's own pool.
#[cold]
#[inline(never)]
fn from_device_pool(size: isize, device: c_int, stream: *mut c_void, tag: Tag) -> *mut c_void {
    let Ok(bytes) = u64::try_from(size) else { return negative_size(size) };
    match device_pools::pool_and_stream(device, stream.addr() as u64) {
        Ok((pool, stream)) => allocate_from(pool, bytes, stream, device, tag),
        Err(reason) => fail(&reason),
    }
}

#[cold]
#[inline(never)]
fn allocate_slow_path(size: isize, device: c_int, stream: *mut c_void, tag: Tag) -> *mut c_void {
    if slow_path::forked() {
        return catch_panic(core::ptr::null_mut(), forked);
    }
    // Outside `catch_panic`: an exception of C++ is no panic.
    let route = captures::route(device, stream);
    let block = catch_panic(core::ptr::null_mut(), || {
        let _relaxed = RelaxedCapture::begin();
        let Some(private) = route else { return from_device_pool(size, device, stream, tag) };
        let Ok(bytes) = u64::try_from(size) else { return negative_size(size) };
        // The device must know the stream, whose handle is the same for both pools.
        let (pool, (_, stream)) =
            match (private, device_pools::pool_and_stream(device, stream.addr() as u64)) {
                (Ok(pool), Ok(known)) => (pool, known),
                (Err(reason), _) | (_, Err(reason)) => return fail(&reason),
            };
        allocate_from(&pool, bytes, stream, device, tag)
    });
    if slow_path::recording() && size > 0 {
        let (kind, address) = if block.is_null() {
            let info =
                device_pools::pool(device).ok().and_then(|pool| pool.device().memory_info().ok());
            (EventKind::Refused, info.map_or(0, |info| info.free.get()))
        } else {
            (EventKind::Allocated, block.addr() as u64)
        };
        record::push(device, kind, address, size.unsigned_abs() as u64, stream);
    }
    block
}

/// Frees a block in the order of `stream`; returns whether it did. Null is ignored. An address that is no live
/// block changes nothing and sets the last error.
#[inline(always)]
pub(super) fn free(block: *mut c_void, device: c_int, stream: *mut c_void) -> bool {
    if slow_path::any() && !check_free(block, device, stream) {
        return false;
    }
    let (address, number) = (Address::new(block.addr() as u64), stream.addr() as u64);
    match device_pools::cached_pool(device, number) {
        Some((pool, stream)) => free_to(pool, address, stream),
        None => free_uncached(address, device, number),
    }
}

#[inline(always)]
fn free_to(pool: &Pool, address: Address, stream: StreamHandle) -> bool {
    match pool.free(address, stream) {
        Ok(()) => true,
        Err(error) => free_private(&error, address, stream),
    }
}

/// Frees a block whose pool and stream this thread has not cached.
#[cold]
#[inline(never)]
fn free_uncached(address: Address, device: c_int, stream: u64) -> bool {
    match device_pools::pool_and_stream(device, stream) {
        Ok((pool, stream)) => free_to(pool, address, stream),
        Err(reason) => {
            set_last_error(&reason);
            false
        }
    }
}

/// Whether a block may be freed: not in a forked child. Records the free beforehand, since right after it another
/// block may have the address.
#[cold]
#[inline(never)]
fn check_free(block: *mut c_void, device: c_int, stream: *mut c_void) -> bool {
    let address = Address::new(block.addr() as u64);
    if slow_path::forked() {
        if !address.is_null() {
            forked();
        }
        return address.is_null();
    }
    if !slow_path::recording() || address.is_null() {
        return true;
    }
    let own = device_pools::pool(device).ok().and_then(|pool| pool.requested_at(address));
    let size = own.or_else(|| captures::owner_of(address)?.requested_at(address));
    if let Some(size) = size {
        record::push(device, EventKind::Freed, address.get(), size.get(), stream);
    }
    true
}

/// Frees a block that the GPU's own pool does not have, where a private pool has it.
#[cold]
#[inline(never)]
fn free_private(error: &Error, address: Address, stream: StreamHandle) -> bool {
    let freed = match error {
        Error::WrongPool { .. } => captures::free(address, stream),
        _ => None,
    };
    match freed {
        Some(Ok(())) => return true,
        Some(Err(error)) => set_last_error(&error),
        None => set_last_error(error),
    }
    false
}

#[cold]
#[inline(never)]
fn fail_with(error: &Error, device: c_int) -> *mut c_void {
    let kind = match error {
        Error::OutOfMemory(_) => ExceptionKind::OutOfMemory,
        _ => ExceptionKind::Error,
    };
    if kind == ExceptionKind::OutOfMemory {
        device_pools::count_out_of_memory(device);
    }
    let _ = LAST_FAILURE.try_with(|last| last.set(kind));
    set_last_error(error);
    core::ptr::null_mut()
}

#[cold]
#[inline(never)]
fn fail(reason: &dyn core::fmt::Display) -> *mut c_void {
    let _ = LAST_FAILURE.try_with(|last| last.set(ExceptionKind::Error));
    set_last_error(reason);
    core::ptr::null_mut()
}

/// Fails in a forked child.
#[cold]
#[inline(never)]
fn forked() -> *mut c_void {
    match fork::check() {
        Ok(()) => fail(&"the process was forked"),
        Err(failure) => fail(&failure),
    }
}

#[cold]
#[inline(never)]
fn negative_size(size: isize) -> *mut c_void {
    fail(&format_args!("{size} bytes cannot be allocated: 0 or more can"))
}
