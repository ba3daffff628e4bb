//! Making room for a request that no hole serves: the ladder of what is tried before it is refused. Holds the backing
//! lock, except while it waits on the host or calls the program.
//!
//! ```text
//!   flush      flush the thread caches into the heap; skipped while they hold next to nothing
//!   deferred   run deferred tasks that are due
//!   nearest    wait, on the device, for the stream that has the best hole
//!   others     wait, on the device, for every stream that has one; with poison both come after grow
//!   grow       create pages, or move free ones, and cut the piece before another request sees them
//!   reclaim    wait on the host, without a lock; release pages that cannot serve the request; grow
//!   ask        ask the program to free memory, without a lock, and begin again
//!   refuse
//! ```

use forebay_core::{Address, Bytes, CallbackBudget};
use forebay_hal::{Call, StreamHandle};

use crate::pool::backing::Backing;
use crate::pool::backing::grow::Wanted;
use crate::pool::common::counts::Source;
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::{Miss, Piece};
use crate::pool::shared::Shared;
use crate::sync::map::{SMALL, Side};
use crate::{Request, Result};

/// Thread caches are not flushed while they hold less than this fraction of the bytes held.
const FLUSH_THRESHOLD_DIVISOR: u64 = 1024;

/// With more streams than this, the pool grows by up to [`CACHED_PER_STREAM`] bytes for each further stream before it
/// flushes the thread caches. A flush would make every stream wait for another at its next request.
const MANY_STREAMS: u64 = 64;
const CACHED_PER_STREAM: u64 = 64 << 10;

/// What a request skips as long as the pool can grow instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Avoided {
    /// Flushing the thread caches.
    flush: bool,
    /// Waiting, on the device, for other streams.
    streams: bool,
}

impl Shared {
    /// Makes room for a piece and returns it. A refused request has changed nothing but where free memory is.
    #[cold]
    #[inline(never)]
    pub(in crate::pool) fn make_room(
        &self,
        piece: Piece,
        request: Request,
        miss: Miss,
        wait: &mut WaitBudget,
    ) -> Result<(Address, Source)> {
        self.climb(piece, request, miss, wait).inspect_err(|_| {
            // Segments that came and could not be used are released at once. The error that led here is the one to
            // report.
            if !self.is_inherited() {
                let _ = self.release_segments(self.deadline(wait));
            }
        })
    }

    /// One rung after another, until one returns the piece.
    fn climb(
        &self,
        piece: Piece,
        request: Request,
        miss: Miss,
        wait: &mut WaitBudget,
    ) -> Result<(Address, Source)> {
        let (stream, size) = (request.stream, piece.whole());
        self.raise_limit_for(size, request)?;
        if miss == Miss::NewStream {
            self.check_stream(stream)?;
        }
        self.recheck_streams(wait);
        let (held, mut callbacks) = (self.held.get(), CallbackBudget::default());
        let mut backing = self.backing();
        backing.reactivate(self.context(), stream);
        let mut avoided = Avoided {
            flush: size <= SMALL && self.caches_hold_little(&backing),
            // With poison, the host waits for the stream before it checks the memory, and so for every stream that this
            // one was made to wait for.
            streams: self.debug.waits_for_stream(),
        };
        // One event makes the holes of the other stream usable, and the far too large hole of the own stream stays whole.
        if miss == Miss::WorthWaiting
            && !avoided.streams
            && let Some(found) = self.wait_for_nearest(&mut backing, piece, stream)
        {
            return Ok((found, Source::Hole));
        }
        loop {
            if let Some(found) = self.use_what_is_held(&mut backing, piece, stream, avoided) {
                return Ok((found, Source::Hole));
            }
            let grown = self.grow(&mut backing, piece, stream, avoided);
            if avoided != Avoided::default() && !matches!(grown, Ok(Some(_))) {
                // With nothing avoided there may be enough. If not, the next round reports it.
                avoided = Avoided::default();
                continue;
            }
            // No lock is held from here on: the work that is waited for may itself wait for a thread that needs one, and
            // a callback may free and allocate.
            drop(backing);
            let found = match grown? {
                Some(found) => Some(found),
                None => self.reclaim(piece, stream, self.deadline(wait))?,
            };
            if let Some(found) = found {
                self.note_growth(piece, stream, held)?;
                return Ok((found, Source::Driver));
            }
            let has_released = self.call_shortage_callbacks(request, size, &mut callbacks);
            // The callback may have forked.
            self.birth.check()?;
            if !has_released {
                return Err(self.shortage(request, size).into());
            }
            backing = self.backing();
        }
    }

    /// Refuses a request of `whole` bytes that is larger than the limit, unless a callback raises the limit: no
    /// reclaiming could make it fit, so caches stay as they are.
    fn raise_limit_for(&self, whole: Bytes, request: Request) -> Result<()> {
        loop {
            let limit = self.group.limits.limit();
            if whole <= limit.min(self.device_total) {
                return Ok(());
            }
            let is_raised = whole <= self.device_total
                && self.call_shortage_callbacks(request, whole, &mut CallbackBudget::default())
                && self.group.limits.limit() > limit;
            // The callback may have forked.
            self.birth.check()?;
            if !is_raised {
                return Err(self.shortage(request, whole).into());
            }
        }
    }

