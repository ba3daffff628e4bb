//! Compressed data.

use core::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::thread;

use bytemuck::Pod;
use forebay_core::Bytes;
use forebay_core::transfer::{BlockStatus, CompressedError, Lz4Layout};
use forebay_hal::{Call, decode_lz4, invalid};

use super::host_end::HostSource;
use crate::sync::lock;
use crate::sync::thread::spawn_scoped;
use crate::{Result, host_vec};

/// The most threads that compress, if the machine has that many.
const MAX_THREADS: usize = 8;

/// Data as independent LZ4 blocks, which [`upload_compressed`](super::TransferEngine::upload_compressed) decodes on the
/// device. Clones share the bytes.
///
/// ```
/// use forebay::transfer::Compressed;
///
/// let data: Vec<u32> = (0..100_000).map(|number| number / 100).collect();
/// let compressed = Compressed::new(&data)?;
/// assert!(compressed.as_bytes().len() * 10 < data.len() * 4);
///
/// // As it is kept: in a file, say.
/// let bytes = compressed.as_bytes().to_vec();
/// let compressed = Compressed::from_bytes(bytes)?;
/// assert_eq!(compressed.decompress::<u32>()?, data);
/// # Ok::<(), forebay::Error>(())
/// ```
///
/// The format is that of [`forebay_core::transfer::lz4`]: a header of 24 bytes, a table of where each block ends, and
/// the blocks, each in LZ4's block format or uncompressed.
#[derive(Clone)]
pub struct Compressed {
    bytes: Packed,
    layout: Lz4Layout,
}

/// What decodes compressed data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Decoder {
    /// The device: sends the compressed bytes.
    Device,
    /// Threads of the host: sends the decoded bytes.
    Host,
}

/// The bytes of compressed data, as a source of a transfer.
#[derive(Clone)]
pub(super) struct Packed(Arc<Vec<u8>>);

// SAFETY: the vector is never changed, and its elements are in memory of their own.
unsafe impl HostSource<u8> for Packed {
    fn elements(&self) -> Result<&[u8]> {
        Ok(&self.0)
    }
}

impl Compressed {
    /// Compresses `data` in blocks of 64 KiB, with one thread per processor, at most eight.
    pub fn new<T: Pod>(data: &[T]) -> Result<Self> {
        Self::with_block(data, Bytes::new(Lz4Layout::USUAL_BLOCK.into()))
    }

    /// Compresses `data` in blocks of `block` bytes, 1 KiB to 4 MiB. Larger blocks compress better, up to LZ4's window
    /// of 64 KiB; smaller ones let a device decode more at a time.
    pub fn with_block<T: Pod>(data: &[T], block: Bytes) -> Result<Self> {
        let refused = CompressedError::BlockSize { found: block.get() };
        let size = u32::try_from(block.get()).map_err(|_| refused)?;
        let data: &[u8] = bytemuck::cast_slice(data);
        let layout = Lz4Layout::new(size, data.len() as u64)?;
        let call = Call::Allocate;
        let (length, count) = (length_of(size), data.len().div_ceil(length_of(size)));
        // Compress each block to its own area, sized for the worst case.
        let room = lz4_flex::block::get_maximum_output_size(length);
        let mut places = host_vec::zeroed::<u8>(room.saturating_mul(count), call)?;
        let mut lengths = host_vec::zeroed::<usize>(count, call)?;
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let blocks = data.chunks(length).zip(places.chunks_mut(room)).zip(&mut lengths);
        in_parallel(processors.min(MAX_THREADS), blocks, |((data, place), packed)| {
            *packed = match lz4_flex::block::compress_into(data, place) {
                Ok(packed) if packed < data.len() => packed,
                _ => {
                    place.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
                    data.len()
                }
            };
        });
        let mut blocks = host_vec::with_capacity(count, call)?;
        let packed = places.chunks(room).zip(&lengths);
        blocks.extend(packed.map(|(place, &length)| place.get(..length).unwrap_or_default()));
        let bytes = host_vec::with_capacity(layout.assembled_size(&blocks), call)?;
        let bytes = Packed(Arc::new(layout.assemble(&blocks, bytes)?));
        Ok(Self { bytes, layout })
    }

