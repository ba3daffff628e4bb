//! Pools: the process's own of a device, and further ones.

use core::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay::statistics::Level;
use forebay::{Pool, PoolOptions, Settings, StreamHandle};
use forebay_sync::lock;

use crate::device::{self, DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::status::{Failure, forebay_status};
use crate::stream::{self, forebay_stream};
use crate::table::{self, FastEntry, entry};
use crate::text::{self, Out};

/// A pool. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_pool {
    /// Not to be looked at.
    pub id: u64,
}

/// The memory pressure of a pool: how near it is to its limit.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum forebay_pressure {
    /// Little is held, so caches may grow again.
    Low = 0,
    /// Neither little nor much.
    Normal = 1,
    /// Idle memory is released over time.
    Moderate = 2,
    /// The program should hold back.
    High = 3,
    /// All idle memory is released at once.
    Critical = 4,
}

impl From<Level> for forebay_pressure {
    fn from(level: Level) -> Self {
        match level {
            Level::Low => Self::Low,
            Level::Moderate => Self::Moderate,
            Level::High => Self::High,
            Level::Critical => Self::Critical,
            _ => Self::Normal,
        }
    }
}

/// The object of a pool handle.
pub(crate) struct PoolEntry {
    pool: Pool,
    device: Arc<DeviceEntry>,
    /// The pool's history size before the running recording, and when that began; `None` while nothing is recorded.
    recording: Mutex<Option<(u64, Instant)>>,
}

impl PoolEntry {
    #[inline(always)]
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    #[inline(always)]
    pub(crate) fn device(&self) -> &DeviceEntry {
        &self.device
    }

    pub(crate) fn shared_device(&self) -> Arc<DeviceEntry> {
        Arc::clone(&self.device)
    }

    pub(crate) fn recording(&self) -> MutexGuard<'_, Option<(u64, Instant)>> {
        lock(&self.recording)
    }
}

entry!(forebay_pool: PoolEntry, Pool);

// SAFETY: no other type is a pool.
unsafe impl FastEntry for PoolEntry {}

fn open(pool: Pool, device: Arc<DeviceEntry>) -> Result<forebay_pool, Failure> {
    table::open(Arc::new(PoolEntry { pool, device, recording: Mutex::new(None) }))
}

/// The pool of a device that the whole process shares. The first call creates it with the settings of the
/// environment (`FOREBAY_CONF`). Closing the handle leaves the pool.
#[must_use = "there is no pool where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_of_process(
    device: forebay_device,
    pool: *mut forebay_pool,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(pool, "pool") };
    to.result(|| {
        let device = table::find(device)?;
        open(device::process_pool(&device)?, device)
    })
}

/// Forgets the process's shared pool of a device; the next request for it creates a new one. Handles of the
/// old pool stay valid. `had`, where it is not null, gets 1 if there was one, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_forget_process(
    device: forebay_device,
    had: *mut i32,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(had) };
    to.result(|| {
        let device = table::find(device)?;
        let gone = device::forget_process_pool(&device);
        Ok(i32::from(gone))
    })
}

/// Creates a pool. `settings` is null, or "key:value,key:value" as in `FOREBAY_CONF`, and overrides the
/// environment.
#[must_use = "there is no pool where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_create(
    device: forebay_device,
    settings: *const c_char,
    pool: *mut forebay_pool,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { create(device, settings, pool, |options| options) }
}

/// Creates a pool, with options that settings do not have.
///
/// # Safety
///
/// * As for [`forebay_pool_create`].
pub(crate) unsafe fn create(
    device: forebay_device,
    settings: *const c_char,
    pool: *mut forebay_pool,
    complete: impl FnOnce(PoolOptions) -> PoolOptions,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(pool, "pool") };
    to.result(|| {
        let device = table::find(device)?;
        let mut chosen = Settings::from_environment()?;
        if !settings.is_null() {
            // SAFETY: as the caller promises.
            let text = unsafe { text::read_str(settings, "settings") }?;
            chosen = chosen.overlay(Settings::parse_conf(text)?);
        }
        open(complete(PoolOptions::with(chosen)).build(device.device())?, device)
    })
}

/// A pool and its device's handle of a stream.
pub(crate) fn with_stream(
    pool: forebay_pool,
    stream: forebay_stream,
) -> Result<(Arc<PoolEntry>, StreamHandle), Failure> {
    let entry = table::find(pool)?;
    let stream = stream::on_device(stream, &entry.device)?;
    Ok((entry, stream))
}

/// Closes a pool. A pool of `forebay_pool_create` returns all its memory to the device, that of live blocks
/// included, which must not be used any more. `left`, where it is not null, gets how many blocks were live.
/// Arenas, managers of buffers and their buffers keep their pool open, and so does a call of another thread until it returns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_close(pool: forebay_pool, left: *mut u64) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(left) };
    to.result(|| {
        let entry = table::close(pool)?;
        Ok(if left.is_null() { 0 } else { entry.pool.statistics().blocks })
    })
}

/// A handle to the device of a pool, to be closed separately.
#[must_use = "there is no device where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_device(
    pool: forebay_pool,
    device: *mut forebay_device,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(device, "device") };
    to.result(|| {
        let entry = table::find(pool)?;
        table::open(Arc::clone(&entry.device))
    })
}

/// Changes a setting while the pool lives: its name and its value, as in `FOREBAY_CONF`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_set(
    pool: forebay_pool,
    key: *const c_char,
    value: *const c_char,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let (key, value) =
            unsafe { (text::read_str(key, "key")?, text::read_str(value, "value")?) };
        Ok(table::find(pool)?.pool.set(key, value)?)
    })
}

/// The current value of a setting. `value` gets a string, to be freed by `forebay_string_free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_get(
    pool: forebay_pool,
    key: *const c_char,
    value: *mut *mut c_char,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let (key, to) = unsafe { (text::read_str(key, "key"), Out::new(value, "value")) };
    to.text(|| {
        let key = key?;
        Ok(table::find(pool)?.pool.settings().get(key)?.value)
    })
}

/// The most bytes that the pool may take from its device. The settings `max_bytes` and `max_fraction`
/// change it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_limit(pool: forebay_pool, bytes: *mut u64) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { Out::new(bytes, "bytes") }.result(|| Ok(table::find(pool)?.pool.limit().get()))
}

/// The memory pressure of a pool. Does not block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_pressure(
    pool: forebay_pool,
    level: *mut forebay_pressure,
) -> forebay_status {
    // SAFETY: as the caller promises.
    unsafe { Out::new(level, "level") }.result(|| Ok(table::find(pool)?.pool.pressure().into()))
}
