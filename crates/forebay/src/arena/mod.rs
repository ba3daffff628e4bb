//! Arenas: memory for what is allocated one by one and given back all at once.
//!
//! ```text
//!   allocator    [ chunk: one block        ]   [ chunk, where it may grow        ]
//!   arena        ####.######..####|            |
//!                kept ^    ^ temporary  ^ the next block, one addition away
//!                     a checkpoint: going back to it is one assignment
//! ```
//!
//! An [`Arena`] takes its chunks as blocks from any [`Allocate`], in the order of one stream, and
//! keeps them until it goes. Allocating moves a position; a reset, a rewind to a checkpoint or the
//! end of a [`Scope`] moves it back. Nothing calls the device, and nothing waits: what is handed
//! out again is used again in the order of the same stream.
//!
//! The borrow checker holds what must not happen: a block cannot be kept past a reset, a rewind or
//! the end of its scope. For languages without one there are [`ArenaToken`]s: plain data with a
//! generation, which the arena refuses once they have lapsed.

mod block;
mod error;
mod scope;
#[cfg(test)]
mod tests;

use core::cell::RefCell;
use core::fmt;

use forebay_core::{
    Address, Alignment, Bump, BumpBlock, BumpGrowth, BumpMark, BumpUsage, Bytes, Span,
};
use forebay_hal::StreamHandle;

pub use block::{ArenaBlock, ArenaId, ArenaSlice, ArenaToken};
pub use error::ArenaError;
pub use scope::Scope;

use crate::{Allocate, Error, Request};

/// How an arena is to be.
///
/// ```
/// # use std::sync::Arc;
/// use forebay::{Pool, arena::ArenaOptions};
/// use forebay_core::{Alignment, BumpGrowth, Bytes};
/// # use forebay_hal::{Device, StreamHandle};
/// # let device: Arc<dyn Device> = forebay_host::HostDevice::open()?;
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
    /// `capacity` bytes in one piece, which do not grow, and blocks at multiples of 512 B.
    pub const fn new(capacity: Bytes) -> Self {
        Self { capacity, growth: BumpGrowth::Fixed, alignment: Alignment::BLOCK }
    }

    /// What it does when it is full.
    pub const fn growth(mut self, growth: BumpGrowth) -> Self {
        self.growth = growth;
        self
    }

    /// What blocks begin at a multiple of, where no other alignment is asked for.
    pub const fn alignment(mut self, alignment: Alignment) -> Self {
        self.alignment = alignment;
        self
    }

    /// The arena, over `allocator`, to be used in the order of `stream`.
    pub fn build<A: Allocate>(
        self,
        allocator: A,
        stream: StreamHandle,
    ) -> Result<Arena<A>, ArenaError> {
        let arena = Arena {
            allocator,
            stream,
            id: ArenaId::fresh(),
            alignment: self.alignment,
            bump: RefCell::new(Bump::new(self.growth)),
        };
        arena.add_chunk(self.capacity, self.alignment)?;
        Ok(arena)
    }
}

/// A place in an arena to come back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a checkpoint does nothing until the arena is rewound to it"]
pub struct Checkpoint {
    arena: ArenaId,
    mark: BumpMark,
}

