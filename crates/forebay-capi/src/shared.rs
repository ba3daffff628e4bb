//! Shared buffers: bytes that several processes have at the same time, found by name.

use core::ffi::{c_char, c_void};
use core::time::Duration;
use std::sync::Arc;

use forebay::bindings::SharedBytes;
use forebay::buffer::BufferManager;
use forebay::named::SharedOptions;

use crate::buffer::forebay_buffer_manager;
use crate::error::status_of;
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::table::{self, entry};
use crate::text::{Out, array, check_array, fixed_c_string, read_str};

/// A shared buffer. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_shared {
    /// Not to be looked at.
    pub id: u64,
}

/// A shared buffer: what it is, and who created it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_shared_info {
    /// `sizeof(forebay_shared_info)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// The bytes of an element.
    pub element_bytes: u32,
    /// Its size.
    pub size_bytes: u64,
    /// The process that created it, which may have ended.
    pub creator_pid: u32,
    /// The user that created it.
    pub creator_uid: u32,
    /// The name.
    pub name: [c_char; 88],
    /// The name of the element type, cut where it does not fit.
    pub type_name: [c_char; 128],
}

versioned_struct!(forebay_shared_info: 240);

/// The object of a shared buffer's handle.
pub(crate) struct SharedEntry {
    buffer: SharedBytes,
}

entry!(forebay_shared: SharedEntry, Shared);

/// The type that a name of null means: plain bytes, Rust's `u8`.
const BYTES: &str = "u8";

/// Makes a handle of what `make` makes.
///
/// # Safety
///
/// * As for [`forebay_shared_create`].
unsafe fn enter(
    memory: forebay_buffer_manager,
    (name, type_name): (*const c_char, *const c_char),
    shared: *mut forebay_shared,
    make: impl FnOnce(&BufferManager, &str, &str) -> forebay::Result<SharedBytes>,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(shared, "shared") };
    to.result(|| {
        to.set(forebay_shared { id: 0 });
        // SAFETY: likewise.
        let name = unsafe { read_str(name, "name") }?;
        let type_name = if type_name.is_null() {
            BYTES
        } else {
            // SAFETY: likewise.
            unsafe { read_str(type_name, "type_name") }?
        };
        let entry = table::find(memory)?;
        let buffer = make(&entry.memory, name, type_name)?;
        table::open(Arc::new(SharedEntry { buffer }))
    })
}

/// Creates a shared buffer of `size` bytes, all zero, that other processes of this user open by its name: 1 to 80
/// characters of `A-Z a-z 0-9 . _ -`. The name lives as long as any process has the buffer. Refused with
/// `FOREBAY_STATUS_NAME_TAKEN` where one has it already. Linux only.
///
/// `type_name` is compared when the buffer is opened: one of `u8 i8 u16 i16 u32 i32 f32 u64 i64 f64`, of which `size`
/// is a multiple and which Rust and Python know as their own types, or any other name for the bytes of the program's own
/// structures. Put a version in it. Null is `u8`.
#[must_use = "there is no buffer where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_create(
    memory: forebay_buffer_manager,
    name: *const c_char,
    type_name: *const c_char,
    size: u64,
    shared: *mut forebay_shared,
) -> forebay_status {
    let make = |memory: &BufferManager, name: &str, type_name: &str| {
        SharedBytes::create(memory, &SharedOptions::new(), name, type_name, size)
    };
    // SAFETY: as the caller promises.
    unsafe { enter(memory, (name, type_name), shared, make) }
}

/// Opens a shared buffer that a process of this user has created. Refused with `FOREBAY_STATUS_NOT_FOUND` if no living
/// process has the name, `_WRONG_TYPE` if the elements are of another type, `_WRONG_DEVICE` if the memory is of another
/// kind of device, `_DENIED` if it belongs to another user, and `_TIMED_OUT` if no process that has it answers, for
/// instance because all of them are stopped.
#[must_use = "there is no buffer where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_open(
    memory: forebay_buffer_manager,
    name: *const c_char,
    type_name: *const c_char,
    shared: *mut forebay_shared,
) -> forebay_status {
    let make = |memory: &BufferManager, name: &str, type_name: &str| {
        SharedBytes::open(memory, &SharedOptions::new(), name, Some(type_name))
    };
    // SAFETY: as the caller promises.
    unsafe { enter(memory, (name, type_name), shared, make) }
}

/// Opens a shared buffer of exactly `size` bytes, or creates it where no process has the name. Refused with
/// `FOREBAY_STATUS_WRONG_SIZE` where it has another size, and as `forebay_shared_open` is.
#[must_use = "there is no buffer where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_create_or_open(
    memory: forebay_buffer_manager,
    name: *const c_char,
    type_name: *const c_char,
    size: u64,
    shared: *mut forebay_shared,
) -> forebay_status {
    let make = |memory: &BufferManager, name: &str, type_name: &str| {
        SharedBytes::create_or_open(memory, &SharedOptions::new(), name, type_name, size)
    };
    // SAFETY: as the caller promises.
    unsafe { enter(memory, (name, type_name), shared, make) }
}

