//! Buffers: bytes with a replica on the host and one on a device, kept coherent.
//!
//! ```text
//!   memory    the manager: makes buffers, lists the live ones
//!   mod       a buffer's host memory (map, unmap, copies) and its device memory (on_device)
//! ```
//!
//! Mappings are counted, so that a call that conflicts with a live one is refused with [`forebay_status::Busy`]. One call
//! at a time uses a buffer; others wait.

pub mod memory;

use core::ffi::c_void;
use std::sync::Arc;

use forebay::StreamHandle;
use forebay::bindings::CountedBuffer;
use forebay::buffer::{Access, BufferState, Replica};

pub use self::memory::{forebay_buffer_manager, forebay_buffer_totals};
use crate::device::DeviceEntry;
use crate::error::status_of;
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::stream::{self, forebay_stream};
use crate::table::{self, entry};
use crate::text::{Out, array, check_array};
use crate::transfer::forebay_side;

/// A buffer. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_buffer {
    /// Not to be looked at.
    pub id: u64,
}

/// A view of a buffer's host memory. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_mapping {
    /// Not to be looked at.
    pub id: u64,
}

/// What an access does with the contents of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum forebay_access {
    /// Reads them.
    Read = 0,
    /// Reads and writes them.
    Update = 1,
    /// Writes all of them without reading any, so the old contents are not copied.
    Overwrite = 2,
}

/// Which replicas of a buffer are there, and which is newer.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum forebay_buffer_state {
    /// Nothing was written: all zero.
    Uninitialized = 0,
    /// There is host memory alone.
    HostOnly = 1,
    /// There is device memory alone.
    DeviceOnly = 2,
    /// Both are the same.
    Synchronized = 3,
    /// The host's is newer.
    HostDirty = 4,
    /// The device's is newer.
    DeviceDirty = 5,
    /// Each is newer in some range.
    Mixed = 6,
}

/// A buffer at one moment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_buffer_info {
    /// `sizeof(forebay_buffer_info)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// A `forebay_buffer_state`.
    pub state: u32,
    /// The number under which `forebay_live_buffers` lists it.
    pub number: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Live mappings.
    pub mappings: u64,
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes of device memory.
    pub device_bytes: u64,
    /// Copies from the device to the host.
    pub copies_to_host: u64,
    /// Their bytes.
    pub bytes_to_host: u64,
    /// Copies from the host to the device.
    pub copies_to_device: u64,
    /// Their bytes.
    pub bytes_to_device: u64,
}

versioned_struct!(forebay_buffer_info: 80);

/// The object of a buffer handle.
pub(crate) struct BufferEntry {
    buffer: CountedBuffer,
    device: Arc<DeviceEntry>,
}

impl BufferEntry {
    fn stream(&self, stream: forebay_stream) -> Result<StreamHandle, Failure> {
        stream::on_device(stream, &self.device)
    }
}

entry!(forebay_buffer: BufferEntry, Buffer);

/// What a `forebay_access` means.
fn access_of(access: u32) -> Result<Access, Failure> {
    match access {
        0 => Ok(Access::Read),
        1 => Ok(Access::Update),
        2 => Ok(Access::Overwrite),
        _ => Err(Failure::argument("access", access, "0 (read), 1 (update) or 2 (overwrite)")),
    }
}

fn replica_of(side: u32) -> Result<Replica, Failure> {
    let is_device = forebay_side::is_device("side", side)?;
    Ok(if is_device { Replica::Device } else { Replica::Host })
}

impl From<BufferState> for forebay_buffer_state {
    fn from(state: BufferState) -> Self {
        match state {
            BufferState::Uninitialized => Self::Uninitialized,
            BufferState::HostOnly => Self::HostOnly,
            BufferState::DeviceOnly => Self::DeviceOnly,
            BufferState::Synchronized => Self::Synchronized,
            BufferState::HostDirty => Self::HostDirty,
            BufferState::DeviceDirty => Self::DeviceDirty,
            _ => Self::Mixed,
        }
    }
}

/// Closes a buffer and frees its memory, after the work that uses it. Refused with `FOREBAY_STATUS_BUSY` while
/// it is mapped.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_close(buffer: forebay_buffer) -> forebay_status {
    status_of(|| {
        table::find(buffer)?.buffer.close()?;
        table::close(buffer).map(drop)
    })
}

/// Describes a buffer: size, state, memory, copies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_describe(
    buffer: forebay_buffer,
    info: *mut forebay_buffer_info,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(info, "info") };
    to.result(|| {
        let found = table::find(buffer)?.buffer.statistics()?;
        Ok(forebay_buffer_info {
            struct_size: 0,
            state: forebay_buffer_state::from(found.state) as u32,
            number: found.id,
            size_bytes: found.size.get(),
            mappings: found.views as u64,
            host_bytes: found.statistics.host_bytes,
            device_bytes: found.statistics.device_bytes,
            copies_to_host: found.statistics.to_host.copies,
            bytes_to_host: found.statistics.to_host.bytes,
            copies_to_device: found.statistics.to_device.copies,
            bytes_to_device: found.statistics.to_device.bytes,
        })
    })
}

