//! Allocating and freeing for any client library, from the pool of the GPU or from a private pool.

use core::cell::Cell;
use core::ffi::{c_int, c_void};
use std::sync::OnceLock;

use forebay::{Address, Bytes, Error, Pool, StreamHandle, Tag};

use super::private::{self, Held};
use super::relaxed::RelaxedCapture;
use crate::error::{catch_panic, set_last_error};
use crate::status::Failure;
use crate::text::pointer;
use crate::{device_pools, fork, slow_path};

thread_local! {
    /// Whether this thread's last failed request failed for want of memory.
    static OUT_OF_MEMORY: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread's last failed request failed for want of memory.
pub(super) fn is_out_of_memory() -> bool {
    OUT_OF_MEMORY.try_with(Cell::get).unwrap_or(false)
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

    /// Creates the tag.
    #[cold]
    fn create_tag(&self) -> Tag {
        *self.tag.get_or_init(|| Tag::named(self.name))
    }
}

/// PyTorch.
pub(super) static TORCH: Client = Client::new("torch");

/// Allocates `size` bytes of GPU `device` in the order of `stream`, under `tag` unless the thread has a tag. Null
/// on failure, with the last error set, and where `size` is 0.
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
    catch_panic(core::ptr::null_mut(), || {
        if slow_path::forked() {
            return forked();
        }
        slow_path::enter_tag();
        let _relaxed = slow_path::capturing().then(RelaxedCapture::begin);
        from_device_pool(size, device, stream, tag)
    })
}

/// Allocates from a private pool; returns the block and the pool's key. Where that pool has not enough and no graph
/// is captured, the free memory of the GPU's own pool is released first.
pub(super) fn allocate_private(
    bytes: u64,
    device: c_int,
    stream: *mut c_void,
    held: Result<Held, Failure>,
    capturing: bool,
) -> (*mut c_void, u32) {
    let _relaxed = RelaxedCapture::begin();
    // The device must know the stream, whose handle is the same for both pools.
    let found = device_pools::pool_and_stream(device, stream.addr() as u64);
    let ((main, stream), held) = match found.and_then(|found| Ok((found, held?))) {
        Ok(found) => found,
        Err(reason) => return (fail(&reason), 0),
    };
    let pool = &held.pool;
    let (bytes, tag) = (Bytes::new(bytes), TORCH.tag());
    main.flush_large(stream);
    let got = match pool.allocate_for(bytes, stream, tag) {
        Err(Error::OutOfMemory(_)) if !capturing && main.trim(Bytes::ZERO).is_ok() => {
            pool.allocate_for(bytes, stream, tag)
        }
        got => got,
    };
    match got {
        Ok(block) => (pointer(block.address()), held.key),
        Err(error) => (fail_with(&error, device), 0),
    }
}

/// Frees a block in the order of `stream`; returns whether it did. Null is ignored. An address that is no live
/// block changes nothing and sets the last error.
#[inline(always)]
pub(super) fn free(block: *mut c_void, device: c_int, stream: *mut c_void) -> bool {
    if slow_path::forked() && !check_free(block) {
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

/// Whether a block may be freed in a forked child: null alone.
#[cold]
#[inline(never)]
pub(super) fn check_free(block: *mut c_void) -> bool {
    if !block.is_null() {
        forked();
    }
    block.is_null()
}

/// Frees a block that the GPU's own pool does not have, where a private pool has it.
#[cold]
#[inline(never)]
fn free_private(error: &Error, address: Address, stream: StreamHandle) -> bool {
    let owner = match error {
        Error::WrongPool { .. } => private::owner_of(address),
        _ => None,
    };
    match owner.map(|pool| pool.free(address, stream)) {
        Some(Ok(())) => return true,
        Some(Err(error)) => set_last_error(&error),
        None => set_last_error(error),
    }
    false
}

#[cold]
#[inline(never)]
fn fail_with(error: &Error, device: c_int) -> *mut c_void {
    let out_of_memory = matches!(error, Error::OutOfMemory(_));
    if out_of_memory {
        device_pools::count_out_of_memory(device);
    }
    let _ = OUT_OF_MEMORY.try_with(|last| last.set(out_of_memory));
    set_last_error(error);
    core::ptr::null_mut()
}

#[cold]
#[inline(never)]
fn fail(reason: &dyn core::fmt::Display) -> *mut c_void {
    let _ = OUT_OF_MEMORY.try_with(|last| last.set(false));
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

/// Allocates at least `size` bytes of GPU `device`, to be used in the order of `stream`, from the
/// process's pool. Null on failure, with the reason in `forebay_last_error`, and where `size` is 0.
///
/// # Safety
///
/// * `stream` is a stream of that GPU as CUDA names it, and is not destroyed while blocks allocated or
///   freed on it are in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_alloc(
    size: isize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    allocate::<0>(size, device, stream, TORCH.tag())
}

/// Frees a block of `forebay_torch_alloc`, in the order of `stream`. Null is ignored, and so is the size. An
/// address that is no live block changes nothing; the reason is in `forebay_last_error`.
///
/// # Safety
///
/// * As for `forebay_torch_alloc`; only work that was enqueued on `stream` before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_free(
    block: *mut c_void,
    _size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    catch_panic((), move || {
        free(block, device, stream);
    });
}
