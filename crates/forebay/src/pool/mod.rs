//! The pool: blocks of any size, in the order of streams, from pages that serve any request.
//!
//! ```text
//!   caches    a thread's magazines, one for each stream        no lock: the thread's own
//!   heap      what is free, of which side, in whose order      one lock, held for a moment
//!   backing   pages, events, work put off: the driver          one lock, held while it works
//!   map       what is known of the block at an address         atomics, no lock
//!   debug     debugging aids, where any are on                 on the slow path alone
//! ```
//!
//! Small blocks live on a line of their own, so that a block of a few bytes does not keep a large
//! page from becoming free.

mod backing;
mod build;
mod calls;
mod common;
mod debug;
mod front;
mod heap;
mod inspect;
mod process;
mod shared;
#[cfg(test)]
mod tests;
mod views;

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use forebay_core::pressure::Level;
use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Device, StreamHandle, ToDevice};

use self::front::claimed_as::ClaimedAs;
use self::shared::Shared;
use crate::{Allocate, Block, Error, MemoryClass, PoolId, Request, Result, Settings, Tag};

pub use calls::block_pages::PagePart;
pub use common::capture::Capture;
pub use common::event::{EventAction, PoolEvent};
pub use common::log::DriverLog;
pub use common::options::PoolOptions;
pub use process::free;
pub use views::memory_map::MemoryMap;
pub use views::scope::{Scope, ScopeFigures};
pub use views::snapshot::{
    BlockSnapshot, CallSnapshot, ClassSnapshot, DeviceSnapshot, SettingSnapshot, Snapshot,
    StatisticsSnapshot, StreamSnapshot, TagSnapshot,
};
pub use views::statistics::{ClassFigures, Statistics, StreamFigures, TagFigures};

/// A pool of device memory. Clones are the same pool.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

// The ways in and out are always inlined: what is left at the call is the hit, some eighty instructions,
// and a call that is not taken. Left to the compiler it is sometimes a call more.
impl Pool {
    /// A pool on `device`, as the environment says ([`Settings::from_environment`]).
    ///
    /// [`Settings::from_environment`]: crate::Settings::from_environment
    pub fn new(device: &impl ToDevice) -> Result<Self> {
        PoolOptions::from_environment()?.build(device)
    }

    /// The settings in force; in a forked child, those that its parent's pool was made with.
    pub fn settings(&self) -> Settings {
        if self.shared.is_inherited() {
            return self.shared.options.settings.clone().build().unwrap_or_default();
        }
        self.shared.settings().clone()
    }

    /// Changes a setting, by its name and as text. Refused where it cannot change while a pool lives; an
    /// error has changed nothing.
    ///
    /// A smaller quarantine lets blocks go, and with poison on each is looked at, after the work that was
    /// enqueued on its stream, for which the call waits no longer than `max_wait`: the others go with later
    /// calls. A mistake that is found in one is no error of this call; [`findings`](Self::findings) has it.
    pub fn change(&self, key: &str, value: &str) -> Result<()> {
        self.shared.change(key, value)
    }

    /// The most the pool may take from the device. Waits for nobody.
    pub fn limit(&self) -> Bytes {
        self.shared.limits.limit()
    }

    /// Which pool it is.
    pub fn id(&self) -> PoolId {
        self.shared.id
    }

    /// The class of its memory.
    pub fn class(&self) -> MemoryClass {
        self.shared.options.class
    }

    /// From now on, until what this gives is dropped, the pool enqueues nothing, records no event, asks
    /// for none, and waits for nothing: for while work on its streams is captured into a graph. Requests
    /// are served from what is free in the order of their own stream, and by growing; trimming gives
    /// nothing back. What was used on further streams, and what was freed on streams that were forgotten,
    /// comes back by a [`trim`](Self::trim) after that.
    ///
    /// Refused where a setting has the pool enqueue or wait by itself ([`Error::CaptureRefused`]): filling
    /// what it gives out, and every debugging aid but exact statistics and history. Such a setting cannot
    /// be turned on while a capture lasts either.
    ///
    /// # Graphs
    ///
    /// A graph uses the addresses it was captured with, each time it is launched, whether or not the
    /// blocks there were freed since: a free within the capture is over when the capture is, while the
    /// graph goes on using the memory. So **a pool that was captured from must serve nothing else as long
    /// as any of its graphs lives**: a private pool, for captures alone, dropped after its graphs. Within
    /// that the order of the streams is the order of the graph, and memory freed in one part of it serves
    /// the next; another graph captured from the same pool has the same memory, so the two must not run
    /// at once. A pool of [`MemoryClass::STABLE`] keeps what is behind the addresses; it does not keep others
    /// from being given them.
    pub fn capture(&self) -> Result<Capture> {
        self.shared.capture()
    }

