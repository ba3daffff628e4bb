//! The driver library, found at run time, loaded once and never unloaded.

use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

use forebay_core::DeviceOrdinal;
use forebay_hal::{Call, Error, Result, invalid};
use forebay_sync::fork::{ForkGeneration, PerProcess};
use forebay_sync::lock;
use libloading::Library;

use crate::context::{Context, Created};
use crate::context_pools::ContextPools;
use crate::event::EventCore;
use crate::refusal::plain_error;
use crate::sys::{Outcome, RawContext, Symbols};
use crate::vendor::{DriverMissing, NVIDIA, Vendor};

/// The drivers of the process by the name of their library. Nothing leaves it: no driver can be
/// unloaded while threads it started run. A forked child loads its own: the driver itself says whether it
/// serves a child, which it does where the parent had not begun with it.
static DRIVERS: PerProcess<Vec<&'static CudaDriver>> = PerProcess::new();

/// A CUDA driver, or [another vendor's](Vendor) with the same interface. Each library is loaded once and stays until
/// the end of the process.
pub struct CudaDriver {
    pub(crate) vendor: &'static Vendor,
    library: String,
    version: c_int,
    table: Symbols,
    /// The process that loaded it.
    fork_generation: ForkGeneration,
    contexts: Mutex<Vec<&'static ContextPools>>,
    /// Events of all devices: they order work of several, so each must know the others'.
    pub(crate) events: RwLock<HashMap<u64, Arc<EventCore>>>,
    created: Created,
}

/// The number of streams and events created in the whole process. They are reused and never destroyed, so these figures
/// never exceed the peak in use at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreatedCounts {
    /// Streams.
    pub streams: u64,
    /// Events.
    pub events: u64,
}

