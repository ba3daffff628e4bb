//! Managers of buffers.

use core::ffi::c_char;
use std::sync::Arc;

use forebay::bindings::CountedBuffer;
use forebay::buffer::{BufferManager, leaks};

use super::{BufferEntry, forebay_buffer};
use crate::device::{DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::pool::forebay_pool;
use crate::sized::{SizedOut, versioned_struct};
use crate::status::{Failure, forebay_status};
use crate::table::{self, entry};
use crate::text::Out;

/// A manager of buffers. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_buffer_manager {
    /// Not to be looked at.
    pub id: u64,
}

/// What the buffers of a manager add up to.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct forebay_buffer_totals {
    /// `sizeof(forebay_buffer_totals)`, set before the call; after it, how many bytes were filled.
    pub struct_size: u32,
    /// Zero.
    pub reserved: u32,
    /// Live buffers.
    pub buffers: u64,
    /// Buffers made so far.
    pub created: u64,
    /// Bytes of host memory.
    pub host_bytes: u64,
    /// Bytes of device memory.
    pub device_bytes: u64,
    /// Bytes of host memory of closed buffers that copies still use.
    pub parked_bytes: u64,
    /// Copies from the device to the host, those of closed buffers included.
    pub copies_to_host: u64,
    /// Their bytes.
    pub bytes_to_host: u64,
    /// Copies from the host to the device, those of closed buffers included.
    pub copies_to_device: u64,
    /// Their bytes.
    pub bytes_to_device: u64,
}

versioned_struct!(forebay_buffer_totals: 80);

/// The object of a manager's handle.
pub(crate) struct MemoryEntry {
    pub(crate) memory: BufferManager,
    device: Arc<DeviceEntry>,
}

entry!(forebay_buffer_manager: MemoryEntry, BufferManager);

fn open(
    memory: BufferManager,
    device: Arc<DeviceEntry>,
) -> Result<forebay_buffer_manager, Failure> {
    table::open(Arc::new(MemoryEntry { memory, device }))
}

/// Creates a manager of buffers on a device, with a pool of its own.
#[must_use = "there is no manager where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_manager_create(
    device: forebay_device,
    memory: *mut forebay_buffer_manager,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(memory, "memory") };
    to.result(|| {
        let device = table::find(device)?;
        open(BufferManager::new(device.device())?, device)
    })
}

/// Creates a manager of buffers whose device memory is from `pool`, which its buffers keep open.
#[must_use = "there is no manager where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_manager_over(
    pool: forebay_pool,
    memory: *mut forebay_buffer_manager,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(memory, "memory") };
    to.result(|| {
        let pool = table::find(pool)?;
        open(BufferManager::over(pool.pool()), pool.shared_device())
    })
}

/// Closes a manager. Its buffers stay.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_buffer_manager_close(memory: forebay_buffer_manager) -> forebay_status {
    status_of(|| table::close(memory).map(drop))
}

/// Creates a buffer of `size` bytes, all zero. It has no memory until it is used, on either side.
#[must_use = "there is no buffer where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_create(
    memory: forebay_buffer_manager,
    size: u64,
    buffer: *mut forebay_buffer,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(buffer, "buffer") };
    to.result(|| {
        let entry = table::find(memory)?;
        let made = entry.memory.buffer::<u8>(usize::try_from(size).unwrap_or(usize::MAX))?;
        let device = Arc::clone(&entry.device);
        table::open(Arc::new(BufferEntry { buffer: CountedBuffer::new(made), device }))
    })
}

/// What the buffers of a manager add up to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_buffer_manager_totals(
    memory: forebay_buffer_manager,
    totals: *mut forebay_buffer_totals,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { SizedOut::new(totals, "totals") };
    to.result(|| {
        let found = table::find(memory)?.memory.totals();
        Ok(forebay_buffer_totals {
            struct_size: 0,
            reserved: 0,
            buffers: found.buffers as u64,
            created: found.created,
            host_bytes: found.statistics.host_bytes,
            device_bytes: found.statistics.device_bytes,
            parked_bytes: found.parked_bytes,
            copies_to_host: found.statistics.to_host.copies,
            bytes_to_host: found.statistics.to_host.bytes,
            copies_to_device: found.statistics.to_device.copies,
            bytes_to_device: found.statistics.to_device.bytes,
        })
    })
}

/// The live buffers of a manager, the oldest first; for a manager that is all zeros, those of the whole process: at
/// the end of a program, its leaks. `text` gets a JSON array of objects with `number`, `bytes`, `age_ms`, `host_bytes`
/// and `device_bytes`, to be freed by `forebay_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_live_buffers(
    memory: forebay_buffer_manager,
    text: *mut *mut c_char,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(text, "text") };
    to.text(|| {
        let live = match memory.id {
            0 => leaks(),
            _ => table::find(memory)?.memory.live_buffers(),
        };
        let shown = live.iter().map(|one| {
            serde_json::json!({
                "number": one.id,
                "bytes": one.bytes,
                "age_ms": u64::try_from(one.age.as_millis()).unwrap_or(u64::MAX),
                "host_bytes": one.statistics.host_bytes,
                "device_bytes": one.statistics.device_bytes,
            })
        });
        Ok(serde_json::Value::from_iter(shown).to_string())
    })
}
