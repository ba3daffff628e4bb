//! An allocation and what backs it.
//!
//! ```text
//!   Buffer ──────────┐                   ┌── a block of a pool, freed in the order of a stream
//!   Array ──── Pin ──┤                   ├── a part of an arena, good until the arena takes it back
//!   memoryview Pin ──┼──► Allocation ────┼── pinned host memory
//!   DLPack ─── Pin ──┤                   ├── an array of a pool of pinned memory
//!   a copy ─── Pin ──┘                   ├── a tensor of another library, imported by DLPack
//!                                        ├── a replica of a unified buffer, or a shared buffer
//!                                        └── nothing: it was freed
//! ```
//!
//! A [`Pin`] is one use of the memory. Pinned memory is not freed: `free` returns an error, and a buffer that
//! is dropped leaves its memory to the last pin.

use std::sync::Arc;

use forebay::arena::ArenaToken;
use forebay::bindings::{Counted, CountedError};
use forebay::hal::PinnedFlags;
use forebay::{Address, Bytes, OwnedBlock, PinnedArray, Pool};

use crate::failure::Failure;
use crate::gil::MayBlockOnDrop;
use crate::live_blocks::{self, BlockRecord, Origin};
use crate::open_device::{OpenDevice, StreamRef};
use crate::shared_arena::SharedArena;

/// A range of memory, and what it is freed to.
pub(crate) struct Allocation {
    /// Dropped first: the backing is freed in the order of `stream_ref`, which may end with this.
    state: Counted<State>,
    stream_ref: Arc<StreamRef>,
    device: Arc<OpenDevice>,
    address: Address,
    size: Bytes,
    space: MemorySpace,
}

/// Which processor can use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemorySpace {
    /// The host. Device copies treat it as host memory.
    Host,
    /// The host and the device: memory of the host device.
    HostDevice,
    /// The device alone.
    Device,
}

struct State {
    backing: Backing,
    /// Other streams whose work uses the block. They live at least until it is freed.
    uses: Vec<Arc<StreamRef>>,
}

/// What keeps memory that is not allocated here, until it is dropped.
type Owner = Box<dyn Send + Sync>;

