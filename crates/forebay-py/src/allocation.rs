//! An allocation and what backs it.
//!
//! ```text
//!   Buffer ──────────┐                   ┌── a block of a pool, freed in the order of a stream
//!   View ───── Pin ──┤                   ├── a part of an arena, good until the arena takes it back
//!   memoryview Pin ──┼──► Allocation ────┼── pinned host memory
//!   DLPack ─── Pin ──┤                   ├── an array of a pool of pinned memory
//!   a copy ─── Pin ──┘                   ├── a tensor of another library, imported by DLPack
//!                                        ├── a replica of a unified buffer, or a shared buffer
//!                                        └── nothing: it was freed
//! ```
//!
//! A [`Pin`] is one use of the memory. Pinned memory is not freed: `free` returns an error, and a buffer that
//! is dropped leaves its memory to the last pin.

use std::sync::{Arc, Mutex};

use forebay::arena::ArenaToken;
use forebay::hal::PinnedFlags;
use forebay::{Address, Bytes, OwnedBlock, PinnedArray, Pool};
use forebay_sync::fork::{Birth, LeakOnFork};
use forebay_sync::lock;

use crate::failure::Failure;
use crate::gil::MayBlockOnDrop;
use crate::live_blocks::{self, BlockRecord, Origin};
use crate::open_device::{OpenDevice, StreamRef};
use crate::shared_arena::SharedArena;

/// A range of memory, and what it is freed to.
pub(crate) struct Allocation {
    /// Dropped first: the backing is freed in the order of `stream_ref`, which may end with this.
    state: Mutex<State>,
    stream_ref: Arc<StreamRef>,
    device: Arc<OpenDevice>,
    address: Address,
    size: Bytes,
    space: MemorySpace,
    birth: Birth,
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
    pins: usize,
}

/// What keeps memory that is not allocated here, until it is dropped.
type Owner = Box<dyn Send + Sync>;