/// Memory that is allocated one by one and given back all at once.
///
/// ```
/// use std::sync::Arc;
///
/// use forebay::{Pool, arena::Arena};
/// use forebay_core::Bytes;
/// use forebay_hal::{Device, StreamHandle};
/// use forebay_host::HostDevice;
///
/// let device: Arc<dyn Device> = HostDevice::open()?;
/// let pool = Pool::new(&device)?;
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
/// A block cannot be used after a reset; this does not compile:
///
/// ```compile_fail,E0502
/// # use std::sync::Arc;
/// # use forebay::{Pool, arena::Arena};
/// # use forebay_core::Bytes;
/// # use forebay_hal::{Device, StreamHandle};
/// # let device: Arc<dyn Device> = forebay_host::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let block = arena.allocate(Bytes::new(100))?;
/// arena.reset();
/// let gone = block.address();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nor after a rewind, nor after the arena went:
///
/// ```compile_fail,E0502
/// # use std::sync::Arc;
/// # use forebay::{Pool, arena::Arena};
/// # use forebay_core::Bytes;
/// # use forebay_hal::{Device, StreamHandle};
/// # let device: Arc<dyn Device> = forebay_host::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let start = arena.checkpoint();
/// let block = arena.allocate(Bytes::new(100))?;
/// arena.rewind(start)?;
/// let gone = block.address();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```compile_fail,E0505
/// # use std::sync::Arc;
/// # use forebay::{Pool, arena::Arena};
/// # use forebay_core::Bytes;
/// # use forebay_hal::{Device, StreamHandle};
/// # let device: Arc<dyn Device> = forebay_host::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let block = arena.allocate(Bytes::new(100))?;
/// drop(arena);
/// let gone = block.address();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// An arena may go to another thread, but one thread has it at a time: a position that two move at
/// once would need a lock, and who wants one can put it around the arena. This does not compile:
///
/// ```compile_fail,E0277
/// fn shared_between_threads<T: Sync>() {}
/// shared_between_threads::<forebay::arena::Arena<forebay::Pool>>();
/// ```
#[must_use = "an arena gives its memory back when it goes"]
pub struct Arena<A: Allocate> {
    allocator: A,
    stream: StreamHandle,
    id: ArenaId,
    alignment: Alignment,
    /// Never borrowed while the allocator is called, so a borrow never meets another.
    bump: RefCell<Bump>,
}

impl<A: Allocate> Arena<A> {
    /// An arena of `capacity` bytes in one piece, to be used in the order of `stream`. It does not
    /// grow; [`ArenaOptions`] makes one that does.
    pub fn new(allocator: A, capacity: Bytes, stream: StreamHandle) -> Result<Self, ArenaError> {
        ArenaOptions::new(capacity).build(allocator, stream)
    }

