//! A bump allocator over chunks: it allocates by advancing one position, and frees by moving it back.
//!
//! ```text
//!   chunks     [ chunk 0            ][ chunk 1                  ][ chunk 2       ...
//!   addresses  0x1000 .. 0x2000       0x9000 .. 0xb000            0x5000 ..
//!   position   0 ────────────────────────────────>|
//!              ######..########......##########...
//!                    padding   tail               ^ the next block begins here or later
//! ```
//!
//! Chunks can be at any address. The **position** counts through all of them in the order they were
//! added, and is the only state. Everything below it is used: blocks, the padding before them, and the
//! tails of chunks that were too short for the next request. So used and available bytes always add up
//! to the capacity, rewinding is one assignment, and the same requests get the same addresses again.
//!
//! **Generations** tell freed blocks from live ones: each rewind starts a new generation and records the
//! position it went back to, its floor. A block is live while no later floor lies below its end.

#[cfg(test)]
mod tests;

use core::fmt;

use crate::{Address, Alignment, Bytes, QuantityError, Span};

/// What a bump allocator does when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BumpGrowth {
    /// It fails with [`BumpFull`].
    #[default]
    Fixed,
    /// It doubles by adding a chunk as large as its capacity, until the capacity is `most`.
    Doubling {
        /// The most bytes of all chunks together.
        most: Bytes,
    },
}

impl fmt::Display for BumpGrowth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed => write!(f, "does not grow"),
            Self::Doubling { most } => write!(f, "grows to {most}"),
        }
    }
}

/// The usage of a bump allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BumpUsage {
    /// Blocks, the padding before them, and the tails of chunks that were skipped.
    pub used: Bytes,
    /// The rest of the capacity. One block can use at most the rest of one chunk.
    pub available: Bytes,
    /// All chunks together.
    pub capacity: Bytes,
    /// The most bytes ever used at once.
    pub high_water: Bytes,
    /// How many chunks there are.
    pub chunks: usize,
}

/// A block of a bump allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BumpBlock {
    /// Its address; null for 0 bytes.
    pub address: Address,
    /// Its position.
    pub offset: u64,
    /// The generation in which it was allocated.
    pub generation: u64,
}

/// A position to rewind to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a mark does nothing until a bump allocator is rewound to it"]
pub struct BumpMark {
    position: u64,
    generation: u64,
}

/// The bump allocator is full and may not grow as far as the request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BumpFull {
    /// The requested size.
    pub requested: Bytes,
    /// The requested alignment.
    pub alignment: Alignment,
    /// The bytes in use.
    pub used: Bytes,
    /// The rest of the capacity.
    pub available: Bytes,
    /// The longest rest of a chunk.
    pub largest: Bytes,
    /// All chunks together.
    pub capacity: Bytes,
    /// How it may grow.
    pub growth: BumpGrowth,
}

impl fmt::Display for BumpFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requested, alignment, used, available, largest, capacity, growth } = self;
        // An arena that is empty, or as a whole too small, stays so.
        let reset = match used.is_zero() || requested > capacity {
            true => "",
            false => "reset or rewind it, or ",
        };
        let advice = match growth {
            BumpGrowth::Fixed => "make it larger, or let it grow",
            BumpGrowth::Doubling { .. } => "raise the bound on its growth",
        };
        write!(
            f,
            "full: {requested} ({} B) requested with alignment {alignment}; {used} used and \
             {available} available of {capacity}, {largest} of it contiguous, and it {growth}; \
             {reset}{advice}",
            requested.get()
        )
    }
}

impl core::error::Error for BumpFull {}

/// A block or mark that the bump allocator does not know, or no longer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BumpStale {
    /// It was freed by a reset or a rewind.
    Lapsed {
        /// The generation in which it was allocated.
        generation: u64,
        /// The current generation.
        current: u64,
    },
    /// No allocated block lies there.
    NotAllocated {
        /// The offset given.
        offset: u64,
        /// The size given.
        size: Bytes,
        /// The bytes in use.
        used: Bytes,
    },
}

