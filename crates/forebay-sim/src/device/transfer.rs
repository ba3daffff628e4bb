//! Copies, fills and simulated kernels.

use std::sync::Arc;

use forebay_core::{Bytes, DeviceOrdinal, Span};
use forebay_hal::{
    Access, Call, Copy, Error, Fill, Location, PointerKind, Result, StreamHandle, Transfers,
};

use super::SimDevice;
use crate::checker::OverlapRule;
use crate::engine::{CopyEnd, CopyPiece, Job, PageRun, Space, Wire, Work};
use crate::finding::Effect;
use crate::kernel::{Kernel, KernelBody, KernelMemory};

/// The most rows of one copy or fill. A copy of a billion single bytes is a mistake, or wants
/// another way; noting each would take all the memory there is.
const MAX_ROWS: usize = 1 << 20;

/// One side of a row, cut where its memory changes.
type CopyEnds = Vec<(CopyEnd, Bytes)>;

impl SimDevice {
    /// The memory behind one side of a row, with its uses noted in `job`.
    fn side(
        &self,
        space: &Space,
        argument: &'static str,
        (place, span): (Location, Span),
        effect: Effect,
        job: &mut Job,
    ) -> Result<CopyEnds> {
        let pieces = match (place, space.book.memory_of(span)) {
            // Host memory that the device knows: pinned or managed.
            (Location::Host(_), Some(block)) => {
                vec![PageRun::of(&block.owner.store, block.span, span)]
            }
            (Location::Host(_), None) if space.book.region_at(span.start()).is_none() => {
                job.host_uses.push((effect, span));
                return Ok(vec![(CopyEnd::Host(span.start()), span.size())]);
            }
            // The device's own, and pages of host memory, which are mapped alike.
            _ => {
                let need = match effect {
                    Effect::Reads => Access::Read,
                    Effect::Writes => Access::ReadWrite,
                };
                space.resolve(Call::Copy, argument, span, need)?
            }
        };
        let mut side = CopyEnds::new();
        for piece in pieces {
            side.push((CopyEnd::Store(Arc::clone(&piece.store), piece.offset), piece.size));
            job.uses.push((effect, self.ordinal, piece));
        }
        Ok(side)
    }

    /// Enqueues a kernel that computes `kernel`'s body over the memory it declared.
    ///
    /// # Safety
    ///
    /// * What it declared is memory of the device, until the kernel is done, and nobody else writes
    ///   what it reads or uses what it writes meanwhile: the host may see the same memory.
    pub unsafe fn launch(&self, kernel: Kernel, stream: StreamHandle) -> Result<()> {
        // SAFETY: as the caller promised.
        unsafe { self.launch_as(Call::Launch, kernel, stream) }
    }

    /// Enqueues a kernel for `call`.
    ///
    /// # Safety
    ///
    /// * As for [`launch`](Self::launch).
    pub(super) unsafe fn launch_as(
        &self,
        call: Call,
        kernel: Kernel,
        stream: StreamHandle,
    ) -> Result<()> {
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let stream = state.stream(call, self.ordinal, stream)?;
        let space = state.space(call, self.ordinal)?;
        let resolve = |spans: &[Span], argument, need| -> Result<Vec<PageRun>> {
            let mut pieces = Vec::new();
            for &span in spans {
                pieces.extend(space.resolve(call, argument, span, need)?);
            }
            Ok(pieces)
        };
        let reads = resolve(&kernel.reads, "reads", Access::Read)?;
        let writes = resolve(&kernel.writes, "writes", Access::ReadWrite)?;
        let tell = |effect| move |piece: &PageRun| (effect, self.ordinal, piece.clone());
        let read = reads.iter().map(tell(Effect::Reads));
        let mut job = Job::named(kernel.name);
        job.manner = OverlapRule::Computes;
        job.uses = read.chain(writes.iter().map(tell(Effect::Writes))).collect();
        job.duration = kernel.duration;
        let body: KernelBody = kernel.body.unwrap_or_else(|| Box::new(|_| {}));
        state.enqueue(stream, job, Work::Kernel(body, KernelMemory { reads, writes }));
        drop(self.engine.relieve(state, stream));
        Ok(())
    }
}

/// Refuses more rows than are sensibly noted one by one.
fn few_enough(call: Call, rows: usize) -> Result<()> {
    if rows <= MAX_ROWS {
        return Ok(());
    }
    let missing = format!("more than {MAX_ROWS} rows at once: the simulation notes each of them");
    Err(Error::Unsupported { call, missing: missing.into() })
}

