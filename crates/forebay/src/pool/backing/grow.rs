//! Growing: adds pages for a request that no hole serves, or ahead of it.

use forebay_core::address_space::Growth;
use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::backing::deferred::{Task, WorkEnd};
use crate::pool::backing::growth::{GrowthContext, Made};
use crate::pool::backing::{Backing, PoolContext};
use crate::pool::common::step::{self, Step};
use crate::pool::heap::Piece;
use crate::pool::heap::serials::Serial;
use crate::sync::map::Side;
use crate::{Error, Result};

/// A request that the pool grows for.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Wanted {
    pub(in crate::pool) piece: Piece,
    pub(in crate::pool) stream: StreamHandle,
    /// Whether the room that was released for a request is for this one.
    pub(in crate::pool) has_room: bool,
}

impl Backing {
    /// Makes a hole for a request and cuts its piece out of it; `None` if that is impossible.
    pub(in crate::pool) fn grow(
        &mut self,
        pool: PoolContext<'_>,
        wanted: Wanted,
    ) -> Result<Option<Address>> {
        let Wanted { piece, stream, has_room } = wanted;
        let growth = self.growth_for(pool, piece.whole());
        step::reach(Step::Growing);
        let made = self.grow_by(pool, (piece.side(), piece.whole()), stream, growth, |context| {
            context.piece = Some(piece);
            context.has_room = has_room;
        });
        Ok(match made? {
            Made::Piece(address) => Some(address),
            Made::Nothing | Made::Room => None,
        })
    }

    /// Creates pages until the large side has a hole of `size` in the order of `stream`, if that still is the stream
    /// with this serial. Another thread calls this, so it must enqueue nothing on the stream.
    pub(in crate::pool) fn grow_ahead(
        &mut self,
        pool: PoolContext<'_>,
        size: Bytes,
        stream: StreamHandle,
        serial: Serial,
    ) -> Result<bool> {
        let is_same = {
            let mut heap = pool.heap();
            heap.slots.get(stream).and_then(|slot| heap.slots.serial(slot)) == Some(serial)
        };
        if !is_same || self.captures.any() || self.fresh.is_some() {
            return Ok(false);
        }
        let mut growth = self.growth_for(pool, size);
        growth.moves = false;
        let made = self.grow_by(pool, (Side::Large, size), stream, growth, |_| {})?;
        Ok(matches!(made, Made::Room))
    }

    /// Grows for a stream, whose slot cannot be taken over meanwhile. `set` says what else is wanted.
    fn grow_by(
        &mut self,
        pool: PoolContext<'_>,
        (side, size): (Side, Bytes),
        stream: StreamHandle,
        mut growth: Growth,
        set: impl FnOnce(&mut GrowthContext<'_>),
    ) -> Result<Made> {
        let (taker, serial) = {
            let mut heap = pool.heap();
            let taker = heap.slot_for(stream);
            // The driver works without the heap lock. Until it is done the number must stay that stream's: pages are
            // placed under it and taken by it.
            heap.frozen = true;
            (taker, heap.slots.serial(taker))
        };
        // Pages move in the order of a stream, which takes an event.
        growth.moves &= !self.is_stable() && !self.captures.any();
        let mut context = GrowthContext {
            heap: pool.heap,
            map: pool.map,
            growth: &growth,
            limit: pool.limit,
            fresh: self.fresh.map(|pattern| (pattern, stream)),
            size,
            taker,
            piece: None,
            has_room: false,
        };
        set(&mut context);
        let mut aliases = Vec::new();
        let (provider, log) = self.provider(side);
        let mut made = provider.grow(context, &mut aliases, log);
        if shortage_of(&made).is_some() {
            // The device has less than one page of the preferred size; it may have enough of the smallest.
            let mut smallest = growth;
            smallest.largest_page = Bytes::ZERO;
            let context = GrowthContext { growth: &smallest, ..context };
            made = provider.grow(context, &mut aliases, log);
        }
        if !aliases.is_empty() {
            // The taker has waited for every stream whose memory it took, so its work so far comes after every use
            // through the old mappings.
            let end = serial.map_or(WorkEnd::Unknown, |serial| WorkEnd::Stream(stream, serial));
            let clear = |alias| Task::ClearAlias(side, alias);
            let tasks: Vec<Task> = aliases.into_iter().map(clear).collect();
            self.defer(pool, &tasks, [end]);
        }
        pool.heap().frozen = false;
        self.refusal = shortage_of(&made).cloned();
        if self.refusal.is_some() { Ok(Made::Nothing) } else { made }
    }
}

/// The refusal, if the device ran out of memory.
fn shortage_of(made: &Result<Made>) -> Option<&forebay_hal::Error> {
    match made {
        Err(Error::Device(refusal @ forebay_hal::Error::OutOfMemory { .. })) => Some(refusal),
        _ => None,
    }
}
