//! Arenas: blocks that are allocated one by one and freed together.
//!
//! ```text
//!   allocator    [ chunk: one block        ]   [ chunk, where it may grow        ]
//!   arena        ####.######..####|            |
//!                kept ^    ^ temporary  ^ the next block, one addition away
//!                     a checkpoint: going back to it is one assignment
//! ```
//!
//! An [`Arena`] allocates its chunks from any [`Allocate`], in the order of one stream, and keeps them until it is
//! dropped. Allocating moves a position; a reset, a rewind to a checkpoint or the end of a [`Scope`] moves it back.
//! Nothing calls the device and nothing waits, because memory is reused in the order of the same stream.
//!
//! The borrow checker makes sure that no block is used after a reset, a rewind or the end of its scope. Languages
//! without one use [`ArenaToken`]s: plain data with a generation, which the arena refuses once they are no longer
//! valid.

mod block;
mod scope;
#[cfg(test)]
mod tests;

use core::cell::RefCell;
use core::fmt;

use forebay_core::{Address, Alignment, Bump, BumpBlock, BumpMark, Bytes, Span};
use forebay_hal::{NamedStream, StreamHandle};

pub use forebay_core::{BumpFull, BumpGrowth, BumpStale, BumpUsage};

pub use block::{ArenaBlock, ArenaSlice, ArenaToken};
pub use scope::Scope;

pub use crate::pool_id::ArenaId;

use crate::block::free_named;
use crate::{Allocate, Error, Request, Result};

/// Options of a new arena.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::arena::{ArenaOptions, BumpGrowth};
/// use forebay::{Alignment, Bytes, Pool};
/// # let device = forebay::HostDevice::open()?;
///
/// let arena = ArenaOptions::new(Bytes::mib(1))
///     .growth(BumpGrowth::Doubling { most: Bytes::mib(8) })
///     .alignment(Alignment::CACHE_LINE)
///     .build(Pool::new(&device)?, StreamHandle::DEFAULT)?;
/// let block = arena.allocate(Bytes::mib(3))?;
/// assert_eq!((block.size(), arena.usage().capacity), (Bytes::mib(3), Bytes::mib(4)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "options do nothing until an arena is built"]
pub struct ArenaOptions {
    capacity: Bytes,
    growth: BumpGrowth,
    alignment: Alignment,
}

impl ArenaOptions {
    /// An arena of `capacity` bytes in one piece that does not grow, with blocks aligned to 512 B.
    pub const fn new(capacity: Bytes) -> Self {
        Self { capacity, growth: BumpGrowth::Fixed, alignment: Alignment::BLOCK }
    }

    /// Sets how the arena grows when it is full.
    pub const fn growth(mut self, growth: BumpGrowth) -> Self {
        self.growth = growth;
        self
    }

    /// Sets the alignment of blocks that are allocated without one.
    pub const fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// Makes the arena over `allocator`, to be used in the order of `stream`.
    pub fn build<A: Allocate>(
        self,
        allocator: A,
        stream: impl Into<StreamHandle>,
    ) -> Result<Arena<A>> {
        let arena = Arena {
            allocator,
            stream: NamedStream::now(stream.into()),
            id: ArenaId::fresh(),
            alignment: self.alignment,
            bump: RefCell::new(Bump::new(self.growth)),
        };
        arena.add_chunk(self.capacity, self.alignment)?;
        Ok(arena)
    }
}

/// A position in an arena to rewind to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a checkpoint does nothing until the arena is rewound to it"]
pub struct Checkpoint {
    arena: ArenaId,
    mark: BumpMark,
}