    /// `size` bytes at a multiple of the arena's alignment. What they hold is not defined. No bytes:
    /// the null address, and no memory.
    pub fn allocate(&self, size: Bytes) -> Result<ArenaBlock<'_>, ArenaError> {
        self.allocate_aligned(size, self.alignment)
    }

    /// `size` bytes at a multiple of `alignment`, whatever the arena's own.
    pub fn allocate_aligned(
        &self,
        size: Bytes,
        alignment: Alignment,
    ) -> Result<ArenaBlock<'_>, ArenaError> {
        let place = self.place(size, alignment)?;
        Ok(ArenaBlock::new(self.id, place, size))
    }

    /// Room for `count` values, at a multiple of the arena's alignment and of theirs. What they are
    /// is not defined.
    pub fn allocate_of<T: Copy + 'static>(
        &self,
        count: u64,
    ) -> Result<ArenaSlice<'_, T>, ArenaError> {
        let alignment = Alignment::new(align_of::<T>() as u64)?.max(self.alignment);
        let block = self.allocate_aligned(Bytes::of::<T>(count)?, alignment)?;
        Ok(ArenaSlice::new(block, count))
    }

    fn place(&self, size: Bytes, alignment: Alignment) -> Result<BumpBlock, ArenaError> {
        let taken = self.bump.borrow_mut().take(size, alignment);
        if let Ok(place) = taken {
            return Ok(place);
        }
        let grow = self.bump.borrow().next_chunk(size, alignment)?;
        // Where the allocator has no more, what the request needs may still be there.
        if let Err(error) = self.add_chunk(grow.preferred, alignment) {
            if grow.least == grow.preferred {
                return Err(error);
            }
            self.add_chunk(grow.least, alignment)?;
        }
        Ok(self.bump.borrow_mut().take(size, alignment)?)
    }

    /// Takes a chunk from the allocator. No bytes: none.
    fn add_chunk(&self, size: Bytes, alignment: Alignment) -> Result<(), ArenaError> {
        if size.is_zero() {
            return Ok(());
        }
        let request = Request::new(size, self.stream).aligned_to(alignment.max(Alignment::BLOCK));
        let block =
            self.allocator.allocate(request).map_err(|error| ArenaError::Chunk { size, error })?;
        // What the allocator rounded up to is not used, so that an arena is full when it says.
        let added = Span::new(block.address(), size)
            .and_then(|span| self.bump.borrow_mut().add_chunk(span));
        if let Err(error) = added {
            self.free(block.address()).map_err(|error| ArenaError::Chunk { size, error })?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Runs `work` in a scope: what it allocates is taken back when it ends, however it ends.
    pub fn scope<R>(&mut self, work: impl FnOnce(&mut Scope<'_, A>) -> R) -> R {
        scope::run(self, work)
    }

    /// The present place, to come back to.
    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { arena: self.id, mark: self.bump.borrow().mark() }
    }

    /// Takes back everything that was allocated since the checkpoint, which can be used again. One
    /// that lies in what was taken back already has lapsed, and is refused.
    pub fn rewind(&mut self, checkpoint: Checkpoint) -> Result<(), ArenaError> {
        self.check(checkpoint.arena)?;
        Ok(self.bump.get_mut().rewind(checkpoint.mark)?)
    }

    /// Takes back everything, in constant time. Chunks stay; tokens and checkpoints lapse.
    pub fn reset(&mut self) {
        self.bump.get_mut().reset();
    }

    /// The block of a token, while it stands: until what it names is taken back.
    pub fn resolve(&self, token: ArenaToken) -> Result<ArenaBlock<'_>, ArenaError> {
        self.check(token.arena)?;
        let ArenaToken { generation, offset, size, .. } = token;
        let address = self.bump.borrow().resolve(offset, size, generation)?;
        Ok(ArenaBlock::new(self.id, BumpBlock { address, offset, generation }, size))
    }

    fn check(&self, owner: ArenaId) -> Result<(), ArenaError> {
        if owner == self.id {
            Ok(())
        } else {
            Err(ArenaError::WrongArena { arena: self.id, owner })
        }
    }

    /// How it stands.
    pub fn usage(&self) -> BumpUsage {
        self.bump.borrow().usage()
    }

    /// Where its first chunk begins; null where there is none. An arena that does not grow is one
    /// piece from here to its capacity.
    pub fn base(&self) -> Address {
        self.bump.borrow().chunks().next().map_or(Address::NULL, Span::start)
    }

    /// Its chunks, in the order they came.
    pub fn chunks(&self) -> Vec<Span> {
        self.bump.borrow().chunks().collect()
    }

    /// Which arena it is.
    pub fn id(&self) -> ArenaId {
        self.id
    }

    /// The stream in whose order it is used.
    pub fn stream(&self) -> StreamHandle {
        self.stream
    }

    /// The allocator its chunks are from.
    pub fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Gives all chunks back in the order of the stream, and says what was not taken back. Dropping
    /// an arena does the same and says nothing.
    pub fn close(mut self) -> Result<(), ArenaError> {
        self.give_back()
    }

    fn give_back(&mut self) -> Result<(), ArenaError> {
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
            Some(error) => Err(ArenaError::NotGivenBack { chunks, size, error }),
            None => Ok(()),
        }
    }

    /// Gives a chunk back. What may pass is tried once more, so that one fault does not leak.
    fn free(&self, chunk: Address) -> Result<(), Error> {
        match self.allocator.free(chunk, self.stream) {
            Err(Error::Device(error)) if error.may_pass() => {
                self.allocator.free(chunk, self.stream)
            }
            outcome => outcome,
        }
    }
}

impl<A: Allocate> Drop for Arena<A> {
    fn drop(&mut self) {
        // Nobody is there to be told: `close` is for those who want to know. A chunk that is refused
        // twice stays the allocator's, and goes with it.
        let _ = self.give_back();
    }
}

impl<A: Allocate> fmt::Debug for Arena<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BumpUsage { used, capacity, .. } = self.usage();
        write!(f, "Arena({}, {used} used of {capacity}, {})", self.id, self.stream)
    }
}