impl fmt::Display for BumpStale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lapsed { generation, current } => write!(
                f,
                "it was freed by a reset or rewind: it is of generation {generation}, and the current \
                 generation is {current}"
            ),
            Self::NotAllocated { offset, size, used } => write!(
                f,
                "{} B at offset {offset} were not allocated as one block: {} B are in use",
                size.get(),
                used.get()
            ),
        }
    }
}

impl core::error::Error for BumpStale {}

/// A chunk, and the position at which it begins.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    span: Span,
    before: u64,
}

impl Chunk {
    /// How far `position` reaches into the chunk; 0 if it lies before the chunk.
    const fn reach(&self, position: u64) -> Bytes {
        Bytes::new(position.saturating_sub(self.before))
    }
}

/// The position to which the rewind that began a generation went back.
#[derive(Clone, Copy, Debug)]
struct Floor {
    generation: u64,
    position: u64,
}

/// A bump allocator over chunks of addresses. It does not own them.
///
/// ```
/// use forebay_core::{Address, Alignment, Bump, BumpGrowth, Bytes, Span};
///
/// let mut bump = Bump::new(BumpGrowth::Fixed);
/// bump.add_chunk(Span::new(Address::new(0x1000), Bytes::new(4096))?)?;
/// let first = bump.take(Bytes::new(100), Alignment::CACHE_LINE)?;
/// let mark = bump.mark();
/// let second = bump.take(Bytes::new(100), Alignment::CACHE_LINE)?;
/// assert_eq!((first.offset, second.offset), (0, 128));
/// bump.rewind(mark)?;
/// assert!(bump.resolve(second.offset, Bytes::new(100), second.generation).is_err());
/// assert_eq!(bump.resolve(first.offset, Bytes::new(100), first.generation)?, first.address);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Bump {
    chunks: Vec<Chunk>,
    /// The chunk the position lies in.
    current: usize,
    position: u64,
    capacity: u64,
    high_water: u64,
    growth: BumpGrowth,
    generation: u64,
    /// The generation that the last reset began: all older blocks are stale.
    born: u64,
    /// Both generations and positions rise from first to last, since a new floor removes those before it
    /// that are not lower.
    floors: Vec<Floor>,
}

impl Bump {
    /// A bump allocator without chunks.
    pub const fn new(growth: BumpGrowth) -> Self {
        Self {
            chunks: Vec::new(),
            current: 0,
            position: 0,
            capacity: 0,
            high_water: 0,
            growth,
            generation: 0,
            born: 0,
            floors: Vec::new(),
        }
    }

    /// Adds a chunk after the others. Fails if the capacity would not fit in 64 bits. An empty chunk is
    /// ignored.
    pub fn add_chunk(&mut self, span: Span) -> Result<(), QuantityError> {
        let capacity = Bytes::new(self.capacity).try_add(span.size())?;
        if !span.is_empty() {
            self.chunks.push(Chunk { span, before: self.capacity });
            self.capacity = capacity.get();
        }
        Ok(())
    }

    /// Allocates `size` bytes with `alignment`, in the first chunk from the current one on that has room.
    /// If none has, nothing changes.
    pub fn take(&mut self, size: Bytes, alignment: Alignment) -> Result<BumpBlock, BumpFull> {
        let generation = self.generation;
        if size.is_zero() {
            return Ok(BumpBlock { address: Address::NULL, offset: self.position, generation });
        }
        let found = self.chunks.iter().enumerate().skip(self.current).find_map(|(index, chunk)| {
            let from = chunk.span.start().checked_add(chunk.reach(self.position))?;
            let address = from.checked_align_up(alignment)?;
            let end = address.checked_add(size)?;
            (end <= chunk.span.end()).then_some((index, *chunk, address, end))
        });
        let Some((index, chunk, address, end)) = found else {
            return Err(self.full(size, alignment));
        };
        let position = |at: Address| {
            chunk.before + at.offset_from(chunk.span.start()).unwrap_or_default().get()
        };
        self.current = index;
        self.position = position(end);
        self.high_water = self.high_water.max(self.position);
        Ok(BumpBlock { address, offset: position(address), generation })
    }

