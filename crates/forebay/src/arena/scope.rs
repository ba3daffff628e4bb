//! Scopes of an arena: blocks that are freed when a function returns.

use core::fmt;

use forebay_core::{Alignment, BumpMark, BumpUsage, Bytes};

use super::{Arena, ArenaBlock, ArenaSlice};
use crate::{Allocate, Result};

/// An arena while a scope runs, made by [`Arena::scope`] or, inside another scope, by [`Scope::scope`].
///
/// A block lives as long as its scope, also across inner scopes:
///
/// ```
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// arena.scope(|outer| {
///     let kept = outer.allocate(Bytes::new(100))?;
///     let first = outer.scope(|inner| inner.allocate(Bytes::new(100)).map(|it| it.address()))?;
///     let again = outer.scope(|inner| inner.allocate(Bytes::new(100)).map(|it| it.address()))?;
///     assert_eq!(first, again);
///     assert!(kept.address() < again);
///     Ok::<(), Box<dyn std::error::Error>>(())
/// })?;
/// assert!(arena.usage().used.is_zero());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A block cannot leave its scope. This does not compile:
///
/// ```compile_fail
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// let carried_out = arena.scope(|scope| scope.allocate(Bytes::new(100)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nor can a block be stored for an outer scope:
///
/// ```compile_fail,E0521
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// arena.scope(|outer| {
///     let mut blocks = Vec::new();
///     blocks.push(outer.allocate(Bytes::new(100)));
///     outer.scope(|inner| blocks.push(inner.allocate(Bytes::new(100))));
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Nor can the outer scope allocate while the inner one runs, because the end of the inner one would free the block:
///
/// ```compile_fail,E0502
/// # use forebay::arena::Arena;
/// # use forebay::{Bytes, Pool, StreamHandle};
/// # let device = forebay::HostDevice::open()?;
/// # let mut arena = Arena::new(Pool::new(&device)?, Bytes::mib(1), StreamHandle::DEFAULT)?;
/// arena.scope(|outer| {
///     outer.scope(|_inner| {
///         let _ = outer.allocate(Bytes::new(100));
///     });
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Scope<'s, A: Allocate> {
    // Private, and never handed out for all of 's: its holder could allocate here while an inner scope runs, and lose
    // the block when that scope ends.
    arena: &'s Arena<A>,
}

impl<'s, A: Allocate> Scope<'s, A> {
    /// Allocates `size` bytes with the arena's alignment. The contents are undefined.
    pub fn allocate(&self, size: Bytes) -> Result<ArenaBlock<'s>> {
        self.arena.allocate(size)
    }

    /// Allocates `size` bytes with this alignment.
    pub fn allocate_aligned(&self, size: Bytes, alignment: Alignment) -> Result<ArenaBlock<'s>> {
        self.arena.allocate_aligned(size, alignment)
    }

    /// Allocates memory for `count` values, with the larger of the arena's alignment and theirs.
    pub fn allocate_of<T: Copy + 'static>(&self, count: u64) -> Result<ArenaSlice<'s, T>> {
        self.arena.allocate_of(count)
    }

    /// Runs `work` in a scope inside this one. Blocks that it allocates are freed when it ends, also by a panic.
    pub fn scope<R>(&mut self, work: impl FnOnce(&mut Scope<'_, A>) -> R) -> R {
        run(self.arena, work)
    }

    /// The figures of the arena.
    pub fn usage(&self) -> BumpUsage {
        self.arena.usage()
    }
}

impl<A: Allocate> fmt::Debug for Scope<'_, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope of {:?}", self.arena)
    }
}

/// Rewinds the arena on drop, so also after a panic.
struct Return<'a, A: Allocate> {
    arena: &'a Arena<A>,
    mark: BumpMark,
}

impl<A: Allocate> Drop for Return<'_, A> {
    fn drop(&mut self) {
        // Scopes end in nesting order, and running one borrows every other way to rewind, so the mark is still valid.
        let returned = self.arena.bump.borrow_mut().rewind(self.mark);
        debug_assert_eq!(returned, Ok(()));
    }
}

impl<A: Allocate> Arena<A> {
    /// Runs `work` in a scope. Blocks that it allocates are freed when it ends, also by a panic.
    pub fn scope<R>(&mut self, work: impl FnOnce(&mut Scope<'_, A>) -> R) -> R {
        run(self, work)
    }
}

/// Runs `work` in a scope. The caller has exclusive use of the arena or of the enclosing scope: until the given
/// lifetime ends, nothing else allocates from the arena or rewinds it.
fn run<A: Allocate, R>(arena: &Arena<A>, work: impl FnOnce(&mut Scope<'_, A>) -> R) -> R {
    let _return = Return { arena, mark: arena.bump.borrow().mark() };
    work(&mut Scope { arena })
}