    /// The device its blocks are on.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// A block of at least `size` bytes, to be used in the order of `stream`. What it holds is not
    /// defined. No bytes: the null address, and no memory.
    #[inline(always)]
    pub fn allocate(&self, size: Bytes, stream: StreamHandle) -> Result<Block> {
        match self.shared.allocate_cached::<true>(size, stream, Tag::NONE) {
            Some(block) => Ok(block),
            None => allocate_slowly(&self.shared, size, stream),
        }
    }

    /// As [`allocate`](Self::allocate), under `tag` where the thread allocates under none. For libraries
    /// that allocate on behalf of a program, which may have said more than they know.
    #[inline(always)]
    pub fn allocate_for(&self, size: Bytes, stream: StreamHandle, tag: Tag) -> Result<Block> {
        match self.shared.allocate_cached::<true>(size, stream, tag) {
            Some(block) => Ok(block),
            None => allocate_slowly_for(&self.shared, size, stream, tag),
        }
    }

    /// A block as requested.
    pub fn allocate_request(&self, request: Request) -> Result<Block> {
        let (wanted, offered) = (request.class, self.class());
        if !offered.contains(wanted) {
            return Err(Error::WrongClass { wanted, offered });
        }
        if request.alignment <= Alignment::BLOCK {
            return self.allocate(request.size, request.stream);
        }
        self.shared.allocate(Request { stream: request.stream.resolved(), ..request })
    }

    /// Gives back the block at `address`, in the order of `stream`: its memory may be used again by
    /// what is enqueued on `stream` from now on. The null address is ignored.
    #[inline(always)]
    pub fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.free_as::<true>(address, stream, ClaimedAs::Any)
    }

    /// As [`free`](Self::free), where the caller knows how much was asked for, or how large the block
    /// is: anything else is refused.
    #[inline(always)]
    pub fn free_sized(&self, address: Address, size: Bytes, stream: StreamHandle) -> Result<()> {
        self.free_as::<true>(address, stream, ClaimedAs::Sized(size))
    }

    /// As [`free`](Self::free), for the very block that was given out: one of another pool is
    /// refused, and one whose address was given out again since.
    #[inline(always)]
    pub fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
        let Block { address, pool: owner, generation, .. } = block;
        if owner != self.shared.id {
            return Err(Error::WrongPool { address, pool: self.shared.id, owner });
        }
        self.free_as::<true>(address, stream, ClaimedAs::Exact(generation))
    }

    #[inline(always)]
    fn free_as<const COUNTED: bool>(
        &self,
        address: Address,
        stream: StreamHandle,
        said: ClaimedAs,
    ) -> Result<()> {
        if self.shared.free_cached::<COUNTED>(address, stream, said) {
            return Ok(());
        }
        free_slowly(&self.shared, address, stream, said)
    }

    /// Notes that the block at `address` is used on `stream` beside the one it will be freed on: when
    /// it is, its memory is reused only after what is enqueued on both by then.
    pub fn record_use(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.shared.record_use(address, stream.resolved())
    }

    /// The live block that begins at `address`.
    pub fn block_at(&self, address: Address) -> Option<Block> {
        self.shared.block_at(address).map(|(block, _)| block)
    }

    /// How much was asked for when the block at `address` was allocated.
    pub fn requested_at(&self, address: Address) -> Option<Bytes> {
        self.shared.block_at(address).map(|(_, requested)| requested)
    }

    /// Says that a stream will be destroyed: to be called before that. What was freed on it becomes
    /// everybody's once its work so far is done.
    pub fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        self.shared.forget_stream(stream.resolved())
    }

    /// Takes back what was freed while other streams used it, as far as they are done; and whatever
    /// else was put off. Does not wait. The pool does this by itself before it takes new memory.
    pub fn process_deferred(&self) -> Result<()> {
        self.shared.process_deferred()
    }

    /// Makes what is free as few and as large holes as can be without waiting: what is at hand in
    /// magazines goes home, what was put off and is due is done, old mappings that nobody uses go, and
    /// holes of streams that have nothing left to do become everybody's, one with their neighbours. The
    /// upkeep thread does the same, where it is on.
    ///
    /// No page is moved. Any page that is wholly free serves any request already: where no hole is large
    /// enough, such pages are mapped behind one range when a request needs them, so moving them ahead
    /// would only cost mappings that may never be needed. Memory that is free within a page that is
    /// partly in use stays where it is: blocks do not move.
    pub fn defragment(&self) -> Result<()> {
        self.shared.defragment()
    }

    /// Gives back to the device what is free, down to `keep` bytes held; gives how much. Waits for
    /// the device where work may still use it.
    pub fn trim(&self, keep: Bytes) -> Result<Bytes> {
        self.shared.trim(keep)
    }

    /// Gives back to the device what was not needed in the last `age`, as far as that was watched:
    /// from one call of this to the next, and by the upkeep of the pool where that is on. Does not
    /// wait: what work may still use goes when it is done. Gives how much is to go.
    pub fn collect(&self, age: Duration) -> Result<Bytes> {
        self.shared.collect(age)
    }

    /// How near the pool is to its limit. Waits for nobody.
    pub fn pressure(&self) -> Level {
        self.shared.pressure()
    }

    /// Measures from now on, until it is asked to end: what was allocated, and the peaks. Scopes nest. In a
    /// forked child all figures of its parent's pool are 0.
    pub fn scope(&self) -> Scope {
        Scope::new(&self.shared)
    }

    /// The last events, as many as the setting `history` says; the oldest first. None in a forked child, of
    /// its parent's pool.
    pub fn history(&self) -> Vec<PoolEvent> {
        self.shared.history()
    }

    /// How much is taken from the device now. Waits for nobody.
    pub fn held(&self) -> Bytes {
        self.shared.held.get()
    }

    /// How the pool stands. Stops the threads that are in it for a moment. In a forked child all figures of
    /// its parent's pool are 0.
    pub fn statistics(&self) -> Statistics {
        views::statistics::of(&self.shared)
    }
}