/// What is freed in the end.
enum Backing {
    /// A block of a pool.
    Block(LeakOnFork<OwnedBlock<Pool>>),
    /// A part of an arena.
    ArenaPart(Arc<SharedArena>, ArenaToken),
    /// Pinned host memory.
    Pinned(LeakOnFork<Pinned>),
    /// An array of a pool of pinned memory.
    PinnedArray(Arc<LeakOnFork<PinnedArray<u8>>>),
    /// A view of a unified buffer's replica. Never read; its drop ends the view.
    Replica(#[allow(dead_code)] Owner),
    /// Another owner of the memory: a tensor of another library, or a shared buffer. Never read; its drop gives the memory
    /// back.
    Foreign(#[allow(dead_code)] Owner),
    /// Nothing: it was freed.
    Freed,
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
        stream_ref.register_pool(pool);
        live_blocks::insert(pool, block.address(), BlockRecord::new(origin));
        let space = if device.is_host() { MemorySpace::HostDevice } else { MemorySpace::Device };
        let (address, size) = (block.address(), block.requested());
        Self::new(
            device,
            stream_ref,
            (address, size, space),
            Backing::Block(LeakOnFork::new(block)),
        )
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
            Failure::Unsupported(format!("{} has no pinned memory", opened.descriptor()))
        })?;
        let address = memory.allocate_pinned(size, flags)?;
        let pinned = LeakOnFork::new(Pinned { device: Arc::clone(device), address });
        let range = (address, size, MemorySpace::Host);
        Ok(Self::new(device, &StreamRef::default_of(device), range, Backing::Pinned(pinned)))
    }

    /// An allocation of an array of a pool of pinned memory.
    pub(crate) fn pinned_array(device: &Arc<OpenDevice>, array: PinnedArray<u8>) -> Arc<Self> {
        let range = (array.address(), Bytes::new(array.len() as u64), MemorySpace::Host);
        let backing = Backing::PinnedArray(Arc::new(LeakOnFork::new(array)));
        Self::new(device, &StreamRef::default_of(device), range, backing)
    }

    /// The array of a pool of pinned memory; `None` for any other memory.
    pub(crate) fn pool_array(&self) -> Option<Arc<LeakOnFork<PinnedArray<u8>>>> {
        self.birth.check().ok()?;
        match &lock(&self.state).backing {
            Backing::PinnedArray(array) => Some(Arc::clone(array)),
            _ => None,
        }
    }

    /// Whether it is host memory that its device copies itself.
    pub(crate) fn is_pinned(&self) -> bool {
        !self.birth.is_elsewhere()
            && matches!(lock(&self.state).backing, Backing::Pinned(_) | Backing::PinnedArray(_))
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
        let state = Mutex::new(State { backing, uses: Vec::new(), pins: 0 });
        Arc::new(Self { state, stream_ref, device, address, size, space, birth: Birth::here() })
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
        !self.birth.is_elsewhere() && matches!(lock(&self.state).backing, Backing::Freed)
    }

    /// Pins the memory; an error where it was freed or taken back.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, Failure> {
        // Before the lock, here and below: in a forked child a thread of the parent may hold it for ever.
        self.birth.check()?;
        let mut state = lock(&self.state);
        match &state.backing {
            Backing::Block(block) => {
                block.get()?;
            }
            Backing::ArenaPart(arena, token) => {
                let (arena, token) = (Arc::clone(arena), *token);
                drop(state);
                return self.pin_part(&arena, token);
            }
            Backing::Pinned(pinned) => {
                pinned.get()?;
            }
            Backing::PinnedArray(array) => {
                array.get()?;
            }
            Backing::Replica(_) | Backing::Foreign(_) => {}
            Backing::Freed => return Err(freed()),
        }
        state.pins = state.pins.saturating_add(1);
        Ok(Pin { allocation: Arc::clone(self) })
    }

    /// Pins a part of an arena. The arena comes first, without the lock here: the thread that holds the
    /// arena's lock may be waiting for the GIL.
    fn pin_part(self: &Arc<Self>, arena: &SharedArena, token: ArenaToken) -> Result<Pin, Failure> {
        arena.pin(token)?;
        let mut state = lock(&self.state);
        if matches!(state.backing, Backing::Freed) {
            arena.unpin();
            return Err(freed());
        }
        state.pins = state.pins.saturating_add(1);
        Ok(Pin { allocation: Arc::clone(self) })
    }

    fn unpin(&self) {
        if self.birth.is_elsewhere() {
            return;
        }
        let mut state = lock(&self.state);
        state.pins = state.pins.saturating_sub(1);
        if let Backing::ArenaPart(arena, _) = &state.backing {
            arena.unpin();
        }
    }

    /// Records that another stream uses the memory. A block is reused only after all work that stream has
    /// when the block is freed; for other backings the own stream waits for the work it has now.
    pub(crate) fn record_use(&self, other: &Arc<StreamRef>) -> Result<(), Failure> {
        self.birth.check()?;
        if let Some(array) = self.pool_array() {
            // The host may use it at any time, so its own stream keeps no order: every use is recorded. As a read,
            // whatever it does, since the array's own accessors are not used.
            return Ok(array.get()?.read_on(other.handle())?);
        }
        let own = self.stream_ref();
        if own.handle() == other.handle() {
            return Ok(());
        }
        {
            let State { backing, uses, .. } = &mut *lock(&self.state);
            if matches!(backing, Backing::Block(_) | Backing::Replica(_)) {
                if uses.iter().all(|known| !Arc::ptr_eq(known, other)) {
                    uses.push(Arc::clone(other));
                }
                return Ok(());
            }
        }
        own.wait_for(other)
    }

    /// Frees the memory in the order of `stream_ref`, after the work of its own stream and of those that use
    /// it. An error while it is pinned.
    pub(crate) fn free(&self, stream_ref: &StreamRef) -> Result<(), Failure> {
        self.birth.check()?;
        let mut state = lock(&self.state);
        if matches!(state.backing, Backing::Freed) {
            return Err(freed());
        }
        if state.pins > 0 {
            let (count, of) = (state.pins, if state.pins == 1 { "view" } else { "views" });
            return Err(Failure::InUse(format!(
                "{count} {of} of the buffer of {} B at {} still live (arrays, memoryviews or DLPack \
                 tensors); delete them first, or delete the buffer and let them keep its memory",
                self.size.get(),
                self.address
            )));
        }
        match core::mem::replace(&mut state.backing, Backing::Freed) {
            Backing::Block(block) => self.free_block(&mut state, block, stream_ref),
            Backing::ArenaPart(..) => Ok(()),
            Backing::Pinned(pinned) => {
                drop(state);
                drop(pinned.take()?);
                Ok(())
            }
            Backing::PinnedArray(array) => {
                drop(state);
                drop(array);
                Ok(())
            }
            Backing::Foreign(owner) => {
                drop(state);
                drop(owner);
                Ok(())
            }
            Backing::Replica(view) => {
                let uses = core::mem::take(&mut state.uses);
                drop(state);
                self.follow_uses(&uses);
                drop(view);
                Ok(())
            }
            Backing::Freed => Err(freed()),
        }
    }

    fn free_block(
        &self,
        state: &mut State,
        block: LeakOnFork<OwnedBlock<Pool>>,
        stream_ref: &StreamRef,
    ) -> Result<(), Failure> {
        let mut block = block.take()?;
        let pool = block.allocator().id();
        stream_ref.register_pool(pool);
        self.record_uses(&mut block, &state.uses);
        // Before the free: right after it another block may have the address.
        let record = live_blocks::remove(pool, self.address);
        let refused = match block.free_on(stream_ref.handle()) {
            Ok(()) => {
                state.uses.clear();
                return Ok(());
            }
            Err(refused) => refused,
        };
        let (mut block, error) = refused.into_parts();
        if is_already_released(&error) {
            // Nothing is left to free: someone else freed the block, or a debugging aid keeps it.
            // SAFETY: no pool frees the block by what this returns, so no free has to wait for its work.
            let _ = unsafe { block.into_raw_unused() };
        } else {
            live_blocks::insert(
                pool,
                self.address,
                record.unwrap_or_else(|| BlockRecord::new(None)),
            );
            // `stream_ref` may end before the next attempt.
            block.set_stream(self.stream_ref().handle());
            state.backing = Backing::Block(LeakOnFork::new(block));
        }
        Err(error.into())
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

fn freed() -> Failure {
    Failure::closed(
        "the buffer was freed; a buffer is good until free(), close() or the end of its with",
    )
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let uses = core::mem::take(&mut state.uses);
        if matches!(state.backing, Backing::Replica(_)) && !self.birth.is_elsewhere() {
            // Before the view ends.
            self.follow_uses(&uses);
        }
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        if !matches!(state.backing, Backing::Block(_)) {
            return;
        }
        let Backing::Block(block) = core::mem::replace(&mut state.backing, Backing::Freed) else {
            return;
        };
        let Ok(mut block) = block.take() else { return };
        live_blocks::remove(block.allocator().id(), self.address);
        self.record_uses(&mut block, &uses);
        // Counted as lost where it cannot be freed. Dropped before `uses`, whose streams may end with it.
        drop(block);
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

/// One use of a [`Allocation`], until it is dropped.
pub(crate) struct Pin {
    allocation: Arc<Allocation>,
}

impl Pin {
    /// The memory.
    pub(crate) fn allocation(&self) -> &Arc<Allocation> {
        &self.allocation
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.allocation.unpin();
    }
}
