//! A bump over chunks: memory that is handed out by moving one position, and taken back by moving
//! it back.
//!
//! ```text
//!   chunks     [ chunk 0            ][ chunk 1                  ][ chunk 2       ...
//!   addresses  0x1000 .. 0x2000       0x9000 .. 0xb000            0x5000 ..
//!   position   0 ────────────────────────────────>|
//!              ######..########......##########...
//!                    padding   tail               ^ the next block begins here or later
//! ```
//!
//! Chunks lie anywhere; the **position** counts through all of them in the order they came, and is
//! all the state there is. Everything below it is used: blocks, the padding before them, the tails
//! of chunks that were too short for what came next. So used and available always make up the
//! capacity, going back is one assignment, and the same requests find the same places again.
//!
//! What was handed out and taken back is told from what is there now by **generations**: each way
//! back begins a new one, and remembers how far back it went (its floor). A place stands while no
//! later floor lies below its end.

#[cfg(test)]
mod tests;

use core::fmt;

use crate::{Address, Alignment, Bytes, QuantityError, Span};

/// What a bump does when it is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BumpGrowth {
    /// It says so.
    #[default]
    Fixed,
    /// It takes a chunk as large as all it has, until it has `most` in all.
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

/// How a bump stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BumpUsage {
    /// Blocks, the padding before them, and the tails of chunks that were left.
    pub used: Bytes,
    /// The rest of the capacity. One block can have no more of it than the rest of one chunk.
    pub available: Bytes,
    /// All chunks together.
    pub capacity: Bytes,
    /// The most that was ever used at once.
    pub high_water: Bytes,
    /// How many chunks there are.
    pub chunks: usize,
}

/// A place that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BumpPlace {
    /// Where it is; null for no bytes.
    pub address: Address,
    /// Its position.
    pub offset: u64,
    /// When it was handed out.
    pub generation: u64,
}

/// How large the next chunk should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BumpGrow {
    /// What the growth asks for.
    pub preferred: Bytes,
    /// What the request needs, in a chunk that begins at a multiple of its alignment.
    pub least: Bytes,
}

/// A position to come back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a mark does nothing until a bump is rewound to it"]
pub struct BumpMark {
    position: u64,
    generation: u64,
}

/// The bump is full, and may not grow as far as the request would need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BumpFull {
    /// What was asked for.
    pub requested: Bytes,
    /// What its address was to be a multiple of.
    pub alignment: Alignment,
    /// What is used.
    pub used: Bytes,
    /// What is not.
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
        let advice = match growth {
            BumpGrowth::Fixed => "make it larger, or let it grow",
            BumpGrowth::Doubling { .. } => "raise the bound of its growth",
        };
        write!(
            f,
            "full: {requested} ({} B) asked for at a multiple of {alignment}; {used} used and \
             {available} available of {capacity}, {largest} of it in one piece, and it {growth}; \
             reset or rewind it, {advice}",
            requested.get()
        )
    }
}

impl core::error::Error for BumpFull {}

/// A place or mark that is not, or no longer, one of the bump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum BumpLapse {
    /// It was taken back by a reset or by going back to before it.
    Lapsed {
        /// The generation it is of.
        generation: u64,
        /// The generation now.
        current: u64,
    },
    /// Nothing that is handed out lies there.
    NotGiven {
        /// Where it was said to begin.
        offset: u64,
        /// How large it was said to be.
        size: Bytes,
        /// How far things are handed out.
        used: Bytes,
    },
}

impl fmt::Display for BumpLapse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lapsed { generation, current } => write!(
                f,
                "it is of generation {generation}, and was taken back since: the generation is \
                 {current} now"
            ),
            Self::NotGiven { offset, size, used } => write!(
                f,
                "{} B at offset {offset} were not handed out in one piece: {} B are used",
                size.get(),
                used.get()
            ),
        }
    }
}

impl core::error::Error for BumpLapse {}

/// A chunk, and the position at which it begins.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    span: Span,
    before: u64,
}

impl Chunk {
    /// How far into the chunk `position` is: not at all where it lies before it.
    const fn reach(&self, position: u64) -> Bytes {
        Bytes::new(position.saturating_sub(self.before))
    }
}

/// How far back a generation began.
#[derive(Clone, Copy, Debug)]
struct Floor {
    generation: u64,
    position: u64,
}

/// A bump over chunks of addresses. It owns none of them.
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
    /// The generation that the last reset began: nothing older stands.
    born: u64,
    /// Generations and floors both rise from first to last: a floor hides those before it that are
    /// not lower. So there are never more than distinct positions below the present one.
    floors: Vec<Floor>,
}

