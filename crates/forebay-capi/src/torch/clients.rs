//! The functions that CuPy, Numba and RMM call through the Python package: the pools of PyTorch, under a tag of
//! their own.

use core::ffi::{CStr, c_char, c_int, c_void};

use forebay::{Address, Bytes, Tag};

use super::{allocate, private};
use crate::device_pools;
use crate::error::{catch_panic, code_of, guarded};
use crate::text::write_optional;

/// A string argument.
///
/// # Safety
///
/// * `text` is null or ends with a zero byte.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller promised.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// At least `size` bytes of GPU `device` in the order of `stream`, as
/// [`forebay_torch_alloc`](super::forebay_torch_alloc), under the tag of that name where the thread is
/// under none. Null for the name: no tag.
///
/// # Safety
///
/// * As for [`forebay_torch_alloc`](super::forebay_torch_alloc); `tag` is null or text that ends with a
///   zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_face_alloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
    tag: *const c_char,
) -> *mut c_void {
    let tag = catch_panic(Tag::NONE, || {
        // SAFETY: as the caller promised.
        unsafe { text_of(tag) }.and_then(|name| Tag::named(&name)).unwrap_or(Tag::NONE)
    });
    // No machine has half of all addresses.
    allocate::allocate::<2>(isize::try_from(size).unwrap_or(isize::MAX), device, stream, tag)
}

/// Gives back a block of [`forebay_face_alloc`], in the order of `stream`. 0, or -1 with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error). Null is ignored.
///
/// # Safety
///
/// * As for [`forebay_torch_free`](super::forebay_torch_free).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_free(
    block: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    catch_panic(-1, || if allocate::free(block, device, stream) { 0 } else { -1 })
}

/// Notes that a block of GPU `device` is used on `stream` beside the one it will be freed on. 0, or -1
/// with the reason in [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * `stream` is a stream of that GPU as CUDA names it, and is not destroyed while the block is in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_record_use(
    block: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    guarded(-1, || {
        let address = Address::new(block.addr() as u64);
        let used = device_pools::pool_and_stream(device, stream.addr() as u64).and_then(
            |(pool, stream)| {
                match private::owner_of(address) {
                    Some(private) => private.record_use(address, stream),
                    None => pool.record_use(address, stream),
                }
                .map_err(|error| error.to_string())
            },
        );
        code_of(used)
    })
}

/// Says that a stream of GPU `device` will be destroyed. 0, or -1 with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * `stream` is still a stream of that GPU.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_forget_stream(device: c_int, stream: *mut c_void) -> c_int {
    guarded(-1, || code_of(device_pools::forget_stream(device, stream.addr() as u64)))
}

/// What is free and what there is of the memory of GPU `device`. 0, or -1 with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * `free` and `total` are null, or can be written to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_memory_info(
    device: c_int,
    free: *mut u64,
    total: *mut u64,
) -> c_int {
    guarded(-1, || {
        let found = device_pools::pool(device)
            .and_then(|pool| pool.device().memory_info().map_err(|error| error.to_string()));
        code_of(found.map(|info| {
            // SAFETY: as the caller promised.
            unsafe {
                write_optional(free, info.free.get());
                write_optional(total, info.total.get());
            }
        }))
    })
}

/// Puts settings, as `key:value,key:value`, above those of the environment for every pool of the process
/// that is made from now on, and changes them in those that are there: all of them, or none. 0, or -1 with
/// the reason in [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * `settings` is text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_configure(settings: *const c_char) -> c_int {
    guarded(-1, || {
        // SAFETY: as the caller promised.
        let text = unsafe { text_of(settings) };
        code_of(
            text.ok_or_else(|| "no settings were given".to_owned())
                .and_then(|text| device_pools::configure(&text)),
        )
    })
}

/// Reverts the last successful [`forebay_face_configure`], once: for an installation whose later step failed.
/// Does nothing where there is none. 0, or -1 with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_face_configure_undo() -> c_int {
    guarded(-1, || {
        device_pools::undo_configure();
        0
    })
}

/// Releases the free memory of GPU `device`'s pool, and waits for work that may still use it. 0, or -1 with the reason in [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_face_trim(device: c_int) -> c_int {
    guarded(-1, || {
        let released = private::release_unused();
        let trimmed = device_pools::pool(device)
            .and_then(|pool| pool.trim(Bytes::ZERO).map_err(|error| error.to_string()));
        code_of(released.and(trimmed).map(drop))
    })
}

/// Whether there is a pool of GPU `device` yet: 1, or 0. Asking makes none.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_face_has_pool(device: c_int) -> c_int {
    guarded(0, || c_int::from(device_pools::existing().any(|(number, _)| number == device)))
}
