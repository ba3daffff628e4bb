//! Calls of the driver while a graph is captured.
//!
//! While any stream is captured the driver refuses, to every thread, calls that a capture could not see:
//! taking memory is one of them, and a refusal spoils the capture. A thread may say that it knows what it
//! does; it does here, since memory that a private pool takes stays as long as its graphs.

use core::ffi::c_int;
use std::sync::OnceLock;

use forebay::cuda::DRIVER_VARIABLE;
use libloading::Library;

/// `cuThreadExchangeStreamCaptureMode`.
type Exchange = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// The driver's name, where no other is named: it is loaded already.
const DRIVER: &str = "libcuda.so.1";

static EXCHANGE: OnceLock<Option<Exchange>> = OnceLock::new();

fn exchange() -> Option<Exchange> {
    *EXCHANGE.get_or_init(|| {
        let named = std::env::var_os(DRIVER_VARIABLE).filter(|name| !name.is_empty());
        // SAFETY: the driver is loaded already, by the device whose pool is asked: nothing of it runs.
        let library = unsafe { Library::new(named.unwrap_or_else(|| DRIVER.into())) }.ok()?;
        // SAFETY: the function of that name is of that kind since CUDA 10.1.
        let found = unsafe { library.get::<Exchange>(b"cuThreadExchangeStreamCaptureMode\0") };
        let exchange = found.ok().map(|symbol| *symbol);
        // Never unloaded: the function stays.
        core::mem::forget(library);
        exchange
    })
}

/// A stretch of a thread's time in which the driver does as it is told.
#[derive(Debug)]
#[must_use = "it is over when this is dropped"]
pub(super) struct Relaxed {
    /// What was before; nothing where the driver has no such thing.
    before: Option<c_int>,
}

impl Relaxed {
    pub(super) fn begin() -> Self {
        Self { before: set(RELAXED) }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set(before);
        }
    }
}

/// Changes the thread's mode; gives the one before.
fn set(mode: c_int) -> Option<c_int> {
    let mut mode = mode;
    // SAFETY: it reads and writes a number.
    let code = unsafe { exchange()?(&raw mut mode) };
    (code == 0).then_some(mode)
}
