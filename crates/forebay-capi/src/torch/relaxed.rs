//! Driver calls while a graph is captured.
//!
//! While any stream is captured, the driver refuses calls that a capture cannot record, to every thread.
//! Allocating memory is one of them, and the refusal invalidates the capture. A thread may set its capture mode to
//! relaxed, which permits them. That is sound here: a private pool keeps its memory as long as its graphs.

use core::ffi::c_int;
use std::sync::OnceLock;

use forebay::cuda::DRIVER_VARIABLE;
use libloading::Library;

/// `cuThreadExchangeStreamCaptureMode`.
type Exchange = unsafe extern "C" fn(*mut c_int) -> c_int;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_int = 2;

/// The driver's library, unless the environment names another. It is loaded already.
const DRIVER: &str = "libcuda.so.1";

static EXCHANGE: OnceLock<Option<Exchange>> = OnceLock::new();

fn exchange() -> Option<Exchange> {
    *EXCHANGE.get_or_init(|| {
        let named = std::env::var_os(DRIVER_VARIABLE).filter(|name| !name.is_empty());
        // SAFETY: the pool's device has loaded the driver already, so no initialiser runs.
        let library = unsafe { Library::new(named.unwrap_or_else(|| DRIVER.into())) }.ok()?;
        // SAFETY: the function of that name is of that kind since CUDA 10.1.
        let found = unsafe { library.get::<Exchange>(b"cuThreadExchangeStreamCaptureMode\0") };
        let exchange = found.ok().map(|symbol| *symbol);
        // Never unloaded: the function stays.
        core::mem::forget(library);
        exchange
    })
}

/// Relaxed capture mode for this thread, until dropped.
#[derive(Debug)]
#[must_use = "it is over when this is dropped"]
pub(super) struct RelaxedCapture {
    /// The mode before; `None` where the driver has no capture modes.
    before: Option<c_int>,
}

impl RelaxedCapture {
    pub(super) fn begin() -> Self {
        Self { before: set(RELAXED) }
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set(before);
        }
    }
}

/// Sets the thread's mode; returns the one before.
fn set(mode: c_int) -> Option<c_int> {
    let mut mode = mode;
    // SAFETY: it reads and writes a number.
    let code = unsafe { exchange()?(&raw mut mode) };
    (code == 0).then_some(mode)
}
