//! Copies between pageable host memory and the device through pinned memory.
//!
//! Each piece of such a copy is a host task, which copies between the caller's memory and a staging buffer, and a
//! driver copy between the buffer and the device. On one stream they alternate. So a large copy is spread over side
//! streams, each with its own staging buffer: while a thread fills one, others are filled or sent.
//!
//! ```text
//!   stream    ... work ]──┬───────────────────────────────────────────────┬─[ work ...
//!   side 0                ├─[ fill 0 ][ send 0 ][ fill 2 ][ send 2 ] ... ─┤
//!   side 1                └─[ fill 1 ][ send 1 ][ fill 3 ][ send 3 ] ... ─┘
//! ```
//!
//! The side streams begin where the stream is when the copy is enqueued, and later work of the stream waits for them.
//! All waits happen on the device, so the copy keeps its place in the stream's order and the caller does not wait. Side
//! streams keep their staging buffers: 16 MiB of pinned memory with one copy in flight at a time, 64 MiB at most.

use forebay_core::Bytes;
use forebay_core::transfer::{CopyEnd, CopyShape, Piece};
use forebay_hal::{self as hal, EventKind, Result};
use forebay_sync::lock;

use crate::cancel::CancelToken;
use crate::device::CudaDevice;
use crate::event::EventCore;
use crate::piece::{WAITS, copy_here, enqueue_gathered, enqueue_plane};
use crate::staging::MAX;
use crate::stream::{StreamCore, TaskLane};
use crate::sys::Outcome;

/// From how many bytes on a copy is spread: two full staging buffers.
const SPREAD: Bytes = Bytes::new(2 * MAX.get());

/// A side stream of one copy, and the event by which the copy's stream will wait for it.
struct SideStream {
    core: StreamCore,
    end: EventCore,
}

impl CudaDevice {
    /// A copy between pageable host memory and the device. Where it fails half way nothing of it touches the host's memory
    /// any more.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy`.
    pub(crate) unsafe fn copy_staged(
        &self,
        copy: &hal::Copy,
        shape: &CopyShape,
        core: &StreamCore,
    ) -> Result<()> {
        let recall = CancelToken::default();
        let sides = if shape.bytes() >= SPREAD { self.fork(core) } else { Vec::new() };
        let cores = sides.iter().map(|side| &side.core);
        let cores: Vec<&StreamCore> = if sides.is_empty() { vec![core] } else { cores.collect() };
        // SAFETY: as the caller promised; it is called off where it fails.
        let outcome = unsafe { self.enqueue_staged(shape, copy.from().is_host(), &cores, &recall) };
        if outcome.is_err() {
            recall.call_off();
        }
        // Copies between the staging buffers and the device are not called off, and have their place in the order, too.
        let joined = self.join(core, sides);
        outcome.map_err(|refusal| self.copy_refused(copy, refusal)).and(joined)
    }

    /// Side streams for a copy on `core`, which begin where it is now. None where it cannot be spread.
    fn fork(&self, core: &StreamCore) -> Vec<SideStream> {
        let pools = self.pools;
        let at_once = pools.sides.at_once();
        if at_once < 2 || !self.context.has_tasks() || self.may_be_captured(core) {
            return Vec::new();
        }
        let Ok(begin) = pools.events.take_recorded(core.raw) else { return Vec::new() };
        let side = || {
            let end = pools.events.take(EventKind::Order, 0).ok()?;
            let core = pools.sides.take()?;
            // One without a staging buffer is no use: where little memory can be pinned, there are fewer.
            let staged = self.stage(MAX, &core, &mut lock(&core.lane()));
            if staged.is_err() || begin.hold_back(core.raw).is_err() {
                pools.sides.put_back([core]);
                return None;
            }
            Some(SideStream { core, end })
        };
        core::iter::from_fn(side).take(at_once).collect()
    }

