//! Restores the live blocks of a pool to an earlier list, for programs that replay graphs from a checkpoint. Checks and
//! claims everything under the heap lock before anything changes.
//!
//! ```text
//!   live     [ a ]   [ b ]      [ c ]        a stays, b and c are freed
//!   kept     [ a ]      [ d  ]       [ e ]   d and e are allocated where they were
//! ```

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{Call, StreamHandle};

use crate::pool::calls::{flush, note, put};
use crate::pool::common::counts::Source;
use crate::pool::common::event::RawEvent;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::debug;
use crate::pool::heap::Heap;
use crate::pool::heap::thread_ends::is_ending;
use crate::pool::inner::PoolInner;
use crate::pool::views::snapshot::still_live;
use crate::report::{EventAction, Stack};
use crate::sync::map::{BlockState, LARGEST, Side, Slot, UNIT_SHIFT, is_wide, tagged};
use crate::{Error, Result, Tag, host_vec};

/// A block that [`Pool::restore`](crate::Pool::restore) brings back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeptBlock {
    /// Its address.
    pub address: Address,
    /// Its size, after rounding up.
    pub size: Bytes,
    /// The size that was requested.
    pub requested: Bytes,
    /// The tag it was allocated under.
    pub tag: Tag,
    /// The stream it was allocated on.
    pub stream: StreamHandle,
}

impl KeptBlock {
    fn end(&self) -> u64 {
        self.address.get().saturating_add(self.size.get())
    }

    fn refused(&self, reason: &'static str) -> Error {
        Error::NotRestorable { address: self.address, size: self.size, reason }
    }

    /// Whether a pool could have a block of this form.
    fn is_well_formed(&self) -> bool {
        let Self { address, size, requested, .. } = *self;
        let unit = Alignment::BLOCK;
        let is_whole = address.is_aligned_to(unit) && size.get().is_multiple_of(unit.get());
        let added = size.saturating_sub(requested);
        // Only rounding to powers of two adds that much.
        let is_rounded = !is_wide(added) || size.get().is_power_of_two();
        let is_sized = !requested.is_zero() && requested <= size && size <= LARGEST;
        is_whole && is_rounded && is_sized && address.checked_add(size).is_some()
    }
}

/// A live block that is not on the list.
struct Removed<'a> {
    slot: &'a Slot,
    known: BlockState,
    /// To be freed in the order of its stream.
    block: FreedBlock,
}

/// The live blocks, lowest first, each on the stream that `stream_of` says.
pub(in crate::pool) fn kept_blocks(
    pool: &PoolInner,
    stream_of: &dyn Fn(Address) -> StreamHandle,
) -> Vec<KeptBlock> {
    let kept = live_by_address(pool).into_iter().map(|(address, known)| KeptBlock {
        address,
        size: known.size(),
        requested: Bytes::new(known.requested()),
        tag: Tag::of(known),
        stream: stream_of(address),
    });
    kept.collect()
}

fn live_by_address(pool: &PoolInner) -> Vec<(Address, BlockState)> {
    if pool.is_from_parent() {
        return Vec::new();
    }
    let live = pool.map.live_blocks();
    let mut live: Vec<(Address, BlockState)> = still_live(&pool.map, &live).collect();
    live.sort_unstable_by_key(|&(address, _)| address);
    live
}

/// Makes `kept` the live blocks of the pool, or, with an error, changes nothing.
pub(in crate::pool) fn restore(
    pool: &PoolInner,
    kept: &[KeptBlock],
    stream_of: &dyn Fn(Address) -> StreamHandle,
) -> Result<()> {
    pool.fork_generation.check()?;
    // Their blocks are surrounded or followed by memory that a list of blocks does not show.
    if let Some(setting) = debug::conflicts_with_capture(&pool.settings()) {
        return Err(Error::CaptureRefused { setting });
    }
    let mut kept = host_vec::copied(kept, Call::Allocate)?;
    kept.sort_unstable_by_key(|block| block.address);
    let mut end = 0;
    for block in &mut kept {
        if !block.is_well_formed() {
            return Err(block.refused("no block has such an address, size or request"));
        }
        if block.address.get() < end {
            return Err(block.refused("it is on the list twice, or overlaps another"));
        }
        end = block.end();
        block.stream = block.stream.resolved();
    }
    // Tries again if another thread meanwhile freed a block that was to be freed here.
    while !try_restore(pool, &kept, stream_of)? {}
    Ok(())
}

