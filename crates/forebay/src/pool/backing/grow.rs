//! Growing: pages for a request that no hole serves, or ahead of it.

use forebay_core::Bytes;
use forebay_core::address_space::{Growth, Streams};
use forebay_hal::StreamHandle;

use crate::pool::backing::deferred::{Task, WorkEnd};
use crate::pool::backing::page_provider::GrowthContext;
use crate::pool::backing::{Backing, PoolContext};
use crate::pool::common::step::{self, Step};
use crate::pool::heap::stream_slots::Serial;
use crate::sync::map::Side;
use crate::{Error, Result};

impl Backing {
    /// Makes a hole of `size` for `stream`. Returns `false` if that is impossible.
    pub(in crate::pool) fn grow(
        &mut self,
        pool: PoolContext<'_>,
        side: Side,
        size: Bytes,
        stream: StreamHandle,
    ) -> Result<bool> {
        let growth = self.growth_for(pool, size);
        step::reach(Step::Growing);
        self.grow_by(pool, (side, size), stream, growth)
    }

    /// Creates pages until the large side has a hole of `size` in the order of `stream`, if that still is the stream
    /// with this serial. It is another thread that calls this, so nothing may be enqueued on the stream.
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
        self.grow_by(pool, (Side::Large, size), stream, growth)
    }

    /// Makes room for a stream, whose slot cannot be taken over meanwhile.
    fn grow_by(
        &mut self,
        pool: PoolContext<'_>,
        of: (Side, Bytes),
        stream: StreamHandle,
        growth: Growth,
    ) -> Result<bool> {
        let (taker, serial) = {
            let mut heap = pool.heap();
            let taker = heap.slot_for(stream);
            // The driver works without the heap lock. Until it is done the number must stay that stream's: pages are
            // placed under it and taken by it.
            heap.frozen = true;
            (taker, heap.slots.serial(taker))
        };
        let made = self.grow_for(pool, of, stream, (taker, serial), growth);
        pool.heap().frozen = false;
        made
    }

    fn grow_for(
        &mut self,
        pool: PoolContext<'_>,
        (side, size): (Side, Bytes),
        stream: StreamHandle,
        (taker, serial): (u32, Option<Serial>),
        mut growth: Growth,
    ) -> Result<bool> {
        let limit = pool.limit;
        // Pages move in the order of a stream, which takes an event.
        growth.moves &= !self.is_stable() && !self.captures.any();
        let fresh = self.fresh.map(|pattern| (pattern, stream));
        let context =
            GrowthContext { heap: pool.heap, map: pool.map, growth: &growth, limit, fresh };
        let mut aliases = Vec::new();
        let (provider, log) = self.provider(side);
        let lane = Streams::only(taker);
        let mut made = provider.grow(context, size, lane, &mut aliases, log);
        if is_shortage(&made) {
            // The device has less than one page of the preferred size; it may have enough of the smallest.
            let mut smallest = growth;
            smallest.largest_page = Bytes::ZERO;
            let context = GrowthContext { growth: &smallest, ..context };
            made = provider.grow(context, size, lane, &mut aliases, log);
        }
        if !aliases.is_empty() {
            // The taker has waited for every stream whose memory it took, so its work so far comes after every use
            // through the old mappings.
            let end = serial.map_or(WorkEnd::Unknown, |serial| WorkEnd::Stream(stream, serial));
            let clear = |alias| Task::ClearAlias(side, alias);
            let tasks: Vec<Task> = aliases.into_iter().map(clear).collect();
            self.defer(pool, &tasks, [end]);
        }
        if is_shortage(&made) { Ok(false) } else { made }
    }
}

/// Whether the device ran out of memory.
fn is_shortage(made: &Result<bool>) -> bool {
    matches!(made, Err(Error::Device(forebay_hal::Error::OutOfMemory { .. })))
}