impl Bump {
    /// A bump without chunks.
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

    /// Adds a chunk behind the others; refused where the capacity would not fit in 64 bits. A chunk
    /// of no bytes is nothing.
    pub fn add_chunk(&mut self, span: Span) -> Result<(), QuantityError> {
        let capacity = Bytes::new(self.capacity).try_add(span.size())?;
        if !span.is_empty() {
            self.chunks.push(Chunk { span, before: self.capacity });
            self.capacity = capacity.get();
        }
        Ok(())
    }

    /// The next `size` bytes at a multiple of `alignment`, in the first chunk from here that holds
    /// them. Where none does, nothing changes.
    pub fn take(&mut self, size: Bytes, alignment: Alignment) -> Result<BumpPlace, BumpFull> {
        let generation = self.generation;
        if size.is_zero() {
            return Ok(BumpPlace { address: Address::NULL, offset: self.position, generation });
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
        Ok(BumpPlace { address, offset: position(address), generation })
    }

    /// How large a chunk to add for a request that [`take`](Self::take) refused; an error where the
    /// growth does not allow one that would hold it.
    pub fn next_chunk(&self, size: Bytes, alignment: Alignment) -> Result<BumpGrow, BumpFull> {
        match self.growth {
            BumpGrowth::Doubling { most } => {
                let room = most.saturating_sub(Bytes::new(self.capacity));
                let preferred = size.max(Bytes::new(self.capacity)).min(room);
                let grow = BumpGrow { preferred, least: size };
                if size <= room { Ok(grow) } else { Err(self.full(size, alignment)) }
            }
            BumpGrowth::Fixed => Err(self.full(size, alignment)),
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

    /// The present position, to come back to.
    pub fn mark(&self) -> BumpMark {
        BumpMark { position: self.position, generation: self.generation }
    }

    /// Goes back to a mark: everything handed out since is taken back, and the next requests find
    /// the places they would have found then. The mark stands, and so do those before it.
    pub fn rewind(&mut self, mark: BumpMark) -> Result<(), BumpLapse> {
        let BumpMark { position, generation } = mark;
        self.check(generation, position)?;
        if position > self.position {
            return Err(self.not_given(position, Bytes::ZERO));
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

    /// Takes everything back, in constant time. Chunks stay; every mark and place lapses.
    pub fn reset(&mut self) {
        self.position = 0;
        self.current = 0;
        self.generation = self.generation.wrapping_add(1);
        self.born = self.generation;
        self.floors.clear();
    }

    /// The address of a place, while it stands; null for no bytes.
    pub fn resolve(&self, offset: u64, size: Bytes, generation: u64) -> Result<Address, BumpLapse> {
        let not_given = || self.not_given(offset, size);
        let end = offset.checked_add(size.get()).ok_or_else(not_given)?;
        self.check(generation, end)?;
        if end > self.position {
            return Err(not_given());
        }
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let chunk = self.chunks.get(self.chunk_at(offset)).ok_or_else(not_given)?;
        let address = chunk.span.start().checked_add(chunk.reach(offset));
        let span = address.and_then(|address| Span::new(address, size).ok());
        match span {
            Some(span) if chunk.span.contains_span(span) => Ok(span.start()),
            _ => Err(not_given()),
        }
    }

    /// The chunk that `position` lies in; where one ends and the next begins, the next.
    fn chunk_at(&self, position: u64) -> usize {
        self.chunks.partition_point(|chunk| chunk.before <= position).saturating_sub(1)
    }

    /// Whether what was handed out in `generation` up to `end` is still there.
    fn check(&self, generation: u64, end: u64) -> Result<(), BumpLapse> {
        let later = self.floors.partition_point(|floor| floor.generation <= generation);
        let lowest = self.floors.get(later);
        let stands = (self.born..=self.generation).contains(&generation)
            && lowest.is_none_or(|floor| floor.position >= end);
        if stands {
            Ok(())
        } else {
            Err(BumpLapse::Lapsed { generation, current: self.generation })
        }
    }

    fn not_given(&self, offset: u64, size: Bytes) -> BumpLapse {
        BumpLapse::NotGiven { offset, size, used: Bytes::new(self.position) }
    }

    /// How it stands.
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

    /// How it may grow.
    pub const fn growth(&self) -> BumpGrowth {
        self.growth
    }

    /// The chunks, in the order they came.
    pub fn chunks(&self) -> impl ExactSizeIterator<Item = Span> {
        self.chunks.iter().map(|chunk| chunk.span)
    }
}
