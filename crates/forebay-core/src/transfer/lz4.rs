//! Compressed data: independent LZ4 blocks with a table of where each ends.
//!
//! ```text
//!   0    "FBYLZ4\r\n"                 8 bytes
//!   8    version, now 1               4 bytes, as all numbers in little-endian order
//!   12   bytes of a block             4 bytes, 1 KiB to 4 MiB
//!   16   bytes of the data            8 bytes
//!   24   where each block ends        8 bytes for each block, counted from the first block's first byte
//!   ...  the blocks                   up to the end
//! ```
//!
//! Block `i` holds the bytes from `i` times the size of a block on; the last one holds the rest. Each is a block of
//! LZ4's block format, without a frame, made from its bytes alone, so other tools can make and read them. A block as
//! long as its data is stored uncompressed.

use core::fmt;
use core::ops::Range;

/// What the bytes begin with. The line end shows whether they were transferred as text.
const MAGIC: [u8; 8] = *b"FBYLZ4\r\n";

const VERSION: u32 = 1;

const HEADER: usize = 24;

const ENTRY: usize = size_of::<u64>();

/// The outcome of decoding one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BlockStatus {
    /// All of its data.
    Decoded,
    /// The table of blocks is wrong: its bytes are not where it says.
    BadTable,
    /// It ends within a sequence.
    Truncated,
    /// It decodes to more than its data.
    TooLong,
    /// It repeats bytes from before its beginning.
    BadOffset,
    /// It decodes to less than its data.
    TooShort,
    /// A number that no decoder of this version gives.
    Unknown(u32),
}

impl BlockStatus {
    const KNOWN: [Self; 6] = [
        Self::Decoded,
        Self::BadTable,
        Self::Truncated,
        Self::TooLong,
        Self::BadOffset,
        Self::TooShort,
    ];

    /// The status that a decoder wrote as a number.
    pub fn from_code(code: u32) -> Self {
        let known = usize::try_from(code).ok().and_then(|code| Self::KNOWN.get(code));
        known.copied().unwrap_or(Self::Unknown(code))
    }

    /// The number.
    pub fn code(self) -> u32 {
        let known = (0..).zip(Self::KNOWN).find(|&(_, known)| known == self);
        match self {
            Self::Unknown(code) => code,
            _ => known.map_or(0, |(code, _)| code),
        }
    }
}

impl fmt::Display for BlockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Decoded => "it is complete",
            Self::BadTable => "it is not where the table says",
            Self::Truncated => "it is truncated",
            Self::TooLong => "it decodes to more bytes than it should",
            Self::BadOffset => "it repeats bytes from before its beginning",
            Self::TooShort => "it decodes to fewer bytes than it should",
            Self::Unknown(code) => return write!(f, "the decoder gave status {code}"),
        })
    }
}

/// The fewest bytes that `size` bytes can be compressed to.
fn least_length(size: u64) -> u64 {
    size.div_ceil(255).max(1)
}

/// Why bytes are not valid compressed data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CompressedError {
    /// They do not begin as compressed data does.
    NotCompressed,
    /// They are of another version.
    Version {
        /// Their version.
        found: u32,
    },
    /// The size of a block is not one that is used.
    BlockSize {
        /// The size in bytes.
        found: u64,
    },
    /// There are more or fewer bytes than the table says.
    Length {
        /// The expected number of bytes.
        expected: u64,
        /// The actual number of bytes.
        found: u64,
    },
    /// A block is longer than its data, or so short that it cannot hold them: a byte stands for 255 at most.
    BlockLength {
        /// Which block.
        block: u64,
        /// Its length.
        found: u64,
        /// The length of its data.
        most: u64,
    },
    /// A block cannot be decoded.
    Block {
        /// Which block.
        block: u64,
        /// Why not.
        status: BlockStatus,
    },
}

impl fmt::Display for CompressedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotCompressed => f.write_str("this is not compressed data: it begins otherwise"),
            Self::Version { found } => {
                write!(
                    f,
                    "compressed data of version {found}; this program reads version {VERSION}"
                )
            }
            Self::BlockSize { found } => write!(
                f,
                "compressed data in blocks of {found} B; expected {} to {}",
                Lz4Layout::LEAST_BLOCK,
                Lz4Layout::MAX_BLOCK
            ),
            Self::Length { expected, found } => {
                write!(f, "compressed data of {found} B, whose table says {expected} B")
            }
            Self::BlockLength { block, found, most } => {
                write!(
                    f,
                    "block {block} of the compressed data is {found} B; expected {} to {most} B",
                    least_length(*most)
                )
            }
            Self::Block { block, status } => {
                write!(f, "block {block} of the compressed data is damaged: {status}")
            }
        }?;
        f.write_str("; make it again from the original data")
    }
}

impl core::error::Error for CompressedError {}

/// The layout of compressed data. The [module's documentation](self) describes the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lz4Layout {
    block: u32,
    blocks: u32,
    total: u64,
}

impl Lz4Layout {
    /// The shortest block. Below it the table would be a considerable part.
    pub const LEAST_BLOCK: u32 = 1 << 10;

    /// The longest block, so that no decoder's arithmetic overflows in 32 bits.
    pub const MAX_BLOCK: u32 = 4 << 20;

    /// The usual block: as far as LZ4's matches reach back, and small enough that a GPU has many at once.
    pub const USUAL_BLOCK: u32 = 64 << 10;

