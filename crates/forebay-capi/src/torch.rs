//! What PyTorch's pluggable allocator calls.
//!
//! ```python
//! alloc = torch.cuda.memory.CUDAPluggableAllocator(
//!     "libforebay_capi.so", "forebay_torch_alloc", "forebay_torch_free")
//! torch.cuda.memory.change_current_allocator(alloc)
//! ```

use core::ffi::{c_int, c_void};

use forebay::{Address, Bytes};

use crate::error::{contained, note};
use crate::pools;

/// At least `size` bytes of GPU `device`, to be used in the order of `stream`, from the pool of the
/// process. Null where there are none, with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error), and where `size` is 0.
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
    contained(core::ptr::null_mut(), || {
        let Ok(bytes) = u64::try_from(size) else {
            note(&format_args!("{size} bytes cannot be allocated: 0 or more can"));
            return core::ptr::null_mut();
        };
        match pools::at(device, stream.addr() as u64) {
            Ok((pool, stream)) => match pool.allocate(Bytes::new(bytes), stream) {
                Ok(block) => pointer(block.address()),
                Err(error) => refused(&error),
            },
            Err(error) => refused(&error),
        }
    })
}

/// Gives back a block of [`forebay_torch_alloc`], in the order of `stream`. Null is ignored, and so is
/// the size. What is no live block changes nothing; the reason is in
/// [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * As for [`forebay_torch_alloc`]; nothing but what was enqueued on `stream` before uses the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_free(
    block: *mut c_void,
    _size: isize,
    device: c_int,
    stream: *mut c_void,
) {
    contained((), || {
        let freed = pools::at(device, stream.addr() as u64).and_then(|(pool, stream)| {
            let address = Address::new(block.addr() as u64);
            pool.free(address, stream).map_err(|error| error.to_string())
        });
        if let Err(error) = freed {
            note(&error);
        }
    });
}

/// An address of the device as C has it. It is not followed here.
#[inline(always)]
fn pointer(address: Address) -> *mut c_void {
    // Addresses of a device of this process fit its pointers.
    #[allow(clippy::cast_possible_truncation)]
    core::ptr::without_provenance_mut(address.get() as usize)
}

#[cold]
#[inline(never)]
fn refused(error: &dyn core::fmt::Display) -> *mut c_void {
    note(error);
    core::ptr::null_mut()
}