    /// The size that the growth rule prefers for the chunk to add for a request that [`take`](Self::take) refused, at
    /// least `size`. Fails if the rule does not allow one that is large enough.
    pub fn next_chunk(&self, size: Bytes, alignment: Alignment) -> Result<Bytes, BumpFull> {
        let capacity = Bytes::new(self.capacity);
        match self.growth {
            BumpGrowth::Doubling { most } if size <= most.saturating_sub(capacity) => {
                Ok(size.max(capacity).min(most.saturating_sub(capacity)))
            }
            _ => Err(self.full(size, alignment)),
        }
    }

    fn full(&self, requested: Bytes, alignment: Alignment) -> BumpFull {
        let BumpUsage { used, available, capacity, .. } = self.usage();
        let left = self.chunks.iter().skip(self.current);
        let rests = left.map(|chunk| chunk.span.size().saturating_sub(chunk.reach(self.position)));
        let largest = rests.max().unwrap_or_default();
        let growth = self.growth;
        BumpFull { requested, alignment, used, available, largest, capacity, growth }
    }

    /// The current position, to rewind to.
    pub fn mark(&self) -> BumpMark {
        BumpMark { position: self.position, generation: self.generation }
    }

    /// Rewinds to a mark: frees every block allocated since, and the next requests get the addresses they
    /// would have got then. The mark and earlier ones stay valid.
    pub fn rewind(&mut self, mark: BumpMark) -> Result<(), BumpStale> {
        let BumpMark { position, generation } = mark;
        self.check(generation, position)?;
        if position > self.position {
            return Err(self.not_allocated(position, Bytes::ZERO));
        }
        if position < self.position {
            self.position = position;
            self.current = self.chunk_at(position);
            self.generation = self.generation.wrapping_add(1);
            while self.floors.last().is_some_and(|floor| floor.position >= position) {
                self.floors.pop();
            }
            self.floors.push(Floor { generation: self.generation, position });
        }
        Ok(())
    }

    /// Frees everything, in constant time. Chunks stay; every mark and block becomes stale.
    pub fn reset(&mut self) {
        self.position = 0;
        self.current = 0;
        self.generation = self.generation.wrapping_add(1);
        self.born = self.generation;
        self.floors.clear();
    }

    /// The address of a live block; null for 0 bytes.
    pub fn resolve(&self, offset: u64, size: Bytes, generation: u64) -> Result<Address, BumpStale> {
        let not_allocated = || self.not_allocated(offset, size);
        let end = offset.checked_add(size.get()).ok_or_else(not_allocated)?;
        self.check(generation, end)?;
        if end > self.position {
            return Err(not_allocated());
        }
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let chunk = self.chunks.get(self.chunk_at(offset)).ok_or_else(not_allocated)?;
        let address = chunk.span.start().checked_add(chunk.reach(offset));
        let span = address.and_then(|address| Span::new(address, size).ok());
        match span {
            Some(span) if chunk.span.contains_span(span) => Ok(span.start()),
            _ => Err(not_allocated()),
        }
    }

    /// The chunk that contains `position`; at a boundary, the next one.
    fn chunk_at(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.before <= position).saturating_sub(1)
    }

    /// Checks that a block allocated in `generation` and ending at `end` is still live.
    fn check(&self, generation: u64, end: u64) -> Result<(), BumpStale> {
        let later = self.floors.partition_point(|floor| floor.generation <= generation);
        let lowest = self.floors.get(later);
        let stands = (self.born..=self.generation).contains(&generation)
            && lowest.is_none_or(|floor| floor.position >= end);
        if stands {
            Ok(())
        } else {
            Err(BumpStale::Lapsed { generation, current: self.generation })
        }
    }

    fn not_allocated(&self, offset: u64, size: Bytes) -> BumpStale {
        BumpStale::NotAllocated { offset, size, used: Bytes::new(self.position) }
    }

    /// The current usage.
    pub fn usage(&self) -> BumpUsage {
        let (used, capacity) = (Bytes::new(self.position), Bytes::new(self.capacity));
        BumpUsage {
            used,
            available: capacity.saturating_sub(used),
            capacity,
            high_water: Bytes::new(self.high_water),
            chunks: self.chunks.len(),
        }
    }

    /// The growth rule.
    pub const fn growth(&self) -> BumpGrowth {
        self.growth
    }

    /// The chunks, in the order they were added.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Span> {
        self.chunks.iter().map(|chunk| chunk.span)
    }
}