/// Leaves a shared buffer: its address is invalid from now on. Releases its lock, if a thread of this process holds it by
/// this handle. The buffer stays while another process has it.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_shared_close(shared: forebay_shared) -> forebay_status {
    status_of(|| {
        // The handle first: a thread that gets the lock afterwards sees that it is closed, and gives it up.
        table::close(shared)?.buffer.abandon_lock();
        Ok(())
    })
}

/// Describes a shared buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_describe(
    shared: forebay_shared,
    info: *mut forebay_shared_info,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(info, "info") };
    to.result(|| {
        let entry = table::find(shared)?;
        let (buffer, creator) = (&entry.buffer, entry.buffer.creator());
        let (type_name, element) = buffer.element();
        Ok(forebay_shared_info {
            struct_size: 0,
            element_bytes: u32::try_from(element).unwrap_or(u32::MAX),
            size_bytes: buffer.size().get(),
            creator_pid: creator.pid,
            creator_uid: creator.uid,
            name: fixed_c_string(buffer.name()),
            type_name: fixed_c_string(type_name),
        })
    })
}

/// Copies `size` bytes from `offset` on to `to`. Other processes may write meanwhile: some bytes are old then and some new.
/// On the host, an aligned element of up to 8 bytes is always whole.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_read(
    shared: forebay_shared,
    offset: u64,
    to: *mut c_void,
    size: usize,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(shared)?;
        let to = to.cast::<u8>();
        if !check_array(to, size, "to")? {
            return Ok(entry.buffer.read(offset, &mut [])?);
        }
        // SAFETY: not null, no larger than memory can be; the caller promises that so many bytes can be written and nobody
        // else uses them.
        Ok(entry.buffer.read(offset, unsafe { core::slice::from_raw_parts_mut(to, size) })?)
    })
}

/// Copies `size` bytes at `from` to the shared buffer, from `offset` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_write(
    shared: forebay_shared,
    offset: u64,
    from: *const c_void,
    size: usize,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let from = unsafe { array(from.cast::<u8>(), size, "from") }?;
        Ok(table::find(shared)?.buffer.write(offset, from)?)
    })
}

/// The address of the bytes on the device, valid until the handle is closed. It is this process's own: other processes have
/// the memory at other addresses, and may write to it at any moment. `memory` gets the address; null on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_address(
    shared: forebay_shared,
    memory: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { Out::new(memory, "memory") }.pointer(|| Ok(table::find(shared)?.buffer.address()))
}

/// The address of the bytes in host memory, valid until the handle is closed: the same as that on the device. Refused with
/// `FOREBAY_STATUS_UNSUPPORTED` where the host cannot reach the device's memory. Other processes may write to it at any
/// moment: hold the lock as long as you use it, and see that all sides do. `memory` gets the address; null on failure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_shared_host_address(
    shared: forebay_shared,
    memory: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(memory, "memory") };
    to.pointer(|| {
        let entry = table::find(shared)?;
        if !entry.buffer.is_host() {
            let said = "the host cannot reach this shared memory; use forebay_shared_read and forebay_shared_write";
            return Err(Failure::new(forebay_status::Unsupported, said));
        }
        Ok(entry.buffer.address())
    })
}

/// Waits until nobody else holds the lock of the buffer, in any process, and takes it, until `forebay_shared_unlock` on the
/// same thread. It keeps apart those who take it, and nobody else. When the process that holds it ends, by kill -9 too, the
/// lock is free, and what it was writing may be half written.
///
/// Refused with `FOREBAY_STATUS_TIMED_OUT` where it took longer than `timeout_ms` milliseconds: 0 does not wait, a negative
/// number waits as long as it takes. Refused with `FOREBAY_STATUS_BUSY` where this thread holds it already.
#[must_use = "the lock is not held where this failed"]
#[unsafe(no_mangle)]
pub extern "C" fn forebay_shared_lock(shared: forebay_shared, timeout_ms: i64) -> forebay_status {
    status_of(|| {
        let entry = table::find(shared)?;
        let patience = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        if !entry.buffer.lock(patience)? {
            let name = entry.buffer.name();
            let said = format!("another holds the lock of {name:?} after {timeout_ms} ms");
            return Err(Failure::new(forebay_status::TimedOut, said));
        }
        // Closed meanwhile: nobody could unlock it.
        if let Err(closed) = table::find(shared) {
            entry.buffer.abandon_lock();
            return Err(closed);
        }
        Ok(())
    })
}

/// Releases the lock. Refused on a thread that does not hold it.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_shared_unlock(shared: forebay_shared) -> forebay_status {
    status_of(|| Ok(table::find(shared)?.buffer.unlock()?))
}