/// Cuts the two sides of a row to the same lengths.
fn pair(to: CopyEnds, from: CopyEnds, moves: &mut Vec<CopyPiece>) -> Option<()> {
    let (mut to, mut from) = (to.into_iter(), from.into_iter());
    let (mut left, mut right) = (to.next(), from.next());
    while let (Some((to_spot, to_size)), Some((from_spot, from_size))) = (left, right) {
        let size = to_size.min(from_size);
        moves.push(CopyPiece {
            to: to_spot.clone(),
            from: from_spot.clone(),
            size: size.to_usize().ok()?,
        });
        left = rest(to_spot, to_size, size).or_else(|| to.next());
        right = rest(from_spot, from_size, size).or_else(|| from.next());
    }
    Some(())
}

/// What is left of a part after its first `taken` bytes.
fn rest(spot: CopyEnd, size: Bytes, taken: Bytes) -> Option<(CopyEnd, Bytes)> {
    let left = size.checked_sub(taken).filter(|left| !left.is_zero())?;
    let spot = match spot {
        CopyEnd::Host(address) => CopyEnd::Host(address.checked_add(taken)?),
        CopyEnd::Store(store, offset) => CopyEnd::Store(store, offset.checked_add(taken)?),
    };
    Some((spot, left))
}

// SAFETY: rows come from shapes checked when they were made, and are cut by `resolve` to lie in
// live memory of the device; a move copies exactly its bytes. Streams keep their order.
unsafe impl Transfers for SimDevice {
    unsafe fn copy(&self, copy: &Copy, stream: StreamHandle) -> Result<()> {
        let call = Call::Copy;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let stream = state.stream(call, self.ordinal, stream)?;
        if copy.extent().is_empty() {
            return Ok(());
        }
        let costs = state.costs();
        let space = state.space(call, self.ordinal)?;
        few_enough(call, copy.rows().take(MAX_ROWS + 1).count())?;
        let mut job = Job::named(call.name());
        let mut moves = Vec::new();
        for (to, from) in copy.rows() {
            let to = self.side(space, "to", (copy.to(), to), Effect::Writes, &mut job)?;
            let from = self.side(space, "from", (copy.from(), from), Effect::Reads, &mut job)?;
            pair(to, from, &mut moves);
        }
        let pinned =
            [copy.to(), copy.from()].into_iter().filter(|place| place.is_host()).all(|place| {
                let kind = space.book.memory_at(place.address()).map(|block| block.kind.class());
                kind == Some(PointerKind::Pinned) || space.book.region_at(place.address()).is_some()
            });
        job.duration = costs.copy(copy, pinned);
        job.wire = match (copy.from().is_host(), copy.to().is_host()) {
            (true, false) => Some(Wire::In),
            (false, true) => Some(Wire::Out),
            _ => None,
        };
        state.enqueue(stream, job, Work::Moves(moves));
        drop(self.engine.relieve(state, stream));
        Ok(())
    }

    unsafe fn fill(&self, fill: &Fill, stream: StreamHandle) -> Result<()> {
        let call = Call::Fill;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let stream = state.stream(call, self.ordinal, stream)?;
        if fill.extent().is_empty() {
            return Ok(());
        }
        few_enough(call, fill.rows().take(MAX_ROWS + 1).count())?;
        let mut pieces = Vec::new();
        let space = state.space(call, self.ordinal)?;
        for row in fill.rows() {
            pieces.extend(space.resolve(call, "to", row, Access::ReadWrite)?);
        }
        let duration = state.costs().on_device(fill.extent().bytes());
        let uses = pieces.iter().map(|piece| (Effect::Writes, self.ordinal, piece.clone()));
        let mut job = Job::named(call.name());
        job.uses = uses.collect();
        job.duration = duration;
        state.enqueue(stream, job, Work::Fill(pieces, fill.pattern()));
        drop(self.engine.relieve(state, stream));
        Ok(())
    }
}

/// The moves and uses of a copy between two devices.
pub(super) fn peer_moves(
    to: (DeviceOrdinal, Vec<PageRun>),
    from: (DeviceOrdinal, Vec<PageRun>),
) -> (Vec<CopyPiece>, Vec<(Effect, DeviceOrdinal, PageRun)>) {
    let spots = |pieces: &[PageRun]| -> CopyEnds {
        let spot = |piece: &PageRun| CopyEnd::Store(Arc::clone(&piece.store), piece.offset);
        pieces.iter().map(|piece| (spot(piece), piece.size)).collect()
    };
    let mut moves = Vec::new();
    pair(spots(&to.1), spots(&from.1), &mut moves);
    let writes = to.1.into_iter().map(|piece| (Effect::Writes, to.0, piece));
    let reads = from.1.into_iter().map(|piece| (Effect::Reads, from.0, piece));
    (moves, writes.chain(reads).collect())
}