    /// Makes later work of `core` wait for the side streams.
    fn join(&self, core: &StreamCore, sides: Vec<SideStream>) -> Result<()> {
        let mut outcome = Ok(());
        for SideStream { core: side, end } in sides {
            let join = || end.record(side.raw).and_then(|()| end.hold_back(core.raw));
            let mut joined = join();
            for _ in 1..WAITS {
                joined = joined.or_else(|_| join());
            }
            if let Err(refusal) = joined {
                outcome = outcome.and(self.wait_for_parts(refusal, 1, &side));
            }
            self.pools.sides.put_back([side]);
        }
        outcome
    }

    /// Enqueues the pieces of a copy, on these streams in turn.
    ///
    /// # Safety
    ///
    /// * As for `Transfers::copy`, or `recall` is called off where this fails.
    unsafe fn enqueue_staged(
        &self,
        shape: &CopyShape,
        host_is_source: bool,
        cores: &[&StreamCore],
        recall: &CancelToken,
    ) -> Outcome {
        let lanes: Vec<_> = cores.iter().map(|core| core.lane()).collect();
        // Held to the end: the calls of two copies must not mix, since they use the same stage.
        let mut lanes: Vec<_> = cores.iter().zip(lanes.iter().map(|lane| lock(lane))).collect();
        let room = shape.bytes().min(MAX);
        let mut outcome =
            lanes.iter_mut().try_for_each(|(core, lane)| self.stage(room, core, lane));
        for (turn, piece) in shape.pieces(room, self.max_pitch).enumerate() {
            let count = lanes.len();
            let Some((core, lane)) = lanes.get_mut(turn % count).filter(|_| outcome.is_ok()) else {
                break;
            };
            // SAFETY: as the caller promised.
            outcome = unsafe { self.enqueue_piece(&piece, host_is_source, core, lane, recall) };
        }
        lanes.iter_mut().for_each(|(core, lane)| core.end_lane(lane, &self.pools.stages));
        outcome
    }

    /// Sees to it that `lane` has a staging buffer of at least `room`.
    fn stage(&self, room: Bytes, core: &StreamCore, lane: &mut TaskLane) -> Outcome {
        if lane.stage.as_ref().is_none_or(|stage| stage.size < room) {
            let stage = self.pools.stages.take(room)?;
            if let Some(old) = lane.stage.replace(stage) {
                self.pools.stages.retire(old, core.raw);
            }
        }
        Ok(())
    }

    /// Enqueues a piece through the staging buffer of `lane`, which is there and has room.
    ///
    /// # Safety
    ///
    /// * As for [`enqueue_staged`](Self::enqueue_staged).
    unsafe fn enqueue_piece(
        &self,
        piece: &Piece,
        host_is_source: bool,
        core: &StreamCore,
        lane: &mut TaskLane,
        recall: &CancelToken,
    ) -> Outcome {
        let Some(stage) = lane.stage.as_mut() else { return Ok(()) };
        let gathers = !host_is_source && self.gathers(piece.rows);
        let gathered = gathers.then(|| stage.device_memory(self.context)).flatten();
        let stage = stage.address;
        let packed = CopyEnd { start: stage, row: piece.width, slice: 0 };
        let (device, host) =
            if host_is_source { (piece.to, piece.from) } else { (piece.from, piece.to) };
        let (into, out_of) = if host_is_source { (packed, host) } else { (host, packed) };
        let rows = Piece { to: into, from: out_of, ..*piece };
        // SAFETY: the host's rows are valid until the copy is done or called off, as the caller
        // promised, and the stage has room for the piece and is this stream's alone.
        let task = recall.task(move || unsafe { copy_here(&rows) });
        let (to, from) = if host_is_source { (device, packed) } else { (packed, device) };
        let wire = Piece { to, from, ..*piece };
        let send = || {
            self.context.call(|table| match gathered {
                Some(start) => enqueue_gathered(table, &wire, start, core.raw),
                None => enqueue_plane(table, &wire, core.raw),
            })
        };
        if host_is_source {
            self.enqueue_own(task, piece.bytes(), core.raw, lane)?;
            send()
        } else {
            send()?;
            self.enqueue_own(task, piece.bytes(), core.raw, lane)
        }
    }
}
