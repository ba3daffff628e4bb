//! Copies large host memory with a transfer engine, if the program has made one for the device.
//!
//! The engine layer lies above arrays, so engines register here and arrays look them up.

use std::sync::{Arc, Weak};

use forebay_hal::{Copy, Device, NamedStream};

use crate::Result;
use crate::sync::fork::PerProcess;

/// Arrays copy fewer bytes than this themselves.
pub(crate) const LEAST: usize = 1 << 20;

/// Copies between ordinary host memory and a device with several threads.
pub(crate) trait BulkCopy: Send + Sync {
    /// Copies after the work enqueued on `stream`, and waits. If it fails, no copy is still running.
    ///
    /// # Safety
    ///
    /// * The host's side is memory that nothing else uses meanwhile, and the device's side is memory of the device.
    unsafe fn copy(self: Arc<Self>, copy: &Copy, stream: NamedStream) -> Result<()>;
}

/// The engines of this process, each with the address of its device, which outlives it.
static ENGINES: PerProcess<Vec<(usize, Weak<dyn BulkCopy>)>> = PerProcess::new();

fn address_of(device: &Arc<dyn Device>) -> usize {
    Arc::as_ptr(device).addr()
}

/// Registers an engine for as long as it lives.
#[cfg(feature = "host")]
pub(crate) fn enter(device: &Arc<dyn Device>, engine: Weak<dyn BulkCopy>) {
    let mut engines = ENGINES.lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    engines.push((address_of(device), engine));
}

/// The first live engine made for a device.
pub(crate) fn engine_of(device: &Arc<dyn Device>) -> Option<Arc<dyn BulkCopy>> {
    let address = address_of(device);
    let engines = ENGINES.lock();
    engines.iter().filter(|(of, _)| *of == address).find_map(|(_, engine)| engine.upgrade())
}
