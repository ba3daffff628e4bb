//! The arena behind `forebay.Arena` and its buffers.

use std::sync::Arc;

use forebay::arena::{Arena, ArenaOptions, ArenaToken, BumpGrowth};
use forebay::bindings::{Counted, CountedError};
use forebay::{Bytes, Pool};

use crate::failure::Failure;
use crate::gil::MayBlockOnDrop;
use crate::open_device::{OpenDevice, StreamRef};

/// An arena that its buffers share, with the count of pins of its memory.
///
/// No thread waits for it while it holds the GIL: the thread that uses it may be growing it, and a pool without memory calls
/// Python's `on_shortage`.
pub(crate) struct SharedArena {
    /// Dropped first: its memory is freed in the order of `stream_ref`, which may end with this.
    arena: Counted<Arena<Pool>>,
    stream_ref: Arc<StreamRef>,
    device: Arc<OpenDevice>,
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
        let arena = Counted::new("arena", options.build(pool, stream_ref.handle())?);
        Ok(Self { arena, stream_ref, device: Arc::clone(device) })
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
        self.arena.pin(|arena| Ok(arena.resolve(token).map(|_| ())?))
    }

    /// Ends a pin.
    pub(crate) fn unpin(&self) {
        self.arena.unpin();
    }

    /// Calls `work` with the arena, which no other call uses meanwhile.
    pub(crate) fn with<R>(
        &self,
        work: impl FnOnce(&mut Arena<Pool>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        self.arena.with(work)
    }

    /// Calls `work`, which takes parts back. An error while any part is pinned.
    pub(crate) fn take_back<R>(
        &self,
        work: impl FnOnce(&mut Arena<Pool>) -> Result<R, Failure>,
    ) -> Result<R, Failure> {
        work(self.arena.take_unpinned()?.value()?)
    }

    /// Frees all memory to the pool, once.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        match self.arena.close() {
            Ok(arena) => Ok(arena.close()?),
            Err(CountedError::Closed(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl MayBlockOnDrop for Arc<SharedArena> {
    fn may_block(&self) -> bool {
        // Only the last reference frees the memory, and with it perhaps the pool, which waits for the device.
        Self::strong_count(self) == 1
    }
}