/// Blocks that are allocated one by one and freed together.
///
/// ```
/// use forebay::arena::Arena;
/// use forebay::{Bytes, Pool, StreamHandle};
///
/// let pool = Pool::open("host")?;
/// let mut arena = Arena::new(pool.clone(), Bytes::mib(64), StreamHandle::DEFAULT)?;
/// for _batch in 0..100 {
///     let weights = arena.allocate_of::<f32>(1 << 20)?;
///     let scratch = arena.allocate(Bytes::mib(16))?;
///     assert_eq!((weights.len(), scratch.size()), (1 << 20, Bytes::mib(16)));
///     arena.reset();
/// }
/// assert_eq!(arena.usage().high_water, Bytes::mib(20));
/// assert_eq!(pool.statistics().allocations, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A block cannot be used after a reset. This does not compile:
///
/// ```compile_fail,E0502
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let block = arena.allocate(Bytes::new(100))?;
/// arena.reset();
/// let gone = block.address();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nor can it after a rewind, or after the arena was dropped:
///
/// ```compile_fail,E0502
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let start = arena.checkpoint();
/// let block = arena.allocate(Bytes::new(100))?;
/// arena.rewind(start)?;
/// let gone = block.address();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0505
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let block = arena.allocate(Bytes::new(100))?;
/// drop(arena);
/// let gone = block.address();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An arena can move to another thread, but two threads cannot share it without a lock around it. This does not
/// compile:
///
/// ```compile_fail,E0277
/// fn shared_between_threads<T: Sync>() {}
/// shared_between_threads::<forebay::arena::Arena<forebay::Pool>>();
/// ```
#[must_use = "an arena frees its memory when it is dropped"]
pub struct Arena<A: Allocate> {
    allocator: A,
    stream: NamedStream,
    id: ArenaId,
    alignment: Alignment,
    /// Never borrowed while the allocator is called, so a borrow never meets another.
    bump: RefCell<Bump>,
}

impl<A: Allocate> Arena<A> {
    /// Makes an arena of `capacity` bytes in one piece, to be used in the order of `stream`. It does not grow;
    /// [`ArenaOptions`] makes one that does.
    pub fn new(allocator: A, capacity: Bytes, stream: impl Into<StreamHandle>) -> Result<Self> {
        ArenaOptions::new(capacity).build(allocator, stream)
    }

