//! The arena behind `forebay.Arena` and its buffers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebay::arena::{Arena, ArenaOptions, ArenaToken};
use forebay::{Bytes, Pool};
use forebay_core::BumpGrowth;
use forebay_sync::fork::{Birth, LeakOnFork};
use forebay_sync::lock;

use crate::failure::Failure;
use crate::gil::MayBlockOnDrop;
use crate::open_device::{OpenDevice, StreamRef};

/// An arena that its buffers share, with the count of pins of its memory.
///
/// No thread waits for its lock while it holds the GIL: the thread that holds the lock may be growing the
/// arena, and a pool without memory calls Python's `on_shortage`.
pub(crate) struct SharedArena {
    /// `None` once it was closed. Dropped first: its memory is freed in the order of `stream_ref`, which may
    /// end with this.
    arena: Mutex<Option<LeakOnFork<Arena<Pool>>>>,
    stream_ref: Arc<StreamRef>,
    device: Arc<OpenDevice>,
    birth: Birth,
    /// Incremented under the arena's lock; decremented at any time.
    pins: AtomicUsize,
}

impl SharedArena {
    /// An arena of `capacity` bytes over `pool`, which grows to `most` where that is said.
    pub(crate) fn new(
        device: &Arc<OpenDevice>,
        pool: Pool,
        stream_ref: Arc<StreamRef>,
        (capacity, most): (Bytes, Option<Bytes>),
    ) -> Result<Self, Failure> {
        let options = ArenaOptions::new(capacity);
        let options = match most {
            Some(most) => options.growth(BumpGrowth::Doubling { most }),
            None => options,
        };
        stream_ref.register_pool(pool.id());
        let arena = Mutex::new(Some(LeakOnFork::new(options.build(pool, stream_ref.handle())?)));
        let (device, birth, pins) = (Arc::clone(device), Birth::here(), AtomicUsize::new(0));
        Ok(Self { arena, stream_ref, device, birth, pins })
    }

    /// Its device.
    pub(crate) fn device(&self) -> &Arc<OpenDevice> {
        &self.device
    }

    /// The stream in whose order it is used.
    pub(crate) fn stream_ref(&self) -> &Arc<StreamRef> {
        &self.stream_ref
    }

    /// Pins a part; an error where it was taken back.
    pub(crate) fn pin(&self, token: ArenaToken) -> Result<(), Failure> {
        self.with(|arena| {
            let _valid = arena.get()?.resolve(token)?;
            self.pins.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self) {
        self.pins.fetch_sub(1, Ordering::Relaxed);
    }

    /// Calls `work` with the arena, under its lock.
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut LeakOnFork<Arena<Pool>>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        // Before the lock: in a forked child a thread of the parent may hold it for ever.
        self.birth.check()?;
        match &mut *lock(&self.arena) {
            Some(arena) => work(arena),
            None => Err(closed()),
        }
    }

    /// Calls `work`, which takes parts back. An error while any part is pinned.
    pub(crate) fn take_back<R>(
        &self,
        work: impl FnOnce(&mut Arena<Pool>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.with(|arena| {
            self.check_idle()?;
            work(arena.get_mut()?)
        })
    }

    /// Frees all memory to the pool, once.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.birth.check()?;
        let mut arena = lock(&self.arena);
        if arena.is_some() {
            self.check_idle()?;
        }
        match arena.take() {
            Some(arena) => Ok(arena.take()?.close()?),
            None => Ok(()),
        }
    }

    fn check_idle(&self) -> Result<(), Failure> {
        match self.pins.load(Ordering::Relaxed) {
            0 => Ok(()),
            pins => Err(Failure::InUse(format!(
                "the arena's buffers still have {pins} live views (arrays, memoryviews or DLPack \
                 tensors); delete them first"
            ))),
        }
    }
}

fn closed() -> Failure {
    Failure::closed("the arena was closed, and its buffers with it")
}

impl MayBlockOnDrop for Arc<SharedArena> {
    fn may_block(&self) -> bool {
        // Only the last reference frees the memory, and with it perhaps the pool, which waits for the device.
        Self::strong_count(self) == 1
    }
}