/// The hot pair without its counts, so that what they cost can be measured. Of no other use: from then
/// on the figures of the pool are wrong.
#[cfg(feature = "uncounted")]
#[doc(hidden)]
impl Pool {
    #[inline(always)]
    pub fn allocate_uncounted(&self, size: Bytes, stream: StreamHandle) -> Result<Block> {
        match self.shared.allocate_cached::<false>(size, stream, Tag::NONE) {
            Some(block) => Ok(block),
            None => allocate_slowly(&self.shared, size, stream),
        }
    }

    #[inline(always)]
    pub fn free_uncounted(&self, address: Address, stream: StreamHandle) -> Result<()> {
        self.free_as::<false>(address, stream, ClaimedAs::Any)
    }
}

// SAFETY: the pool gives memory of its device's pages or segments, each byte to one live block, and a
// block that is owned is refused to every free; clones keep the memory.
unsafe impl Allocate for Pool {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        Self::allocate_request(self, request)
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        Self::free(self, address, stream)
    }

    fn free_block(&self, block: Block, stream: StreamHandle) -> Result<()> {
        Self::free_block(self, block, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        Self::block_at(self, address)
    }

    fn own(&self, block: Block) -> Result<()> {
        self.shared.own(block)
    }

    unsafe fn disown(&self, block: Block) {
        self.shared.disown(block);
    }

    fn device(&self) -> &Arc<dyn Device> {
        Self::device(self)
    }

    fn pool_id(&self) -> Option<PoolId> {
        Some(self.id())
    }

    fn is_capturing(&self) -> bool {
        self.shared.captures.any()
    }

    fn record_use(&self, address: Address, stream: StreamHandle) -> Result<()> {
        Self::record_use(self, address, stream)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shared.is_inherited() {
            return write!(f, "Pool({}, made before the process forked)", self.id());
        }
        let heap = self.shared.heap();
        write!(f, "Pool({}, {} out, {} held)", self.id(), heap.out(), heap.held())
    }
}

/// The heap's path and the slow one, called with what is in registers already.
#[cold]
#[inline(never)]
fn allocate_slowly(shared: &Shared, size: Bytes, stream: StreamHandle) -> Result<Block> {
    shared.birth.check()?;
    let stream = stream.resolved();
    match shared.allocate_from_heap(size, stream) {
        Some(block) => Ok(block),
        None => shared.allocate(Request::new(size, stream)),
    }
}

#[cold]
#[inline(never)]
fn allocate_slowly_for(
    shared: &Shared,
    size: Bytes,
    stream: StreamHandle,
    tag: Tag,
) -> Result<Block> {
    let _tag = tag.enter_unless_tagged();
    allocate_slowly(shared, size, stream)
}

#[cold]
#[inline(never)]
fn free_slowly(
    shared: &Shared,
    address: Address,
    stream: StreamHandle,
    said: ClaimedAs,
) -> Result<()> {
    shared.birth.check()?;
    // No magazine is found by the name that every thread has for its own stream.
    let meant = stream.resolved();
    if meant != stream && shared.free_cached::<true>(address, meant, said) {
        return Ok(());
    }
    let stream = meant;
    if shared.free_to_heap(address, stream, said) {
        return Ok(());
    }
    shared.free(address, stream, &|known| said.check(known, address))
}
