//! Pools: the process's own of a device, and further ones.

use core::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use forebay::statistics::Level;
use forebay::{Pool, PoolOptions, Settings};
use forebay_sync::lock;

use crate::device::{self, DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::status::{Failure, forebay_status};
use crate::table::{self, Entry, FastEntry, Kind};
use crate::text::{self, Out, write_optional};

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

impl Entry for PoolEntry {
    const KIND: Kind = Kind::Pool;
}

// SAFETY: no other type is a pool.
unsafe impl FastEntry for PoolEntry {}

fn open(pool: Pool, device: Arc<DeviceEntry>) -> Result<forebay_pool, Failure> {
    let entry = PoolEntry { pool, device, recording: Mutex::new(None) };
    Ok(forebay_pool { id: table::open(Arc::new(entry))? })
}

/// The pool of a device that the whole process shares. The first call creates it with the settings of the
/// environment (`FOREBAY_CONF`). Closing the handle leaves the pool.
///
/// # Safety
///
/// * `pool` is null, or a handle can be written there.
#[must_use = "there is no pool where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_of_process(
    device: forebay_device,
    pool: *mut forebay_pool,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { Out::new(pool, "pool") }?;
        let device = table::find::<DeviceEntry>(device.id)?;
        to.set(open(device::process_pool(&device)?, device)?);
        Ok(())
    })
}

/// Forgets the process's shared pool of a device; the next request for it creates a new one. Handles of the
/// old pool stay valid. `had`, where it is not null, gets 1 if there was one, else 0.
///
/// # Safety
///
/// * `had` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_forget_process(
    device: forebay_device,
    had: *mut i32,
) -> forebay_status {
    status_of(|| {
        let device = table::find::<DeviceEntry>(device.id)?;
        let gone = device::forget_process_pool(&device);
        // SAFETY: as the caller promises.
        unsafe { write_optional(had, i32::from(gone)) };
        Ok(())
    })
}

/// Creates a pool. `settings` is null, or "key:value,key:value" as in `FOREBAY_CONF`, and overrides the
/// environment.
///
/// # Safety
///
/// * `settings` is null, or a text that ends with a zero byte.
/// * `pool` is null, or a handle can be written there.
#[must_use = "there is no pool where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_create(
    device: forebay_device,
    settings: *const c_char,
    pool: *mut forebay_pool,
) -> forebay_status {
    // SAFETY: as the caller promises.
    status_of(|| unsafe { create(device, settings, pool, |options| options) })
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
) -> Result<(), Failure> {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(pool, "pool") }?;
    let device = table::find::<DeviceEntry>(device.id)?;
    let mut chosen = Settings::from_environment()?;
    if !settings.is_null() {
        // SAFETY: as the caller promises.
        let text = unsafe { text::read_str(settings, "settings") }?;
        chosen = chosen.overlay(Settings::parse_conf(text)?);
    }
    let pool = complete(PoolOptions::with(chosen)).build(device.device())?;
    to.set(open(pool, device)?);
    Ok(())
}

/// Closes a pool. A pool of `forebay_pool_create` returns all its memory to the device, that of live blocks
/// included, which must not be used any more. `left`, where it is not null, gets how many blocks were live.
/// Arenas, managers of buffers and their buffers keep their pool open, and so does a call of another thread until it returns.
///
/// # Safety
///
/// * `left` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_close(pool: forebay_pool, left: *mut u64) -> forebay_status {
    status_of(|| {
        let entry = table::close::<PoolEntry>(pool.id)?;
        if !left.is_null() {
            // SAFETY: as the caller promises.
            unsafe { write_optional(left, entry.pool.statistics().blocks) };
        }
        Ok(())
    })
}

/// A handle to the device of a pool, to be closed separately.
///
/// # Safety
///
/// * `device` is null, or a handle can be written there.
#[must_use = "there is no device where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_device(
    pool: forebay_pool,
    device: *mut forebay_device,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { Out::new(device, "device") }?;
        let entry = table::find::<PoolEntry>(pool.id)?;
        to.set(forebay_device { id: table::open(Arc::clone(&entry.device))? });
        Ok(())
    })
}

/// Changes a setting while the pool lives: its name and its value, as in `FOREBAY_CONF`.
///
/// # Safety
///
/// * Both are null, or texts that end with a zero byte.
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
        Ok(table::find::<PoolEntry>(pool.id)?.pool.set(key, value)?)
    })
}

/// The current value of a setting. `value` gets a string, to be freed by `forebay_string_free`.
///
/// # Safety
///
/// * `key` is null, or a text that ends with a zero byte.
/// * `value` is null, or a pointer can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_get(
    pool: forebay_pool,
    key: *const c_char,
    value: *mut *mut c_char,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let (key, to) = unsafe { (text::read_str(key, "key")?, Out::new(value, "value")?) };
        let entry = table::find::<PoolEntry>(pool.id)?;
        to.set(text::into_c_string(entry.pool.settings().get(key)?.value)?);
        Ok(())
    })
}

/// The most bytes that the pool may take from its device. The settings `max_bytes` and `max_fraction`
/// change it.
///
/// # Safety
///
/// * `bytes` is null, or a number can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_limit(pool: forebay_pool, bytes: *mut u64) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { Out::new(bytes, "bytes") }?;
        to.set(table::find::<PoolEntry>(pool.id)?.pool.limit().get());
        Ok(())
    })
}

/// The memory pressure of a pool. Does not block.
///
/// # Safety
///
/// * `level` is null, or a `forebay_pressure` can be written there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_pool_pressure(
    pool: forebay_pool,
    level: *mut forebay_pressure,
) -> forebay_status {
    status_of(|| {
        // SAFETY: as the caller promises.
        let to = unsafe { Out::new(level, "level") }?;
        to.set(table::find::<PoolEntry>(pool.id)?.pool.pressure().into());
        Ok(())
    })
}
