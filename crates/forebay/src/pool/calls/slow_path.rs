//! The slow path of a request that no hole serves: the ladder of what is tried before it is refused. Holds the backing
//! lock, except while it waits on the host or calls the program.
//!
//! ```text
//!   flush      flush the thread caches into the heap; skipped while they hold next to nothing
//!   deferred   run deferred tasks that are due
//!   nearest    wait, on the device, for the stream that has the best hole
//!   others     wait, on the device, for every stream that has one; with poison both come after grow
//!   grow       create pages, or move free ones, and cut the piece before another request sees them
//!   idle       wait on the host, without a lock; release pages that cannot serve the request; grow
//!   callback   ask the program to free memory, without a lock
//!   refuse
//! ```

use forebay_core::{Address, Avoided, Bytes, CallbackBudget, Ladder, Rung};
use forebay_hal::{Call, StreamHandle};

use crate::pool::backing::Backing;
use crate::pool::backing::grow::Wanted;
use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::{Heap, Piece};
use crate::pool::shared::Shared;
use crate::sync::map::{SMALL, Side, UNIT_SHIFT};
use crate::sync::tracked::Guard;
use crate::{Request, Result};

/// Thread caches are not flushed while they hold less than this fraction of the bytes held.
const FLUSH_THRESHOLD_DIVISOR: u64 = 1024;

/// With more streams than this, the pool grows by up to [`CACHED_PER_STREAM`] bytes for each further stream before it
/// flushes the thread caches. A flush would make every stream wait for another at its next request.
const MANY_STREAMS: u64 = 64;
const CACHED_PER_STREAM: u64 = 64 << 10;

/// Where the memory of a block came from.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) enum Source {
    /// A hole: the pool held it already.
    Hole,
    /// The driver, for this request.
    Driver,
}

/// The state of a request on the ladder.
struct Attempt {
    piece: Piece,
    request: Request,
    ladder: Ladder,
    callbacks: CallbackBudget,
}

impl Shared {
    /// Allocates a piece of the heap, or of memory that can be brought into it.
    pub(in crate::pool) fn allocate_piece(
        &self,
        piece: Piece,
        request: Request,
        wait: &mut WaitBudget,
    ) -> Result<(Address, Source)> {
        let (side, size, stream) = (piece.side(), piece.whole(), request.stream);
        let from_hole = |heap: &mut Heap| {
            let slot = heap.slot_for(stream);
            heap.allocate(piece, slot)
        };
        let worth_waiting = {
            let mut heap = self.heap();
            match heap.slots.get(stream) {
                Some(slot) if heap.worth_waiting(side, size, slot) => true,
                Some(slot) => {
                    if let Some(found) = heap.allocate(piece, slot) {
                        return Ok((found, Source::Hole));
                    }
                    false
                }
                None => {
                    drop(heap);
                    self.check_stream(stream)?;
                    false
                }
            }
        };
        self.recheck_streams(wait);
        let mut backing = self.backing();
        backing.reactivate(self.context(), stream);
        let avoided = Avoided {
            flush: size <= SMALL && self.caches_hold_little(&backing),
            // With poison, the host waits for the stream before it checks the memory, and so for every stream that this
            // one was made to wait for.
            streams: self.debug.waits_for_stream(),
        };
        if worth_waiting && !avoided.streams {
            // Due tasks first: they cost no wait. Then one event makes the holes of the other stream usable, and the
            // far too large hole of the own stream stays whole.
            for rung in [Rung::Deferred, Rung::Nearest] {
                backing.run_rung(self.context(), rung, (side, size), stream);
            }
            let mut heap = self.heap();
            if let Some(found) = from_hole(&mut heap) {
                return Ok((found, Source::Hole));
            }
        }
        let held = self.held.get();
        let (ladder, callbacks) = (Ladder::new(avoided), CallbackBudget::default());
        let mut attempt = Attempt { piece, request, ladder, callbacks };
        loop {
            let made;
            (backing, made) = self.try_rung(backing, &mut attempt, wait)?;
            if let Some(found) = made {
                drop(backing);
                self.read_pressure();
                // A callback may have forked.
                self.birth.check()?;
                if side == Side::Large && self.held.get() > held {
                    self.ask_to_grow_ahead(stream);
                }
                return Ok((found, Source::Driver));
            }
            if let Some(found) = from_hole(&mut self.heap()) {
                return Ok((found, Source::Hole));
            }
        }
    }