/// What is freed in the end.
enum Backing {
    /// A block of a pool.
    Block(OwnedBlock<Pool>),
    /// A part of an arena.
    ArenaPart(Arc<SharedArena>, ArenaToken),
    /// Pinned host memory.
    Pinned(#[allow(dead_code)] Pinned),
    /// An array of a pool of pinned memory.
    PinnedArray(Arc<PinnedArray<u8>>),
    /// A view of a unified buffer's replica. Never read; its drop ends the view.
    Replica(#[allow(dead_code)] Owner),
    /// Another owner of the memory: a tensor of another library, or a shared buffer. Never read; its drop gives the memory
    /// back.
    Foreign(#[allow(dead_code)] Owner),
}

/// Pinned host memory, freed when dropped.
struct Pinned {
    device: Arc<OpenDevice>,
    address: Address,
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Ok(device) = self.device.opened() else { return };
        // Copies to and from it may still run on streams that were never synchronised.
        let idle = device.synchronize_device();
        if let (Ok(()), Some(pinned)) = (idle, device.pinned_memory()) {
            // SAFETY: this value owns the memory, and all work that could use it is done. Where the device
            // refuses, the memory is leaked.
            let _ = unsafe { pinned.free_pinned(self.address) };
        }
    }
}

impl Allocation {
    /// An allocation of a block of a pool, used in the order of a stream.
    pub(crate) fn block(
        device: &Arc<OpenDevice>,
        stream_ref: &Arc<StreamRef>,
        block: OwnedBlock<Pool>,
        origin: Option<Origin>,
    ) -> Arc<Self> {
        let pool = block.allocator().id();
        live_blocks::insert(pool, block.address(), BlockRecord::new(origin));
        let space = if device.is_host() { MemorySpace::HostDevice } else { MemorySpace::Device };
        let (address, size) = (block.address(), block.requested());
        Self::new(device, stream_ref, (address, size, space), Backing::Block(block))
    }

    /// An allocation of a part of an arena.
    pub(crate) fn part(arena: &Arc<SharedArena>, address: Address, token: ArenaToken) -> Arc<Self> {
        let (device, stream_ref) = (arena.device(), arena.stream_ref());
        let space = if device.is_host() { MemorySpace::HostDevice } else { MemorySpace::Device };
        let backing = Backing::ArenaPart(Arc::clone(arena), token);
        Self::new(device, stream_ref, (address, token.size, space), backing)
    }

    /// Allocates pinned host memory.
    pub(crate) fn pinned(
        device: &Arc<OpenDevice>,
        size: Bytes,
        flags: PinnedFlags,
    ) -> Result<Arc<Self>, Failure> {
        let opened = device.opened()?;
        let memory = opened.pinned_memory().ok_or_else(|| {
            Failure::unsupported(format!("{} has no pinned memory", opened.descriptor()))
        })?;
        let address = memory.allocate_pinned(size, flags)?;
        let pinned = Pinned { device: Arc::clone(device), address };
        let range = (address, size, MemorySpace::Host);
        Ok(Self::new(device, &StreamRef::default_of(device), range, Backing::Pinned(pinned)))
    }

    /// An allocation of an array of a pool of pinned memory.
    pub(crate) fn pinned_array(device: &Arc<OpenDevice>, array: PinnedArray<u8>) -> Arc<Self> {
        let range = (array.address(), Bytes::new(array.len() as u64), MemorySpace::Host);
        let backing = Backing::PinnedArray(Arc::new(array));
        Self::new(device, &StreamRef::default_of(device), range, backing)
    }

    /// What `look` finds in the backing; `None` where it was freed.
    fn look<R>(&self, look: impl FnOnce(&Backing) -> R) -> Option<R> {
        self.state.with(|state| Ok::<_, Failure>(look(&state.backing))).ok()
    }

    /// The array of a pool of pinned memory; `None` for any other memory.
    pub(crate) fn pool_array(&self) -> Option<Arc<PinnedArray<u8>>> {
        let array = |backing: &Backing| match backing {
            Backing::PinnedArray(array) => Some(Arc::clone(array)),
            _ => None,
        };
        self.look(array)?
    }

    /// The pool that it is a block of; `None` for any other memory.
    pub(crate) fn pool(&self) -> Option<Pool> {
        let pool = |backing: &Backing| match backing {
            Backing::Block(block) => Some(block.allocator().clone()),
            _ => None,
        };
        self.look(pool)?
    }

    /// Whether it is host memory that its device copies itself.
    pub(crate) fn is_pinned(&self) -> bool {
        let is_pinned =
            |backing: &Backing| matches!(backing, Backing::Pinned(_) | Backing::PinnedArray(_));
        self.look(is_pinned).unwrap_or(false)
    }

    /// An allocation of memory that `owner` keeps: a tensor of another library, or a shared buffer.
    pub(crate) fn foreign(
        device: &Arc<OpenDevice>,
        range: (Address, Bytes, MemorySpace),
        owner: impl Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::new(device, &StreamRef::default_of(device), range, Backing::Foreign(Box::new(owner)))
    }

    /// An allocation of a unified buffer's replica, which `view` keeps.
    pub(crate) fn replica(
        device: &Arc<OpenDevice>,
        stream_ref: &Arc<StreamRef>,
        range: (Address, Bytes, MemorySpace),
        view: impl Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::new(device, stream_ref, range, Backing::Replica(Box::new(view)))
    }

    fn new(
        device: &Arc<OpenDevice>,
        stream_ref: &Arc<StreamRef>,
        (address, size, space): (Address, Bytes, MemorySpace),
        backing: Backing,
    ) -> Arc<Self> {
        let (device, stream_ref) = (Arc::clone(device), Arc::clone(stream_ref));
        let state = Counted::new("buffer", State { backing, uses: Vec::new() });
        Arc::new(Self { state, stream_ref, device, address, size, space })
    }

    /// The device that it belongs to.
    pub(crate) fn device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    /// The stream in whose order it is used; the default stream once that one was forgotten.
    pub(crate) fn stream_ref(&self) -> Arc<StreamRef> {
        self.stream_ref.live_or_default()
    }

    /// Its first address; null for no bytes. Valid while it is pinned.
    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// How large it is.
    pub(crate) fn size(&self) -> Bytes {
        self.size
    }

    /// Which processor can use its address.
    pub(crate) fn space(&self) -> MemorySpace {
        self.space
    }

    /// Whether `free` was called. A part that its arena took back does not count as freed.
    pub(crate) fn is_freed(&self) -> bool {
        self.state.is_closed()
    }

    /// Pins the memory; an error where it was freed or taken back.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, Failure> {
        let part = self.state.with(|state| match &state.backing {
            Backing::ArenaPart(arena, token) => Ok(Some((Arc::clone(arena), *token))),
            _ => Ok::<_, CountedError>(None),
        });
        // The arena comes first, and not within a call here: the thread that uses the arena may be waiting for the GIL.
        let mut pin = Pin { allocation: Arc::clone(self), arena: None, counted: false };
        if let Some((arena, token)) = part.map_err(freed)? {
            arena.pin(token)?;
            pin.arena = Some(arena);
        }
        self.state.pin(|_| Ok(())).map_err(freed)?;
        pin.counted = true;
        Ok(pin)
    }

    /// Records that another stream uses the memory. A block is reused only after all work that stream has
    /// when the block is freed; for other backings the own stream waits for the work it has now.
    pub(crate) fn record_use(&self, other: &Arc<StreamRef>) -> Result<(), Failure> {
        if let Some(array) = self.pool_array() {
            // The host may use it at any time, so its own stream keeps no order: every use is recorded. As a read,
            // whatever it does, since the array's own accessors are not used.
            return Ok(array.read_on(other.handle())?);
        }
        let own = self.stream_ref();
        if own.handle() == other.handle() {
            return Ok(());
        }
        let is_kept = self.state.with(|State { backing, uses }| {
            let keeps = matches!(backing, Backing::Block(_) | Backing::Replica(_));
            if keeps && uses.iter().all(|known| !Arc::ptr_eq(known, other)) {
                uses.push(Arc::clone(other));
            }
            Ok::<_, CountedError>(keeps)
        });
        if is_kept.map_err(freed)? { Ok(()) } else { own.wait_for(other) }
    }

    /// Frees the memory in the order of `stream_ref`, after the work of its own stream and of those that use
    /// it. An error while it is pinned.
    pub(crate) fn free(&self, stream_ref: &StreamRef) -> Result<(), Failure> {
        let mut turn = self.state.take_unpinned().map_err(freed)?;
        let State { backing, uses } = turn.remove().map_err(freed)?;
        match backing {
            Backing::Block(block) => {
                let (left, freed) = self.free_block(block, &uses, stream_ref);
                if let Some(block) = left {
                    turn.put(State { backing: Backing::Block(block), uses });
                }
                freed
            }
            backing => {
                // First: dropping the backing may need the GIL, whose holder may wait for its turn.
                drop(turn);
                self.drop_backing(backing, &uses);
                Ok(())
            }
        }
    }

    /// Drops any backing but a block.
    fn drop_backing(&self, backing: Backing, uses: &[Arc<StreamRef>]) {
        if matches!(backing, Backing::Replica(_)) {
            // Before the view ends.
            self.follow_uses(uses);
        }
        drop(backing);
    }

    /// Frees a block. Returns it where it is still to be freed.
    fn free_block(
        &self,
        mut block: OwnedBlock<Pool>,
        uses: &[Arc<StreamRef>],
        stream_ref: &StreamRef,
    ) -> (Option<OwnedBlock<Pool>>, Result<(), Failure>) {
        let pool = block.allocator().id();
        self.record_uses(&mut block, uses);
        // Before the free: right after it another block may have the address.
        let record = live_blocks::remove(pool, self.address);
        let refused = match block.free_on(stream_ref.handle()) {
            Ok(()) => return (None, Ok(())),
            Err(refused) => refused,
        };
        let (mut block, error) = refused.into_parts();
        if is_already_released(&error) {
            // Nothing is left to free: someone else freed the block, or a debugging aid keeps it.
            // SAFETY: no pool frees the block by what this returns, so no free has to wait for its work.
            let _ = unsafe { block.into_raw_unused() };
            return (None, Err(error.into()));
        }
        let record = record.unwrap_or_else(|| BlockRecord::new(None));
        live_blocks::insert(pool, self.address, record);
        // `stream_ref` may end before the next attempt.
        block.set_stream(self.stream_ref().handle());
        (Some(block), Err(error.into()))
    }

    /// Makes the own stream wait for the others that use the memory, so that a wait for it is a wait for all.
    fn follow_uses(&self, uses: &[Arc<StreamRef>]) {
        let own = self.stream_ref();
        for other in uses {
            let other = other.live_or_default();
            if own.wait_for(&other).is_err() {
                let _ = other.synchronize();
            }
        }
    }

    /// Makes the free of a block wait for its own stream and for the others that use it; the default stream
    /// stands in for those that were forgotten.
    fn record_uses(&self, block: &mut OwnedBlock<Pool>, uses: &[Arc<StreamRef>]) {
        block.set_stream(self.stream_ref().handle());
        for stream_ref in uses.iter().chain([&self.stream_ref]) {
            block.used_on(stream_ref.live_or_default().handle());
        }
    }
}

/// Whether a block could not be freed because its handle does not own it any more.
fn is_already_released(error: &forebay::Error) -> bool {
    use forebay::Error;
    error.is_finding()
        || matches!(
            error,
            Error::NotABlock { .. }
                | Error::DoubleFree { .. }
                | Error::StaleBlock { .. }
                | Error::PoolGone { .. }
                | Error::WrongPool { .. }
        )
}

/// Says of a buffer until when it is good.
fn freed(error: CountedError) -> Failure {
    match error {
        CountedError::Closed(_) => Failure::closed(
            "the buffer was freed; a buffer is good until free(), close() or the end of its with",
        ),
        error => error.into(),
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // No pin is left, since each refers to this. In a forked child the memory is the parent's.
        let Ok(State { backing, uses }) = self.state.close() else { return };
        match backing {
            Backing::Block(mut block) => {
                live_blocks::remove(block.allocator().id(), self.address);
                self.record_uses(&mut block, &uses);
                // Counted as lost where it cannot be freed. Dropped before `uses`, whose streams may end with it.
                drop(block);
            }
            backing => self.drop_backing(backing, &uses),
        }
    }
}

impl MayBlockOnDrop for Arc<Allocation> {
    fn may_block(&self) -> bool {
        // Only the last reference frees the memory, and a freed allocation may hold the last reference to
        // its stream.
        Self::strong_count(self) == 1
            && !(self.is_freed() && Arc::strong_count(&self.stream_ref) > 1)
    }
}

impl MayBlockOnDrop for Pin {
    fn may_block(&self) -> bool {
        self.allocation.may_block()
    }
}

impl MayBlockOnDrop for Arc<Pin> {
    fn may_block(&self) -> bool {
        Self::strong_count(self) == 1 && (**self).may_block()
    }
}

/// One use of a [`Allocation`], until it is dropped.
pub(crate) struct Pin {
    allocation: Arc<Allocation>,
    /// The arena that it is a part of, which is pinned too.
    arena: Option<Arc<SharedArena>>,
    /// Whether the allocation counts it.
    counted: bool,
}

impl Pin {
    /// The memory.
    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.counted {
            self.allocation.state.unpin();
        }
        if let Some(arena) = &self.arena {
            arena.unpin();
        }
    }
}
