//! Decoding LZ4 blocks in the memory of the device.

use forebay_core::transfer::{BlockStatus, Lz4Layout};
use forebay_core::{Address, Alignment, Bytes, Span};
use lz4_flex::block::{DecompressError, decompress_into};

use crate::{Call, Error, Result, StreamHandle, invalid, valid_span};

/// LZ4 blocks in device memory and the destination they are decoded to. Checked on construction.
///
/// Block `i` is decoded to the bytes that start at `i` times the block size; the last block fills what remains. Table
/// entry `i` holds the block's end, counted from the first byte of the first block, and a block begins where the
/// previous one ends. A block that is as long as its data is stored uncompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lz4Blocks {
    data: Span,
    table: Span,
    to: Span,
    block: u32,
    count: u32,
    statuses: Span,
}

impl Lz4Blocks {
    /// Describes the blocks in `data`, whose ends are the 64-bit numbers at `table`, decoded to `to` in blocks of
    /// `block` bytes. A 32-bit status for each goes to `statuses`. Rejects sizes that [`Lz4Layout`] rejects, addresses
    /// not aligned to the numbers stored there, and output that overlaps input.
    pub fn new(
        data: Span,
        table: Address,
        to: Span,
        block: u32,
        statuses: Address,
    ) -> Result<Self> {
        let call = Call::Decompress;
        let layout = Lz4Layout::new(block, to.size().get())
            .map_err(|error| invalid(call, "block", error, "a size that layouts take"))?;
        let count = layout.blocks();
        let array = |argument, start: Address, width: u64| {
            let alignment =
                Alignment::new(width).map_err(|error| Error::quantity(call, argument, &error))?;
            if !start.is_aligned_to(alignment) {
                return Err(invalid(call, argument, start, format!("a multiple of {width}")));
            }
            valid_span(call, argument, start, Bytes::new(u64::from(count) * width))
        };
        let blocks = Self {
            data,
            table: array("table", table, 8)?,
            to,
            block,
            count,
            statuses: array("statuses", statuses, 4)?,
        };
        let (written, read) = ([blocks.to, blocks.statuses], [blocks.data, blocks.table]);
        let shared = written.iter().any(|to| read.iter().any(|from| to.overlaps(*from)));
        if shared || blocks.to.overlaps(blocks.statuses) {
            let given = format!("{} and {}", blocks.to, blocks.statuses);
            return Err(invalid(
                call,
                "to",
                given,
                "memory apart from what is read and each other",
            ));
        }
        Ok(blocks)
    }

    /// The compressed blocks.
    pub const fn data(&self) -> Span {
        self.data
    }

    /// The table of block ends.
    pub const fn table(&self) -> Span {
        self.table
    }

    /// The destination of the decoded data.
    pub const fn to(&self) -> Span {
        self.to
    }

    /// The decoded size of a block.
    pub const fn block(&self) -> u32 {
        self.block
    }

    /// The number of blocks.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// The destination of the statuses.
    pub const fn statuses(&self) -> Span {
        self.statuses
    }
}

/// Decodes LZ4 blocks in device memory, in stream order.
///
/// # Safety
///
/// An implementation promises, for any contents of the blocks and their table:
///
/// * Only the blocks and their table are read, and only `to` and the statuses are written.
/// * Every status is written: 0 exactly if the block was decoded to all of its data, otherwise the
///   [number](BlockStatus::code) of what is wrong. In that case the decoded bytes of the block are undefined.
/// * An empty list of blocks succeeds, once the stream was found live.
/// * Memory that is not this device's is refused with [`Error::Invalid`] where the device can tell when the call is made.
pub unsafe trait Decompression {
    /// Enqueues the decoding. Fails with [`Error::Unsupported`] if the device turns out not to support it.
    ///
    /// # Safety
    ///
    /// * All four spans are memory of the device until the decoding is done. Meanwhile nothing else writes what it
    ///   reads or accesses what it writes.
    unsafe fn decompress(&self, blocks: &Lz4Blocks, stream: StreamHandle) -> Result<()>;
}

/// Decodes one block on the host to exactly the bytes of `to`.
///
/// ```
/// use forebay_core::transfer::BlockStatus;
///
/// // One literal, of which the match of 14 is copies, and the five literals that a block ends with.
/// let block = [0x1a, b'z', 1, 0, 0x50, b'a', b'b', b'c', b'd', b'e'];
/// let mut data = [0; 20];
/// assert_eq!(forebay_hal::decode_lz4(&block, &mut data), BlockStatus::Decoded);
/// assert_eq!(&data, b"zzzzzzzzzzzzzzzabcde");
/// assert_eq!(forebay_hal::decode_lz4(&block[..9], &mut data), BlockStatus::Truncated);
/// ```
pub fn decode_lz4(block: &[u8], to: &mut [u8]) -> BlockStatus {
    if block.len() >= to.len() {
        if block.len() > to.len() {
            return BlockStatus::BadTable;
        }
        to.copy_from_slice(block);
        return BlockStatus::Decoded;
    }
    match decompress_into(block, to) {
        Ok(length) if length == to.len() => BlockStatus::Decoded,
        Ok(_) => BlockStatus::TooShort,
        Err(DecompressError::OutputTooSmall { .. }) => BlockStatus::TooLong,
        Err(DecompressError::OffsetZero | DecompressError::OffsetOutOfBounds) => {
            BlockStatus::BadOffset
        }
        Err(_) => BlockStatus::Truncated,
    }
}

/// Decodes blocks on the host as a device would, for devices that are the host.
pub fn decode_lz4_blocks(data: &[u8], table: &[u8], block: u32, to: &mut [u8]) -> Vec<BlockStatus> {
    let Ok(size) = usize::try_from(block) else { return Vec::new() };
    let mut begin = 0_usize;
    let ends = table.chunks_exact(size_of::<u64>());
    let decode = |(end, to): (&[u8], &mut [u8])| {
        let end = end.first_chunk().map(|end| u64::from_le_bytes(*end));
        let end = end.and_then(|end| usize::try_from(end).ok()).unwrap_or(usize::MAX);
        let block = data.get(begin..end);
        begin = end;
        block.map_or(BlockStatus::BadTable, |block| decode_lz4(block, to))
    };
    ends.zip(to.chunks_mut(size.max(1))).map(decode).collect()
}
