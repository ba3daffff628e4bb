//! LZ4 blocks, decoded by a simulated kernel.

use forebay_hal::{Call, Decompression, Lz4Blocks, Result, StreamHandle, decode_lz4_blocks};

use super::SimDevice;
use crate::kernel::{Kernel, KernelMemory};

// SAFETY: the spans are declared, so the kernel is given these alone, once they were found to be memory of the device;
// `decode_lz4_blocks` is safe code and gives a status for each block.
unsafe impl Decompression for SimDevice {
    unsafe fn decompress(&self, blocks: &Lz4Blocks, stream: StreamHandle) -> Result<()> {
        let blocks = *blocks;
        let mut kernel = Kernel::new(Call::Decompress.name());
        if blocks.count() > 0 {
            kernel = kernel
                .reads(blocks.data())
                .reads(blocks.table())
                .writes(blocks.to())
                .writes(blocks.statuses())
                .body(move |memory| {
                    let _ = decode(&blocks, memory);
                });
        }
        // SAFETY: as the caller promised.
        unsafe { self.launch_as(Call::Decompress, kernel, stream) }
    }
}

/// Decodes blocks; `None` where there are no bytes, on a phantom device.
fn decode(blocks: &Lz4Blocks, memory: &mut KernelMemory) -> Option<()> {
    let (data, table) = (memory.read(blocks.data())?, memory.read(blocks.table())?);
    let mut to = vec![0; blocks.to().size().to_usize().ok()?];
    let statuses = decode_lz4_blocks(&data, &table, blocks.block(), &mut to);
    let statuses: Vec<u8> =
        statuses.into_iter().flat_map(|status| status.code().to_ne_bytes()).collect();
    let written = memory.write(blocks.to(), &to) && memory.write(blocks.statuses(), &statuses);
    written.then_some(())
}