    /// Refuses a stream that the device does not know, when the pool first sees it.
    fn check_stream(&self, stream: StreamHandle) -> Result<()> {
        if self.captures.any() {
            return Ok(());
        }
        let asked = self.log.call(Call::StreamId, || self.device.stream_id(stream));
        match asked {
            Err(error @ forebay_hal::Error::Invalid { .. }) => Err(error.into()),
            Ok(id) if stream.is_per_thread() => {
                self.thread_ends.watch_this_thread(Some(id));
                Ok(())
            }
            // If the device cannot tell now, it reports the stream when it is used.
            _ => Ok(()),
        }
    }

    /// Cuts a piece out of a hole that is free in the order of the stream.
    fn cut(&self, piece: Piece, stream: StreamHandle) -> Option<Address> {
        let mut heap = self.heap();
        let slot = heap.slot_for(stream);
        heap.allocate(piece, slot)
    }

    /// Makes the stream wait, on the device, for the one that has the best hole. Due tasks come first: they cost no wait.
    fn wait_for_nearest(
        &self,
        backing: &mut Backing,
        piece: Piece,
        stream: StreamHandle,
    ) -> Option<Address> {
        let _ = backing.run_deferred(self.context());
        backing.wait_for_nearest(self.context(), piece, stream);
        self.cut(piece, stream)
    }

    /// The rungs before `grow`, the cheapest first: they make memory usable that the pool holds.
    ///
    /// A failure that concerns others (a destroyed stream, deferred work of an earlier request) leaves their memory
    /// where it is and is no error of this request, which is served from elsewhere or refused.
    fn use_what_is_held(
        &self,
        backing: &mut Backing,
        piece: Piece,
        stream: StreamHandle,
        avoided: Avoided,
    ) -> Option<Address> {
        if !avoided.flush {
            self.flush_caches(backing, piece.side() == Side::Large);
            if let Some(found) = self.cut(piece, stream) {
                return Some(found);
            }
        }
        self.take_back(backing, piece.side(), piece.whole());
        let _ = backing.run_deferred(self.context());
        if let Some(found) = self.cut(piece, stream) {
            return Some(found);
        }
        if avoided.streams {
            backing.free_holes_of_idle_streams(self.context());
            return self.cut(piece, stream);
        }
        backing.wait_for_nearest(self.context(), piece, stream);
        if let Some(found) = self.cut(piece, stream) {
            return Some(found);
        }
        backing.wait_for_others(self.context(), piece.side(), stream);
        self.cut(piece, stream)
    }

    /// Creates pages or moves free ones.
    fn grow(
        &self,
        backing: &mut Backing,
        piece: Piece,
        stream: StreamHandle,
        avoided: Avoided,
    ) -> Result<Option<Address>> {
        if piece.side() == Side::Large {
            self.flush_own_small(piece.whole());
        }
        let before = self.held.get();
        let grown = backing.grow(self.context(), Wanted { piece, stream, has_room: false });
        if avoided.flush {
            let more = self.held.get().saturating_sub(before);
            backing.grown_to_avoid_flush = backing.grown_to_avoid_flush.saturating_add(more);
        }
        grown
    }

    /// After the driver made room: reads the pressure, and asks for more ahead of the next request.
    fn note_growth(&self, piece: Piece, stream: StreamHandle, before: Bytes) -> Result<()> {
        self.read_pressure();
        // A callback may have forked.
        self.birth.check()?;
        if piece.side() == Side::Large && self.held.get() > before {
            self.ask_to_grow_ahead(stream);
        }
        Ok(())
    }

    /// Whether all magazines together hold a negligible part of the bytes held, or little for that many streams, and
    /// the pool has not yet grown by more than that to avoid flushing them.
    fn caches_hold_little(&self, backing: &Backing) -> bool {
        let streams = self.heap().slots.count().saturating_sub(MANY_STREAMS);
        let most = (self.held.get().get() / FLUSH_THRESHOLD_DIVISOR)
            .max(streams.saturating_mul(CACHED_PER_STREAM));
        backing.grown_to_avoid_flush.get() < most && self.front.small_held().get() < most
    }

    /// Flushes the small blocks of this thread's magazines before the pool grows by `size` bytes for a large block:
    /// that may free whole pages of the small side, which can be moved. Other threads keep their caches, since growing
    /// must not stop a crowd of them.
    ///
    /// If `size` does not fit beside the blocks in use, the request will be refused, and the magazines stay as they
    /// are.
    fn flush_own_small(&self, size: Bytes) {
        let most = self.group.limits.limit().min(self.device_total);
        let out = {
            let heap = self.heap();
            heap.out().saturating_add(heap.share.others()).saturating_add(size)
        };
        let returns = self.front.flush_own_small(out.saturating_sub(most));
        self.heap().free_all(returns);
    }

    /// Flushes the thread caches into the heap, or only their large blocks: small ones are in another address space, and
    /// help a large request only once whole pages of them are free, which `grow` and `reclaim` handle. Does not wait:
    /// threads that are inside their gate flush at their next entry. Takes the backing, so that none of the streams is
    /// forgotten meanwhile.
    pub(in crate::pool) fn flush_caches(&self, backing: &mut Backing, only_large: bool) {
        let mut returns = self.fill_unclean(backing);
        if only_large {
            self.front.flush_large(&mut returns);
        } else {
            self.front.flush(&mut returns);
        }
        self.heap().free_all(returns);
    }

    /// Flushes all thread caches, and waits for threads that are inside their gate: for callers that need all blocks.
    pub(in crate::pool) fn flush_all_caches(&self, backing: &mut Backing) {
        let mut returns = self.fill_unclean(backing);
        self.front.flush_all(&mut returns);
        self.heap().free_all(returns);
    }
}