    /// `total` bytes in blocks of `block` bytes.
    pub fn new(block: u32, total: u64) -> Result<Self, CompressedError> {
        if !(Self::LEAST_BLOCK..=Self::MAX_BLOCK).contains(&block) {
            return Err(CompressedError::BlockSize { found: block.into() });
        }
        let count = total.div_ceil(block.into());
        // More blocks than a launch has groups: too large for this size of a block.
        let blocks = i32::try_from(count).ok().and_then(|count| u32::try_from(count).ok());
        let blocks = blocks.ok_or(CompressedError::BlockSize { found: block.into() })?;
        Ok(Self { block, blocks, total })
    }

    /// Reads and checks the header and the table. After that, each block is where it should be and none is longer than
    /// its data; their contents are not checked.
    ///
    /// ```
    /// use forebay_core::transfer::Lz4Layout;
    ///
    /// // 16 bytes of data in one block, which is kept as it is.
    /// let bytes = Lz4Layout::new(1024, 16)?.assemble(&[[7; 16]], Vec::new())?;
    /// let layout = Lz4Layout::parse(&bytes)?;
    /// assert_eq!((layout.total(), layout.blocks()), (16, 1));
    /// assert!(Lz4Layout::parse(&bytes[..bytes.len() - 1]).is_err());
    /// # Ok::<(), forebay_core::transfer::CompressedError>(())
    /// ```
    pub fn parse(bytes: &[u8]) -> Result<Self, CompressedError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(CompressedError::NotCompressed);
        }
        let found = bytes.len() as u64;
        let short = |expected: u64| CompressedError::Length { expected, found };
        let header = || short(HEADER as u64);
        let version = word(bytes, MAGIC.len()).ok_or_else(header)?;
        if version != VERSION {
            return Err(CompressedError::Version { found: version });
        }
        let block = word(bytes, 12).ok_or_else(header)?;
        let layout = Self::new(block, long(bytes, 16).ok_or_else(header)?)?;
        let first = layout.data_start() as u64;
        let mut before = 0;
        for (number, most) in (0..layout.blocks).map(|number| (number, layout.length_of(number))) {
            let end = layout.end_of(bytes, number).ok_or_else(|| short(first))?;
            let length = end.saturating_sub(before);
            if length < least_length(most.into()) || length > u64::from(most) {
                let (block, most) = (number.into(), most.into());
                return Err(CompressedError::BlockLength { block, found: length, most });
            }
            before = end;
        }
        let expected = first.saturating_add(before);
        if expected == found { Ok(layout) } else { Err(short(expected)) }
    }

    /// The total size of the blocks, their header and their table.
    pub fn assembled_size<B: AsRef<[u8]>>(&self, blocks: &[B]) -> usize {
        let lengths = blocks.iter().map(|block| block.as_ref().len());
        lengths.fold(self.data_start(), usize::saturating_add)
    }

    /// Writes the header, the table and the compressed blocks to the empty vector `bytes`, which has room for [so
    /// many](Self::assembled_size). A block as long as its data is taken to be uncompressed.
    pub fn assemble<B: AsRef<[u8]>>(
        &self,
        blocks: &[B],
        mut bytes: Vec<u8>,
    ) -> Result<Vec<u8>, CompressedError> {
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.block.to_le_bytes());
        bytes.extend_from_slice(&self.total.to_le_bytes());
        let mut end = 0_u64;
        for block in blocks {
            end = end.saturating_add(block.as_ref().len() as u64);
            bytes.extend_from_slice(&end.to_le_bytes());
        }
        for block in blocks {
            bytes.extend_from_slice(block.as_ref());
        }
        Self::parse(&bytes)?;
        Ok(bytes)
    }

    /// The bytes of the data.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// The bytes of a block's data.
    pub const fn block(&self) -> u32 {
        self.block
    }

    /// The number of blocks.
    pub const fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Where the table begins.
    pub const fn table_start(&self) -> usize {
        HEADER
    }

    /// Where the first block begins.
    pub const fn data_start(&self) -> usize {
        // At most 2^31 entries.
        HEADER + self.blocks as usize * ENTRY
    }

    /// The length of a block's data.
    pub fn length_of(&self, block: u32) -> u32 {
        let rest = self.total.saturating_sub(u64::from(block) * u64::from(self.block));
        u32::try_from(rest).map_or(self.block, |rest| rest.min(self.block))
    }

    /// Where a block is in the bytes, or `None` if they are not those that were [parsed](Self::parse).
    pub fn range_of(&self, bytes: &[u8], block: u32) -> Option<Range<usize>> {
        let begin = match block.checked_sub(1) {
            Some(before) => self.end_of(bytes, before)?,
            None => 0,
        };
        let within = |offset| self.data_start().checked_add(usize::try_from(offset).ok()?);
        let range = within(begin)?..within(self.end_of(bytes, block)?)?;
        (range.start <= range.end && range.end <= bytes.len()).then_some(range)
    }

    /// The entry of the table.
    fn end_of(&self, bytes: &[u8], block: u32) -> Option<u64> {
        let index = usize::try_from(block).ok()?;
        (block < self.blocks).then(|| long(bytes, HEADER + index * ENTRY)).flatten()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|four| u32::from_le_bytes(*four))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|eight| u64::from_le_bytes(*eight))
}

#[cfg(test)]
mod tests;