    /// Allocates `size` bytes with the arena's alignment. The contents are undefined. A request for no bytes returns
    /// the null address and takes no memory.
    pub fn allocate(&self, size: Bytes) -> Result<ArenaBlock<'_>> {
        self.allocate_aligned(size, self.alignment)
    }

    /// Allocates `size` bytes with this alignment in place of the arena's.
    pub fn allocate_aligned(&self, size: Bytes, alignment: Alignment) -> Result<ArenaBlock<'_>> {
        let place = self.place(size, alignment)?;
        Ok(ArenaBlock::new(self.id, place, size))
    }

    /// Allocates memory for `count` values, with the larger of the arena's alignment and theirs. The contents are
    /// undefined.
    pub fn allocate_of<T: Copy + 'static>(&self, count: u64) -> Result<ArenaSlice<'_, T>> {
        let alignment = Alignment::new(align_of::<T>() as u64)?.max(self.alignment);
        let block = self.allocate_aligned(Bytes::of::<T>(count)?, alignment)?;
        Ok(ArenaSlice::new(block, count))
    }

    fn place(&self, size: Bytes, alignment: Alignment) -> Result<BumpBlock> {
        let taken = self.bump.borrow_mut().take(size, alignment);
        if let Ok(place) = taken {
            return Ok(place);
        }
        let preferred = self.bump.borrow().next_chunk(size, alignment)?;
        // The allocator may lack the preferred size but still have what the request needs.
        if let Err(error) = self.add_chunk(preferred, alignment) {
            if preferred == size {
                return Err(error);
            }
            self.add_chunk(size, alignment)?;
        }
        Ok(self.bump.borrow_mut().take(size, alignment)?)
    }

    /// Allocates a chunk; does nothing for zero bytes.
    fn add_chunk(&self, size: Bytes, alignment: Alignment) -> Result<()> {
        if size.is_zero() {
            return Ok(());
        }
        let request =
            Request::new(size, self.stream.handle()).aligned_to(alignment.max(Alignment::BLOCK));
        let block = self.allocator.allocate_request(request)?;
        // Leave the allocator's rounding unused, so that the arena is full exactly at its stated capacity.
        let added = Span::new(block.address(), size)
            .and_then(|span| self.bump.borrow_mut().add_chunk(span));
        if let Err(error) = added {
            self.free(block.address())?;
            return Err(error.into());
        }
        Ok(())
    }

    /// The current position, to rewind to.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { arena: self.id, mark: self.bump.borrow().mark() }
    }

    /// Frees everything that was allocated since the checkpoint, which stays valid. Fails if the checkpoint itself was
    /// made in memory that was freed since.
    pub fn rewind(&mut self, checkpoint: Checkpoint) -> Result<()> {
        self.check(checkpoint.arena)?;
        Ok(self.bump.get_mut().rewind(checkpoint.mark)?)
    }

    /// Frees everything in constant time. The arena keeps its chunks; tokens and checkpoints become invalid.
    pub fn reset(&mut self) {
        self.bump.get_mut().reset();
    }

    /// The block of a token. Fails once the block was freed by a reset, a rewind or the end of a scope.
    pub fn resolve(&self, token: ArenaToken) -> Result<ArenaBlock<'_>> {
        self.check(token.arena)?;
        let ArenaToken { generation, offset, size, .. } = token;
        let address = self.bump.borrow().resolve(offset, size, generation)?;
        Ok(ArenaBlock::new(self.id, BumpBlock { address, offset, generation }, size))
    }

    fn check(&self, owner: ArenaId) -> Result<()> {
        if owner == self.id { Ok(()) } else { Err(Error::WrongArena { arena: self.id, owner }) }
    }

    /// The figures of the arena.
    pub fn usage(&self) -> BumpUsage {
        self.bump.borrow().usage()
    }

    /// The address of the first chunk; null if there is none. An arena that does not grow is one piece from here to its
    /// capacity.
    pub fn base(&self) -> Address {
        self.bump.borrow().chunks().next().map_or(Address::NULL, Span::start)
    }

    /// The chunks, oldest first.
    pub fn chunks(&self) -> Vec<Span> {
        self.bump.borrow().chunks().collect()
    }

    /// The number of the arena.
    pub fn id(&self) -> ArenaId {
        self.id
    }

    /// The stream that orders the use of the arena.
    pub fn stream(&self) -> StreamHandle {
        self.stream.handle()
    }

    /// The allocator of the chunks.
    pub fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Frees all chunks in the order of the stream, and reports those that could not be freed. Dropping an arena does
    /// the same without a report.
    pub fn close(mut self) -> Result<()> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<()> {
        let growth = self.bump.get_mut().growth();
        let bump = self.bump.replace(Bump::new(growth));
        let (mut chunks, mut size, mut first) = (0, Bytes::ZERO, None);
        for chunk in bump.chunks() {
            if let Err(error) = self.free(chunk.start()) {
                chunks += 1;
                size = size.saturating_add(chunk.size());
                first.get_or_insert(error);
            }
        }
        match first {
            Some(error) => Err(Error::ChunksNotFreed { chunks, size, error: Box::new(error) }),
            None => Ok(()),
        }
    }

    /// Frees a chunk. Retries a transient error once, so that one fault does not leak.
    fn free(&self, chunk: Address) -> Result<()> {
        match free_named(&self.allocator, chunk, self.stream) {
            Err(Error::Device(error)) if error.may_pass() => {
                free_named(&self.allocator, chunk, self.stream)
            }
            outcome => outcome,
        }
    }
}

impl<A: Allocate> Drop for Arena<A> {
    fn drop(&mut self) {
        // A drop cannot report errors; `close` does. A chunk whose free fails twice stays with the allocator until that
        // is dropped.
        let _ = self.give_back();
    }
}

impl<A: Allocate> fmt::Debug for Arena<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BumpUsage { used, capacity, .. } = self.usage();
        write!(f, "Arena({}, {used} used of {capacity}, {})", self.id, self.stream())
    }
}
