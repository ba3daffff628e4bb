//! LZ4 blocks, decoded by a kernel of this crate.
//!
//! The kernel is committed as PTX, which the driver compiles for its device when it is first needed: once for a context, some
//! milliseconds the first time on a machine and less from the driver's own cache after that. `kernels/lz4.c` is its source.

use core::ffi::{CStr, c_void};
use core::iter::once;
use core::ptr;
use std::sync::OnceLock;

use forebay_hal::{Call, Decompression, Error, Lz4Blocks, Result, StreamHandle};

use crate::CudaDevice;
use crate::context::Context;
use crate::refusal::{CallInfo, words};
use crate::space::Use;
use crate::sys::{Code, RawFunction, RawModule, Refusal, Table};

/// The kernels, ending with a zero as the driver wants it.
const TEXT: &str = concat!(include_str!("../kernels/lz4.ptx"), "\0");

const NAME: &CStr = c"forebay_lz4_decode";

/// Threads of a thread block: four warps, each of which decodes an LZ4 block.
const THREADS: u32 = 128;

/// Blocks that a thread block decodes.
const AT_ONCE: u32 = THREADS / 32;

/// The kernel, once it was loaded.
#[derive(Debug, Default)]
pub(crate) struct Kernel(OnceLock<RawFunction>);

/// Whether the driver has what launches take. It may still refuse the text, as it does for devices before compute
/// capability 7.0.
pub(crate) fn can_launch(table: &Table) -> bool {
    table.module_load.is_some()
        && table.module_get_function.is_some()
        && table.launch_kernel.is_some()
}

impl Kernel {
    /// The kernel of this context. No lock is held while the driver compiles: two threads may both load it, and one of the
    /// two modules is never used.
    fn get(&self, context: &Context) -> core::result::Result<RawFunction, Refusal> {
        if let Some(&function) = self.0.get() {
            return Ok(function);
        }
        let (mut module, mut function) = (RawModule::NULL, RawFunction::NULL);
        context.call(|table| {
            // SAFETY: text that ends with a zero, a name that does, and places of our own. The module is never unloaded.
            unsafe {
                table.module_load(&raw mut module, TEXT.as_ptr().cast())?;
                table.module_get_function(&raw mut function, module, NAME.as_ptr())
            }
        })?;
        Ok(*self.0.get_or_init(|| function))
    }
}

impl CudaDevice {
    /// The error of a driver that does not load the kernel.
    fn not_loaded(&self, refusal: Refusal) -> Error {
        let call = Call::Decompress;
        match refusal.code {
            // Its compiler is missing or too old for the text.
            Code::ERROR_INVALID_PTX
            | Code::ERROR_INVALID_IMAGE
            | Code::ERROR_NO_BINARY_FOR_GPU
            | Code::ERROR_NOT_FOUND => {
                let said = words(refusal, Some(self.context.table()));
                let missing = format!("the driver does not take the kernel: {said}");
                Error::Unsupported { call, missing: missing.into() }
            }
            _ => self.refused(call, refusal, &CallInfo::of("kernel", "PTX", "what it loads")),
        }
    }
}

// SAFETY: the kernel reads and writes only within the spans that it is given, whatever the blocks and their table hold, and
// writes a status for each; its tests show it. The spans are looked up first.
unsafe impl Decompression for CudaDevice {
    unsafe fn decompress(&self, blocks: &Lz4Blocks, stream: StreamHandle) -> Result<()> {
        let call = Call::Decompress;
        let core = self.stream(call, stream)?;
        if blocks.count() == 0 {
            return Ok(());
        }
        for (argument, span, usage) in [
            ("data", blocks.data(), Use::Read),
            ("table", blocks.table(), Use::Read),
            ("to", blocks.to(), Use::Write),
            ("statuses", blocks.statuses(), Use::Write),
        ] {
            self.check_rows((call, argument), span, once(span), usage)?;
        }
        let kernel = self.context.lz4.get(self.context);
        let function = kernel.map_err(|refusal| self.not_loaded(refusal))?;
        let (mut data, mut data_size) = (blocks.data().start().get(), blocks.data().size().get());
        let (mut to, mut to_size) = (blocks.to().start().get(), blocks.to().size().get());
        let (mut block, mut count) = (blocks.block(), blocks.count());
        let mut table = blocks.table().start().get();
        let mut statuses = blocks.statuses().start().get();
        let mut parameters: [*mut c_void; 8] = [
            (&raw mut data).cast(),
            (&raw mut data_size).cast(),
            (&raw mut table).cast(),
            (&raw mut to).cast(),
            (&raw mut to_size).cast(),
            (&raw mut block).cast(),
            (&raw mut count).cast(),
            (&raw mut statuses).cast(),
        ];
        let groups = blocks.count().div_ceil(AT_ONCE);
        // SAFETY: a kernel of this context with eight arguments of these widths, which the driver copies during the call; a
        // live stream; and memory that was looked up and that the caller keeps.
        let launched = self.context.call(|driver| unsafe {
            driver.launch_kernel(
                function,
                groups,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                core.raw,
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        });
        launched.map_err(|refusal| {
            let given = format!("{} blocks to {}", blocks.count(), blocks.to());
            self.refused(call, refusal, &CallInfo::of("blocks", given, "blocks in device memory"))
        })
    }
}
