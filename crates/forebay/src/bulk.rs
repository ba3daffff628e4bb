//! Copies of much host memory by a transfer engine, if the program has made one for the device.
//!
//! Arrays are below the engine, which moves them: so an engine makes itself known here, and arrays look here.

use std::sync::{Arc, Weak};

use forebay_hal::{Copy, Device, NamedStream};

use crate::Result;
use crate::sync::fork::PerProcess;

/// Up to this much an array copies by itself.
pub(crate) const LEAST: usize = 1 << 20;

/// What copies between ordinary host memory and a device with several threads.
pub(crate) trait BulkCopy: Send + Sync {
    /// Copies after the work that was enqueued on `stream`, and waits. If it fails, nothing of it is under way.
    ///
    /// # Safety
    ///
    /// * The host's side is memory that nobody else uses meanwhile, and the device's side is memory of the device.
    unsafe fn copy(self: Arc<Self>, copy: &Copy, stream: NamedStream) -> Result<()>;
}

/// The engines of this process, each with the address of its device, which lives as long.
static ENGINES: PerProcess<Vec<(usize, Weak<dyn BulkCopy>)>> = PerProcess::new();

fn address_of(device: &Arc<dyn Device>) -> usize {
    Arc::as_ptr(device).addr()
}

/// Makes an engine known, as long as it lives.
#[cfg(feature = "host")]
pub(crate) fn enter(device: &Arc<dyn Device>, engine: Weak<dyn BulkCopy>) {
    let mut engines = ENGINES.lock();
    engines.retain(|(_, engine)| engine.strong_count() > 0);
    engines.push((address_of(device), engine));
}

/// The first engine that was made for a device and still lives.
pub(crate) fn engine_of(device: &Arc<dyn Device>) -> Option<Arc<dyn BulkCopy>> {
    let address = address_of(device);
    let engines = ENGINES.lock();
    engines.iter().filter(|(of, _)| *of == address).find_map(|(_, engine)| engine.upgrade())
}