    /// Loads compressed data that was saved. Checks the header and the table; the blocks are checked when decoded.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self> {
        let layout = Lz4Layout::parse(&bytes)?;
        Ok(Self { bytes: Packed(Arc::new(bytes)), layout })
    }

    /// The bytes to save.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes.0
    }

    /// The size of the uncompressed data.
    pub fn size(&self) -> Bytes {
        Bytes::new(self.layout.total())
    }

    /// The size of a block in bytes.
    pub fn block(&self) -> Bytes {
        Bytes::new(self.layout.block().into())
    }

    /// Decodes the data on the host. Its size must be a whole number of elements.
    pub fn decompress<T: Pod>(&self) -> Result<Vec<T>> {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.decode(processors.min(MAX_THREADS))
    }

    /// Decodes the data on the host with several threads.
    pub(super) fn decode<T: Pod>(&self, threads: usize) -> Result<Vec<T>> {
        let mut elements = host_vec::zeroed::<T>(self.elements::<T>()?, Call::Decompress)?;
        let to: &mut [u8] = bytemuck::cast_slice_mut(&mut elements);
        let first_bad = Mutex::new(None::<(u32, BlockStatus)>);
        let blocks = (0..self.layout.blocks()).zip(to.chunks_mut(length_of(self.layout.block())));
        in_parallel(threads, blocks, |(block, to)| {
            let bytes = self.as_bytes();
            let range = self.layout.range_of(bytes, block);
            let input = range.and_then(|range| bytes.get(range));
            let status = input.map_or(BlockStatus::BadTable, |input| decode_lz4(input, to));
            let mut bad = lock(&first_bad);
            if status != BlockStatus::Decoded && bad.is_none_or(|(number, _)| block < number) {
                *bad = Some((block, status));
            }
        });
        match *lock(&first_bad) {
            Some((block, status)) => Err(damaged(block, status)),
            None => Ok(elements),
        }
    }

    /// The number of elements of type `T` in the data.
    pub(super) fn elements<T: Pod>(&self) -> Result<usize> {
        let (total, size) = (self.layout.total(), size_of::<T>() as u64);
        let whole = if size == 0 { total == 0 } else { total % size == 0 };
        let count = total.checked_div(size).unwrap_or(0);
        usize::try_from(count).ok().filter(|_| whole).ok_or_else(|| {
            let given = format!("{total} B of compressed data");
            invalid(Call::Decompress, "from", given, format!("a multiple of {size} B")).into()
        })
    }

    pub(super) fn layout(&self) -> Lz4Layout {
        self.layout
    }

    pub(super) fn packed(&self) -> Packed {
        self.bytes.clone()
    }
}

/// The error of a block.
pub(super) fn damaged(block: u32, status: BlockStatus) -> crate::Error {
    CompressedError::Block { block: block.into(), status }.into()
}

fn length_of(block: u32) -> usize {
    usize::try_from(block).unwrap_or(usize::MAX)
}

/// Runs `work` on each of `items`, on at most `threads` threads including this one.
fn in_parallel<I: Iterator + Send>(threads: usize, items: I, work: impl Fn(I::Item) + Sync) {
    let items = Mutex::new(items);
    let take = || lock(&items).next();
    let run = || {
        while let Some(item) = take() {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..threads {
            let started = spawn_scoped(scope, "forebay-pack", run);
            // This thread does the work of threads that could not be started.
            if started.is_err() {
                break;
            }
        }
        run();
    });
}

impl fmt::Debug for Compressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Bytes::new(self.as_bytes().len() as u64);
        write!(f, "Compressed({} as {bytes}, in blocks of {})", self.size(), self.block())
    }
}

impl fmt::Debug for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packed({} B)", self.0.len())
    }
}