/// Returns `false`, with nothing changed, if another thread freed a block first.
fn try_restore(
    pool: &PoolInner,
    kept: &[KeptBlock],
    stream_of: &dyn Fn(Address) -> StreamHandle,
) -> Result<bool> {
    flush::flush_all_caches(pool, &mut pool.backing());
    let live = live_by_address(pool);
    let is_kept = |address: Address, size: Bytes| {
        let found = kept.binary_search_by_key(&address, |block| block.address).ok();
        found.and_then(|index| kept.get(index)).is_some_and(|block| block.size == size)
    };
    let mut removed = Vec::new();
    for &(address, known) in live.iter().filter(|(at, known)| !is_kept(*at, known.size())) {
        if known.owned() {
            return Err(Error::Owned { address });
        }
        let slot = pool.map.slot(address).ok_or(Error::NotABlock { address })?;
        let stream = stream_of(address).resolved();
        put::watch_own_stream(pool, stream);
        let block = FreedBlock { address, size: known.size(), stream };
        removed.push(Removed { slot, known, block });
    }
    let is_live = |block: &&KeptBlock| {
        let found = live.binary_search_by_key(&block.address, |&(address, _)| address).ok();
        found.and_then(|index| live.get(index)).is_some_and(|(_, it)| it.size() == block.size)
    };
    let missing: Vec<&KeptBlock> = kept.iter().filter(|block| !is_live(block)).collect();
    let mut heap = pool.heap();
    if let Some(block) = missing.iter().find(|block| !is_vacant(&heap, &removed, block)) {
        return Err(block.refused(
            "not all of this memory is free: its pages are gone, a block that stays is there, or other work \
             uses it",
        ));
    }
    if let Some(failed) = removed.iter().position(|one| !one.slot.claim(one.known)) {
        removed.iter().take(failed).for_each(|one| one.slot.unclaim(one.known));
        return Ok(false);
    }
    for &Removed { known, block, .. } in &removed {
        if known.used_elsewhere() {
            continue;
        }
        if is_ending(block.stream) {
            heap.free_unknown(block);
        } else {
            heap.free_all(vec![block]);
        }
        let counts = heap.counts_of(block.stream);
        counts.count_free(known.units(), known.requested(), known.tag());
    }
    for block in &missing {
        allocate_kept(pool, &mut heap, block);
    }
    drop(heap);
    for one in removed.iter().filter(|one| one.known.used_elsewhere()) {
        put::return_used(pool, one.block);
        pool.front.count(one.block.stream, |counts| {
            counts.count_free(one.known.units(), one.known.requested(), one.known.tag());
        });
    }
    note_restored(pool, &removed, &missing);
    Ok(true)
}

/// Allocates a block where it was. The memory there is free.
fn allocate_kept(pool: &PoolInner, heap: &mut Heap, block: &KeptBlock) {
    let &KeptBlock { address, size, requested, tag, stream } = block;
    let taken = heap.allocate_at(address, size);
    debug_assert!(taken, "{size} at {address} was found free just now");
    // The map has a slot for every address in the address spaces.
    if let Some(slot) = pool.map.slot(address).filter(|_| taken) {
        slot.mark_live(address, size, tagged(requested, tag.number()));
        let (source, units) = (Source::Hole, size.get() >> UNIT_SHIFT);
        heap.counts_of(stream).count_allocation(source, units, requested.get(), tag.number());
    }
}

/// Records the events, if events are recorded.
fn note_restored(pool: &PoolInner, removed: &[Removed<'_>], missing: &[&KeptBlock]) {
    if pool.front.is_plain() {
        return;
    }
    for one in removed {
        note::note_free(pool, one.block.address, one.known, one.block.stream);
    }
    for &&KeptBlock { address, size, requested, tag, stream } in missing {
        pool.debug.add_live(size);
        let known = pool.map.slot(address).and_then(|slot| slot.state_at(address));
        let generation = known.map_or(0, |known| known.generation());
        let (action, stack) = (EventAction::Allocate, Stack::NONE);
        note::note(pool, RawEvent { action, address, generation, requested, stream, tag, stack });
    }
}

/// Whether all memory of `block` is free, or will be when the blocks of `removed` are freed. A block that further streams
/// use is free only later.
fn is_vacant(heap: &Heap, removed: &[Removed<'_>], block: &KeptBlock) -> bool {
    let space = heap.spaces.of(Side::of(block.size));
    let (mut at, end) = (block.address.get(), block.end());
    if !space.holes().is_backed(at, end) {
        return false;
    }
    let removed_end = |at: u64| {
        let above = removed.partition_point(|one| one.block.address.get() <= at);
        let around = above.checked_sub(1).and_then(|index| removed.get(index))?;
        if around.known.used_elsewhere() {
            return None;
        }
        Some(around.block.address.get().saturating_add(around.block.size.get()))
    };
    while at < end {
        match space.holes().around(at).map(|hole| hole.1).or_else(|| removed_end(at)) {
            Some(next) if next > at => at = next,
            _ => return false,
        }
    }
    true
}
