//! Decodes LZ4 blocks with a kernel of this crate. `kernels/lz4.c` is its source.

use core::ffi::c_void;
use core::iter::once;

use forebay_hal::{Access, Asked, Call, Decompression, Error, Lz4Blocks, Result, StreamHandle};

use crate::device::CudaDevice;
use crate::kernel::WARPS;
use crate::refusal::words;
use crate::sys::{Code, DriverError};

impl CudaDevice {
    /// The error of a driver that does not load the kernel.
    fn not_loaded(&self, refusal: DriverError) -> Error {
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
            _ => self.refused(call, refusal, &Asked::of("kernel", "PTX", "what it loads")),
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
        for (argument, span, need) in [
            ("data", blocks.data(), Access::Read),
            ("table", blocks.table(), Access::Read),
            ("to", blocks.to(), Access::ReadWrite),
            ("statuses", blocks.statuses(), Access::ReadWrite),
        ] {
            self.check_rows((call, argument), span, once(span), need)?;
        }
        let kernel = self.pools.lz4.get();
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
        let groups = blocks.count().div_ceil(WARPS);
        // SAFETY: a kernel of this context with eight arguments of these widths, a live stream, and memory that was looked
        // up and that the caller keeps.
        let launched = unsafe { self.context.launch(function, groups, core.raw, &mut parameters) };
        launched.map_err(|refusal| {
            let given = format!("{} blocks to {}", blocks.count(), blocks.to());
            self.refused(call, refusal, &Asked::of("blocks", given, "blocks in device memory"))
        })
    }
}