    /// Runs the current rung and moves the ladder. Returns the piece if the rung made room for it; otherwise the caller
    /// looks in the heap.
    fn try_rung<'a>(
        &'a self,
        mut backing: Guard<'a, Backing>,
        attempt: &mut Attempt,
        wait: &mut WaitBudget,
    ) -> Result<(Guard<'a, Backing>, Option<Address>)> {
        let (piece, request) = (attempt.piece, attempt.request);
        let (side, size, stream) = (piece.side(), piece.whole(), request.stream);
        let avoided = attempt.ladder.avoided();
        let mut made = None;
        match attempt.ladder.rung() {
            Rung::FlushCaches => {
                if !avoided.flush && side == Side::Large {
                    self.flush_large(&mut backing);
                } else if !avoided.flush {
                    self.flush_caches(&mut backing);
                }
                attempt.ladder.advance();
            }
            Rung::Nearest if avoided.streams => {
                backing.free_holes_of_idle_streams(self.context());
                attempt.ladder.advance();
            }
            Rung::Others if avoided.streams => attempt.ladder.advance(),
            Rung::Deferred => {
                self.take_back(&mut backing, side, size);
                backing.run_rung(self.context(), Rung::Deferred, (side, size), stream);
                attempt.ladder.advance();
            }
            rung @ (Rung::Nearest | Rung::Others) => {
                backing.run_rung(self.context(), rung, (side, size), stream);
                attempt.ladder.advance();
            }
            Rung::Grow => {
                if side == Side::Large {
                    self.flush_own_small(size);
                }
                let before = self.held.get();
                let grown = backing.grow(self.context(), Wanted { piece, stream, has_room: false });
                if avoided.flush {
                    let more = self.held.get().saturating_sub(before);
                    backing.grown_to_avoid_flush =
                        backing.grown_to_avoid_flush.saturating_add(more);
                }
                match grown {
                    Ok(Some(found)) => made = Some(found),
                    Ok(None) => attempt.ladder.advance(),
                    // With no rung skipped there may be enough. If not, the next attempt reports it.
                    Err(_) if avoided != Avoided::default() => attempt.ladder.restart(),
                    Err(error) => return Err(error),
                }
            }
            Rung::Idle => {
                // No lock is held: the work that is waited for may itself wait for a thread that needs one.
                drop(backing);
                let deadline = self.deadline(wait);
                made = self.reclaim(piece, stream, deadline)?;
                backing = self.backing();
                attempt.ladder.advance();
            }
            Rung::Callback => {
                // No lock is held: the callback may free and allocate.
                drop(backing);
                let let_go = self.call_shortage_callbacks(request, size, &mut attempt.callbacks);
                // The callback may have forked.
                self.birth.check()?;
                backing = self.backing();
                if let_go { attempt.ladder.memory_released() } else { attempt.ladder.advance() }
            }
            _ => {
                drop(backing);
                return Err(self.shortage(request, size).into());
            }
        }
        Ok((backing, made))
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

    /// Whether all magazines together hold a negligible part of the bytes held, or little for that many streams, and
    /// the pool has not yet grown by more than that to avoid flushing them.
    fn caches_hold_little(&self, backing: &Backing) -> bool {
        let streams = self.heap().slots.count().saturating_sub(MANY_STREAMS);
        let most = (self.held.get().get() / FLUSH_THRESHOLD_DIVISOR)
            .max(streams.saturating_mul(CACHED_PER_STREAM));
        if backing.grown_to_avoid_flush.get() >= most {
            return false;
        }
        let mut units = 0_u64;
        self.thread_caches.measure(|caches| units = units.saturating_add(caches.small_held()));
        units << UNIT_SHIFT < most
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
        let mut returns = Vec::new();
        self.with_own_caches(|caches| {
            let cached = Bytes::new(caches.small_held() << UNIT_SHIFT);
            if out.saturating_sub(cached) <= most {
                caches.drain(&mut returns);
            }
        });
        self.heap().free_all(returns);
    }

    /// Flushes the large blocks of this thread's magazine for `stream`: merged with their neighbours they may form the
    /// lower hole.
    pub(in crate::pool) fn flush_own_large(&self, stream: StreamHandle) {
        let mut returns = Vec::new();
        self.with_own_caches(|caches| {
            if let Some(cache) = caches.of(stream) {
                cache.drain(|side| side == Side::Large, &mut returns);
            }
        });
        self.return_to_heap(returns);
    }

    /// Flushes all thread caches into the heap. Does not wait: threads that are inside their gate flush at their next
    /// entry. Takes the backing, so that none of the streams is forgotten meanwhile.
    pub(in crate::pool) fn flush_caches(&self, backing: &mut Backing) {
        let mut returns = self.fill_unclean(backing);
        self.thread_caches.drain(|caches| caches.drain(&mut returns));
        self.heap().free_all(returns);
    }

    /// Flushes only large blocks. Small ones are in another address space, and help a large request only once whole
    /// pages of them are free, which a later rung handles.
    fn flush_large(&self, backing: &mut Backing) {
        let mut returns = self.fill_unclean(backing);
        self.thread_caches.change(|caches| caches.drain_large(&mut returns));
        self.heap().free_all(returns);
    }

    /// Flushes all thread caches, and waits for threads that are inside their gate: for callers that need all blocks.
    pub(in crate::pool) fn flush_all_caches(&self, backing: &mut Backing) {
        let mut returns = self.fill_unclean(backing);
        self.thread_caches.drain_all(|caches| caches.drain(&mut returns));
        self.heap().free_all(returns);
    }
}