impl CudaDriver {
    /// Loads the system's driver, or the one that [`DRIVER_VARIABLE`](crate::DRIVER_VARIABLE) names.
    pub fn load() -> core::result::Result<&'static Self, DriverMissing> {
        // SAFETY: NVIDIA's functions keep to its documentation.
        unsafe { Self::load_of(&NVIDIA) }
    }

    /// Loads the driver library with this name or path.
    pub fn load_from(library: &str) -> core::result::Result<&'static Self, DriverMissing> {
        // SAFETY: as above.
        unsafe { Self::load_first(&NVIDIA, &[library]) }
    }

    /// Loads a vendor's system driver, or the one that the vendor's variable names.
    ///
    /// # Safety
    ///
    /// * The functions that the vendor loads do what CUDA's documentation says of those they stand for.
    pub unsafe fn load_of(
        vendor: &'static Vendor,
    ) -> core::result::Result<&'static Self, DriverMissing> {
        let named = std::env::var(vendor.variable).ok().filter(|library| !library.is_empty());
        // SAFETY: as the caller promised.
        unsafe {
            match named {
                Some(library) => Self::load_first(vendor, &[&library]),
                None => Self::load_first(vendor, vendor.libraries),
            }
        }
    }

    /// Loads the first of these libraries that exists, as a driver of the vendor.
    ///
    /// # Safety
    ///
    /// * As for [`load_of`](Self::load_of).
    pub unsafe fn load_first(
        vendor: &'static Vendor,
        libraries: &[&str],
    ) -> core::result::Result<&'static Self, DriverMissing> {
        let mut drivers = DRIVERS.lock();
        let mut tried = Vec::new();
        for &name in libraries {
            let is_it = |driver: &&&Self| driver.vendor == vendor && driver.library == name;
            if let Some(driver) = drivers.iter().find(is_it) {
                return Ok(driver);
            }
            // SAFETY: loading runs the library's own start-up code. It is the vendor's driver by the
            // name its vendor gives it, or what the user named in its place.
            match unsafe { Library::new(name) } {
                Ok(library) => {
                    // Its threads run on, and its functions are in the table: it stays.
                    let library: &'static Library = Box::leak(Box::new(library));
                    let found = |export: &str| find(library, export);
                    // SAFETY: addresses in the vendor's library, which is never unloaded.
                    let (table, version) = unsafe { (vendor.load)(name, &found) }?;
                    let driver = Self::new(vendor, name, table, version);
                    let driver: &'static Self = Box::leak(Box::new(driver));
                    drivers.push(driver);
                    return Ok(driver);
                }
                Err(error) => tried.push((name.to_owned(), reason(&error))),
            }
        }
        Err(DriverMissing::Library { vendor, tried })
    }

    fn new(vendor: &'static Vendor, name: &str, table: Symbols, version: c_int) -> Self {
        Self {
            vendor,
            library: name.to_owned(),
            version,
            table,
            fork_generation: ForkGeneration::here(),
            contexts: Mutex::default(),
            events: RwLock::default(),
            created: Created::default(),
        }
    }

    /// The vendor of the driver.
    pub const fn vendor(&self) -> &'static Vendor {
        self.vendor
    }

    /// The library it was loaded from.
    pub fn library(&self) -> &str {
        &self.library
    }

    /// The version of its interface, as in `(13, 0)`.
    pub const fn version(&self) -> (c_int, c_int) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// Its functions, for kernels and tests.
    pub const fn table(&self) -> &Symbols {
        &self.table
    }

    /// The number of streams and events created so far.
    pub fn made(&self) -> CreatedCounts {
        CreatedCounts {
            streams: self.created.streams.load(Ordering::Relaxed),
            events: self.created.events.load(Ordering::Relaxed),
        }
    }

    /// The number of devices visible to this process.
    pub fn device_count(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: the count is written to a place of our own.
        let outcome = unsafe { self.table.device_get_count(&raw mut count) };
        outcome.map_err(|refusal| plain_error(Call::Open, refusal, ("devices", "any")))?;
        Ok(u32::try_from(count).unwrap_or(0))
    }

    /// The calling thread's current context; 0 if none.
    pub fn current_context(&self) -> u64 {
        let mut context = RawContext::NULL;
        // SAFETY: the context is written to a place of our own. A failure leaves none.
        let _ = unsafe { self.table.context_get_current(&raw mut context) };
        context.0
    }

    /// The device's number for the driver. Refused if there is no such device.
    pub(crate) fn checked_ordinal(
        &self,
        call: Call,
        argument: &'static str,
        ordinal: DeviceOrdinal,
    ) -> Result<c_int> {
        let count = self.device_count()?;
        match c_int::try_from(ordinal.0) {
            Ok(number) if ordinal.0 < count => Ok(number),
            _ => {
                let allowed = match count {
                    0 => "none: the driver shows this process no device".to_owned(),
                    1 => "device 0, the only one".to_owned(),
                    _ => format!("devices 0 to {}", count - 1),
                };
                Err(invalid(call, argument, format!("device {ordinal}"), allowed))
            }
        }
    }

    fn contexts(&self, call: Call) -> Result<MutexGuard<'_, Vec<&'static ContextPools>>> {
        self.fork_generation.check().map_err(|_| Error::Forked { call })?;
        Ok(lock(&self.contexts))
    }

    /// Keeps a context until the end of the process.
    fn keep(
        &'static self,
        contexts: &mut Vec<&'static ContextPools>,
        raw: RawContext,
        ordinal: DeviceOrdinal,
        device: c_int,
        is_primary: bool,
    ) -> &'static ContextPools {
        let pools = ContextPools::leak(Context {
            vendor: self.vendor,
            table: &self.table,
            created: &self.created,
            raw,
            ordinal,
            device,
            is_primary,
            registered_for_kernels: OnceLock::new(),
            peers: Mutex::default(),
            spaces: Mutex::default(),
            inner: Mutex::default(),
        });
        contexts.push(pools);
        pools
    }

    /// The primary context of a device, retained once and for good.
    pub(crate) fn primary_context(
        &'static self,
        call: Call,
        ordinal: DeviceOrdinal,
    ) -> Result<&'static ContextPools> {
        let mut contexts = self.contexts(call)?;
        let number = self.checked_ordinal(call, "ordinal", ordinal)?;
        let is_it =
            |pools: &&&ContextPools| pools.context.is_primary && pools.context.ordinal == ordinal;
        if let Some(pools) = contexts.iter().find(is_it) {
            return Ok(pools);
        }
        let said = |outcome: Outcome| {
            outcome
                .map_err(|refusal| plain_error(call, refusal, ("ordinal", "a device that is up")))
        };
        let (mut device, mut raw) = (0, RawContext::NULL);
        // SAFETY: the device is written to a place of our own.
        said(unsafe { self.table.device_get(&raw mut device, number) })?;
        // SAFETY: as above, of a device just got.
        said(unsafe { self.table.primary_context_retain(&raw mut raw, device) })?;
        Ok(self.keep(&mut contexts, raw, ordinal, device, true))
    }

    /// A context that another library created.
    ///
    /// # Safety
    ///
    /// * `raw` is a live context of this driver, and stays one for the rest of the process.
    pub(crate) unsafe fn foreign_context(&'static self, raw: u64) -> Result<&'static ContextPools> {
        let raw = RawContext(raw);
        let mut contexts = self.contexts(Call::Open)?;
        if let Some(pools) = contexts.iter().find(|pools| pools.context.raw == raw) {
            return Ok(pools);
        }
        let said = |outcome: Outcome| {
            outcome.map_err(|refusal| plain_error(Call::Open, refusal, ("context", "a live one")))
        };
        let mut device = 0;
        // SAFETY: the context is live, as the caller promised.
        said(unsafe { self.table.context_push(raw) })?;
        // SAFETY: the device is written to a place of our own.
        let asked = said(unsafe { self.table.context_get_device(&raw mut device) });
        let mut popped = RawContext::NULL;
        // SAFETY: what was pushed above is popped, into a place of our own.
        said(unsafe { self.table.context_pop(&raw mut popped) })?;
        asked?;
        // Devices are numbered from 0 by the driver as by us.
        let ordinal = DeviceOrdinal(u32::try_from(device).map_err(|_| Error::Lost {
            call: Call::Open,
            reason: format!("the context's device is {device}, which is none").into(),
        })?);
        Ok(self.keep(&mut contexts, raw, ordinal, device, false))
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver")
            .field("vendor", &self.vendor)
            .field("library", &self.library)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Why the system did not load a library.
fn reason(error: &libloading::Error) -> String {
    core::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// An exported function by its name.
fn find(library: &'static Library, name: &str) -> Option<NonNull<c_void>> {
    let name = CString::new(name).ok()?;
    // SAFETY: only the address is taken here; who calls it knows its type.
    let symbol = unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) }.ok()?;
    NonNull::new(*symbol)
}

#[cfg(test)]
mod tests;
