//! Blocks of an arena, whose lifetimes end with their scope, and tokens for languages without lifetimes.

use core::fmt;
use core::marker::PhantomData;

use forebay_core::{Address, BumpBlock, Bytes};

use crate::pool_id::ArenaId;

/// A block as plain data, for languages without lifetimes. It can be kept and copied anywhere;
/// [`Arena::resolve`](super::Arena::resolve) checks whether it is still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaToken {
    /// The arena that it is from.
    pub arena: ArenaId,
    /// The generation that it was allocated in. Each reset and rewind starts another.
    pub generation: u64,
    /// Its offset, counted through all chunks.
    pub offset: u64,
    /// Its size.
    pub size: Bytes,
}

/// A block of an arena. It owns nothing, can be copied, and lives no longer than its scope or until the arena is reset
/// or rewound.
///
/// Its address is plain data, as kernels and copies need it. Work that uses it on the arena's stream is ordered before
/// the work that reuses the memory after a reset. Wait for work on other streams before the reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "what is allocated and not used stays used until the arena goes back"]
pub struct ArenaBlock<'a> {
    address: Address,
    token: ArenaToken,
    arena: PhantomData<&'a ()>,
}

impl ArenaBlock<'_> {
    pub(super) fn new(arena: ArenaId, place: BumpBlock, size: Bytes) -> Self {
        let BumpBlock { address, offset, generation } = place;
        let token = ArenaToken { arena, generation, offset, size };
        Self { address, token, arena: PhantomData }
    }

    /// The address of the first byte; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.address
    }

    /// The size, as requested.
    pub fn size(&self) -> Bytes {
        self.token.size
    }

    /// The block as plain data.
    pub fn token(&self) -> ArenaToken {
        self.token
    }
}

/// A block of an arena for values of a type.
#[must_use = "what is allocated and not used stays used until the arena goes back"]
pub struct ArenaSlice<'a, T> {
    block: ArenaBlock<'a>,
    length: u64,
    // Holds no value, so `T` does not affect `Send` and `Sync`.
    values: PhantomData<fn() -> T>,
}

impl<'a, T> ArenaSlice<'a, T> {
    pub(super) fn new(block: ArenaBlock<'a>, length: u64) -> Self {
        Self { block, length, values: PhantomData }
    }

    /// The address of the first value; null for a slice of no bytes.
    pub fn address(&self) -> Address {
        self.block.address
    }

    /// The number of values.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The size in bytes.
    pub fn size(&self) -> Bytes {
        self.block.size()
    }

    /// The block that holds the values.
    pub fn block(&self) -> ArenaBlock<'a> {
        self.block
    }
}

// By hand: a derive would require the same of `T`, though no `T` is stored.
impl<T> Copy for ArenaSlice<'_, T> {}

impl<T> Clone for ArenaSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> fmt::Debug for ArenaSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = core::any::type_name::<T>();
        write!(f, "ArenaSlice({} x {values} at {})", self.length, self.block.address)
    }
}
