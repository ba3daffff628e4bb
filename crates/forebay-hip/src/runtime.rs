//! The HIP libraries loaded in this process.
//!
//! A function in CUDA's table cannot carry the library it should call. So each library has a number, and each function
//! of [translate](crate::translate) is instantiated once for every number.

use core::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_cuda::sys::{Code, Symbols};

use crate::fill::FILLS;
use crate::sys;

/// How many libraries a process can load. Programs load one, tests several.
pub(crate) const MAX_LIBRARIES: usize = 16;

/// A loaded library.
#[derive(Debug)]
pub(crate) struct Runtime {
    pub(crate) table: sys::Symbols,
    /// The version, as `cuDriverGetVersion` counts.
    pub(crate) version: c_int,
}

static RUNTIMES: [OnceLock<Runtime>; MAX_LIBRARIES] = [const { OnceLock::new() }; MAX_LIBRARIES];

/// How many of them are taken.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// CUDA's table with the functions of a library; `None` where the process has loaded as many as it can.
pub(crate) fn table_of(runtime: Runtime) -> Option<Symbols> {
    let number = TAKEN.fetch_add(1, Ordering::Relaxed);
    let (place, fill) = (RUNTIMES.get(number)?, FILLS.get(number)?);
    Some(fill(&place.get_or_init(|| runtime).table))
}

/// Calls library `N`.
pub(crate) fn call<const N: usize, E: Into<Code>>(
    call: impl FnOnce(&Runtime) -> Result<(), E>,
) -> Code {
    // A table is made after its library has got its place.
    let Some(runtime) = RUNTIMES.get(N).and_then(OnceLock::get) else {
        return Code::ERROR_NOT_INITIALIZED;
    };
    match call(runtime) {
        Ok(()) => Code::SUCCESS,
        Err(error) => error.into(),
    }
}
