//! Loads and launches the kernels of this crate.
//!
//! Each is committed as PTX, which the driver compiles for its device on first use: once for each context, in some
//! milliseconds the first time on a machine and less from the driver's own cache after that. Their sources are in
//! `kernels/`; "cargo xtask kernels" compiles them.

use core::ffi::{CStr, c_void};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::OnceLock;

use forebay_hal::DriverErrorKind;

use crate::context::Context;
use crate::refusal::meaning;
use crate::sys::{Outcome, RawFunction, RawModule, RawStream, Symbols};

/// Threads of a thread block: four warps, each of which works on its own.
const THREADS: u32 = 128;

/// Warps of a thread block.
pub(crate) const WARPS: u32 = THREADS / 32;

/// A kernel, which is loaded on first use.
#[derive(Debug)]
pub(crate) struct Kernel {
    context: &'static Context,
    /// Its text, ending with a zero as the driver wants it.
    text: &'static str,
    name: &'static CStr,
    function: OnceLock<RawFunction>,
    /// Whether the driver refused it for good.
    is_refused: AtomicBool,
}

/// Whether the driver has what launches take. It may still refuse the text, as it does for devices before compute
/// capability 7.0.
pub(crate) fn can_launch(table: &Symbols) -> bool {
    table.module_load.is_some()
        && table.module_get_function.is_some()
        && table.launch_kernel.is_some()
}

impl Kernel {
    /// Decodes LZ4 blocks.
    pub(crate) const fn lz4(context: &'static Context) -> Self {
        Self::new(context, concat!(include_str!("../kernels/lz4.ptx"), "\0"), c"forebay_lz4_decode")
    }

    /// Copies many pieces of memory.
    pub(crate) const fn copy(context: &'static Context) -> Self {
        Self::new(context, concat!(include_str!("../kernels/copy.ptx"), "\0"), c"forebay_copy")
    }

    const fn new(context: &'static Context, text: &'static str, name: &'static CStr) -> Self {
        Self { context, text, name, function: OnceLock::new(), is_refused: AtomicBool::new(false) }
    }

    /// The kernel of this context. No lock is held while the driver compiles: two threads may both load it, and one of the
    /// two modules is never used.
    pub(crate) fn get(&self) -> Outcome<RawFunction> {
        if let Some(&function) = self.function.get() {
            return Ok(function);
        }
        let (mut module, mut function) = (RawModule::NULL, RawFunction::NULL);
        self.context.call(|table| {
            // SAFETY: text that ends with a zero, a name that does, and places of our own. The module is never unloaded.
            unsafe {
                table.module_load(&raw mut module, self.text.as_ptr().cast())?;
                table.module_get_function(&raw mut function, module, self.name.as_ptr())
            }
        })?;
        Ok(*self.function.get_or_init(|| function))
    }

    /// As [`get`](Self::get), for callers that can do without. A driver that does not take the text is not asked again.
    pub(crate) fn get_if_taken(&self) -> Option<RawFunction> {
        if self.is_refused.load(Ordering::Relaxed) {
            return None;
        }
        let got = self.get().inspect_err(|refusal| {
            let is_for_good = matches!(
                meaning(*refusal),
                DriverErrorKind::Invalid | DriverErrorKind::Unsupported
            );
            self.is_refused.store(is_for_good, Ordering::Relaxed);
        });
        got.ok()
    }
}

impl Context {
    /// Enqueues a kernel of `groups` thread blocks of [`WARPS`] warps.
    ///
    /// # Safety
    ///
    /// * `function` is a kernel of this context, and `parameters` are pointers to its arguments, which are as wide as it
    ///   declares them.
    /// * `stream` is live, and what the kernel reads and writes is memory until it is done.
    pub(crate) unsafe fn launch(
        &self,
        function: RawFunction,
        groups: u32,
        stream: RawStream,
        parameters: &mut [*mut c_void],
    ) -> Outcome {
        let parameters = parameters.as_mut_ptr();
        // SAFETY: as the caller promised. The driver copies the arguments during the call.
        self.call(|table| unsafe {
            table.launch_kernel(
                function,
                groups,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream,
                parameters,
                ptr::null_mut(),
            )
        })
    }
}