/// Maps `size` bytes from `offset` on in host memory, for a `forebay_access`. Copies what the host lacks, and
/// waits for that. `memory` gets the address, which is valid until `forebay_buffer_unmap`; null on failure. Bytes
/// mapped for writing count as newer than the device's from now on.
///
/// Until it is unmapped, calls that conflict with it are refused with `FOREBAY_STATUS_BUSY`: writing the same
/// bytes on either side, and for a mapping to write also reading them; resizing, compacting, invalidating and
/// closing the buffer.
#[must_use = "there is no memory where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_map(
    buffer: forebay_buffer,
    offset: u64,
    size: u64,
    access: u32,
    mapping: *mut forebay_mapping,
    memory: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let (to, memory) = unsafe { (Out::new(mapping, "mapping"), Out::new(memory, "memory")) };
    memory.pointer(|| {
        let to = to.check()?;
        let view = table::find(buffer)?.buffer.map(offset, size, access_of(access)?)?;
        to.set(forebay_mapping { id: view.number });
        Ok(view.address)
    })
}

/// Ends a mapping. Its memory must not be used any more. Refused the second time.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_unmap(
    buffer: forebay_buffer,
    mapping: forebay_mapping,
) -> forebay_status {
    status_of(|| Ok(table::find(buffer)?.buffer.end_view(mapping.id)?))
}

/// The address of `size` bytes from `offset` on in device memory, for work on `stream` that does a
/// `forebay_access`. Copies what the device lacks, in the order of the stream; the stream waits for earlier use
/// on others. `memory` gets the address; null on failure, and where the buffer has no bytes. Enqueue the work before
/// the next call with this buffer: later work is not ordered with that call.
#[must_use = "there is no memory where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_on_device(
    buffer: forebay_buffer,
    offset: u64,
    size: u64,
    access: u32,
    stream: forebay_stream,
    memory: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(memory, "memory") };
    to.pointer(|| {
        let entry = table::find(buffer)?;
        let stream = entry.stream(stream)?;
        Ok(entry.buffer.on_device(offset, size, access_of(access)?, stream)?)
    })
}

/// Replaces `size` bytes from `offset` on by those at `from`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_copy_from(
    buffer: forebay_buffer,
    offset: u64,
    from: *const c_void,
    size: usize,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let from = unsafe { array(from.cast::<u8>(), size, "from") }?;
        Ok(table::find(buffer)?.buffer.write(offset, from)?)
    })
}

/// Copies `size` bytes from `offset` on to `to`, and waits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_copy_to(
    buffer: forebay_buffer,
    offset: u64,
    to: *mut c_void,
    size: usize,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(buffer)?;
        let is_there = check_array(to.cast::<u8>(), size, "to")?;
        Ok(entry.buffer.read(offset, size as u64, |from| {
            if is_there {
                // SAFETY: the caller promises that so many bytes can be written and nobody else uses them.
                unsafe { core::ptr::copy(from.as_ptr(), to.cast::<u8>(), from.len()) };
            }
        })?)
    })
}

/// Replaces all bytes of a buffer by those of `from`, a buffer of the same size, which may be of another device.
/// On one device they are copied there, on `stream`, where that is where they are; else through the host.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_copy(
    to: forebay_buffer,
    from: forebay_buffer,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let (entry, from) = (table::find(to)?, table::find(from)?);
        Ok(entry.buffer.copy_from(&from.buffer, entry.stream(stream)?)?)
    })
}

/// Fills `size` bytes from `offset` on with the low `width` bytes of `pattern`, repeated. `width` is 1, 2,
/// 4 or 8; offset and size must be multiples of it. Zeros cost nothing until they are needed.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_fill(
    buffer: forebay_buffer,
    offset: u64,
    size: u64,
    pattern: u64,
    width: u32,
) -> forebay_status {
    status_of(|| Ok(table::find(buffer)?.buffer.fill(offset, size, pattern, width)?))
}

/// Changes the size of a buffer. The first bytes stay, new ones are zero. The contents move to new host memory.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_resize(buffer: forebay_buffer, size: u64) -> forebay_status {
    status_of(|| Ok(table::find(buffer)?.buffer.resize(size, || ())?))
}

/// Makes both replicas current: the device's in the order of `stream`.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_synchronize(
    buffer: forebay_buffer,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(buffer)?;
        Ok(entry.buffer.synchronize(entry.stream(stream)?)?)
    })
}

/// Frees the memory of a replica, a `forebay_side`, after copying to the other what it alone had: to the device
/// on `stream`, and waited for. `freed`, where it is not null, gets how many bytes that was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_compact(
    buffer: forebay_buffer,
    side: u32,
    stream: forebay_stream,
    freed: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(freed) };
    to.result(|| {
        let entry = table::find(buffer)?;
        let bytes = entry.buffer.compact(replica_of(side)?, entry.stream(stream)?)?;
        Ok(bytes.get())
    })
}

/// Forgets what a replica, a `forebay_side`, has: it is copied from the other when it is needed next. What the other
/// has not is zero from now on. Does nothing where the device's memory is the host's own.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_invalidate(buffer: forebay_buffer, side: u32) -> forebay_status {
    status_of(|| Ok(table::find(buffer)?.buffer.invalidate(replica_of(side)?)?))
}
