//! Decodes LZ4 blocks on the stream's worker thread.

use core::slice;

use forebay_core::Span;
use forebay_hal::{
    Access, Call, Decompression, Lz4Blocks, Result, StreamHandle, decode_lz4_blocks,
};

use crate::HostDevice;
use crate::mapping::pointer;
use crate::stream::Command;

// SAFETY: all four spans are looked up before the work is enqueued; `decode_lz4_blocks` is safe code over slices of exactly
// them, and gives a status for each block.
unsafe impl Decompression for HostDevice {
    unsafe fn decompress(&self, blocks: &Lz4Blocks, stream: StreamHandle) -> Result<()> {
        let call = Call::Decompress;
        let queue = self.queue(call, stream)?;
        if blocks.count() == 0 {
            return Ok(());
        }
        {
            let table = self.space.table();
            table.book.check_use(call, "data", blocks.data(), Access::Read)?;
            table.book.check_use(call, "table", blocks.table(), Access::Read)?;
            table.book.check_use(call, "to", blocks.to(), Access::ReadWrite)?;
            table.book.check_use(call, "statuses", blocks.statuses(), Access::ReadWrite)?;
        }
        self.push(call, stream, &queue, Command::Decompress(*blocks))
    }
}

/// Decodes blocks.
///
/// # Safety
///
/// * The spans are memory, readable or writable, that nobody else uses meanwhile but to read what is read.
pub(crate) unsafe fn run_decompress(blocks: &Lz4Blocks) {
    // SAFETY: as the caller promised; the four do not overlap where one is written, as was checked when they were named.
    let (data, table, to, statuses) = unsafe {
        let read =
            |span: Span| slice::from_raw_parts(pointer(span.start()).cast_const(), length(span));
        let write = |span: Span| slice::from_raw_parts_mut(pointer(span.start()), length(span));
        (read(blocks.data()), read(blocks.table()), write(blocks.to()), write(blocks.statuses()))
    };
    let outcomes = decode_lz4_blocks(data, table, blocks.block(), to);
    for (place, outcome) in statuses.chunks_exact_mut(size_of::<u32>()).zip(outcomes) {
        place.copy_from_slice(&outcome.code().to_ne_bytes());
    }
}

/// As far as slices go: a span of memory is never longer.
fn length(span: Span) -> usize {
    span.size().to_usize().unwrap_or(0)
}
