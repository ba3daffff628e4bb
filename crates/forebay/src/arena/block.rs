//! What an arena hands out: blocks that end with their scope, and tokens for those who have no
//! lifetimes.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Address, BumpBlock, Bytes};

/// Which arena, for the whole life of the process: never given out twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaId(pub u64);

impl ArenaId {
    /// One that no arena had.
    pub(super) fn fresh() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        // Only the number matters; no other memory is ordered by it.
        Self(LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

impl fmt::Display for ArenaId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "arena {}", self.0)
    }
}

/// A block as plain data, for languages without lifetimes: it may be kept and copied anywhere, and
/// an arena says whether it still stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ArenaToken {
    /// The arena it is of.
    pub arena: ArenaId,
    /// The generation it was allocated in: each reset and rewind begins another.
    pub generation: u64,
    /// Where it is, counted through all chunks.
    pub offset: u64,
    /// How large it is.
    pub size: Bytes,
}

/// A block of an arena. It owns nothing, may be copied, and cannot be kept longer than the arena is
/// left as it is, or than the scope it was allocated in.
///
/// Its address is plain data, as kernels and copies need it. Work that was enqueued with it on the
/// arena's stream is safe from what comes after a reset; work on other streams has to be waited
/// for first.
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

    /// Where it begins; null for a block of no bytes.
    pub fn address(&self) -> Address {
        self.address
    }

    /// How large it is: what was asked for.
    pub fn size(&self) -> Bytes {
        self.token.size
    }

    /// The same as plain data.
    pub fn token(&self) -> ArenaToken {
        self.token
    }
}

/// Room for values of a type in an arena: a block that knows its length.
#[must_use = "what is allocated and not used stays used until the arena goes back"]
pub struct ArenaSlice<'a, T> {
    block: ArenaBlock<'a>,
    length: u64,
    // No value is held, so the type decides nothing about threads.
    values: PhantomData<fn() -> T>,
}

impl<'a, T> ArenaSlice<'a, T> {
    pub(super) fn new(block: ArenaBlock<'a>, length: u64) -> Self {
        Self { block, length, values: PhantomData }
    }

    /// Where the first value is; null where there is no room for any bytes.
    pub fn address(&self) -> Address {
        self.block.address
    }

    /// How many values there is room for.
    pub fn len(&self) -> u64 {
        self.length
    }

    /// Whether there is room for none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// How many bytes they take.
    pub fn size(&self) -> Bytes {
        self.block.size()
    }

    /// The block they lie in.
    pub fn block(&self) -> ArenaBlock<'a> {
        self.block
    }
}

// By hand: a derive would ask the same of `T`, of which there is none inside.
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
