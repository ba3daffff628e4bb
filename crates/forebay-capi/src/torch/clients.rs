//! The functions that CuPy, Numba and RMM call through the Python package: the pools of PyTorch, under a tag of
//! their own. Those that return a number return 0, or -1 with the reason in `forebay_last_error`.

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
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn forebay_face_alloc(
    size: usize,
    device: c_int,
    stream: *mut c_void,
    tag: *const c_char,
) -> *mut c_void {
    let tag = catch_panic(Tag::NONE, || {
        // SAFETY: as the caller promised.
        unsafe { text_of(tag) }.map_or(Tag::NONE, |name| Tag::named(&name))
    });
    // No machine has half of all addresses.
    allocate::allocate::<2>(isize::try_from(size).unwrap_or(isize::MAX), device, stream, tag)
}

/// Gives back a block of [`forebay_face_alloc`], in the order of `stream`. Null is ignored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_free(
    block: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    catch_panic(-1, || if allocate::free(block, device, stream) { 0 } else { -1 })
}

/// Notes that a block of GPU `device` is used on `stream` beside the one it will be freed on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_record_use(
    block: *mut c_void,
    device: c_int,
    stream: *mut c_void,
) -> c_int {
    code_of(|| {
        let address = Address::new(block.addr() as u64);
        let (pool, stream) = device_pools::pool_and_stream(device, stream.addr() as u64)?;
        let private = private::owner_of(address);
        Ok(private.as_ref().unwrap_or(pool).record_use(address, stream)?)
    })
}

/// Says that a stream of GPU `device` will be destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_forget_stream(device: c_int, stream: *mut c_void) -> c_int {
    code_of(|| device_pools::forget_stream(device, stream.addr() as u64))
}

/// What is free and what there is of the memory of GPU `device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_memory_info(
    device: c_int,
    free: *mut u64,
    total: *mut u64,
) -> c_int {
    code_of(|| {
        let info = device_pools::pool(device)?.device().memory_info()?;
        // SAFETY: as the caller promised.
        unsafe {
            write_optional(free, info.free.get());
            write_optional(total, info.total.get());
        }
        Ok(())
    })
}

/// Puts settings, as `key:value,key:value`, above those of the environment for every pool of the process
/// that is made from now on, and changes them in those that are there: all of them, or none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_face_configure(settings: *const c_char) -> c_int {
    code_of(|| {
        // SAFETY: as the caller promised.
        let text = unsafe { text_of(settings) };
        device_pools::configure(&text.ok_or("no settings were given")?)
    })
}

/// Reverts the last successful [`forebay_face_configure`], once: for an installation whose later step failed.
/// Does nothing where there is none.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_face_configure_undo() -> c_int {
    code_of(|| {
        device_pools::undo_configure();
        Ok(())
    })
}

/// Releases the free memory of GPU `device`'s pool, and waits for work that may still use it.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_face_trim(device: c_int) -> c_int {
    code_of(|| {
        let released = private::release_unused();
        device_pools::pool(device)?.trim(Bytes::ZERO)?;
        released.map(drop)
    })
}

/// Whether there is a pool of GPU `device` yet: 1, or 0. Asking makes none.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_face_has_pool(device: c_int) -> c_int {
    guarded(0, || c_int::from(device_pools::existing().any(|(number, _)| number == device)))
}
