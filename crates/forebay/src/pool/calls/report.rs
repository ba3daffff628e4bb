//! The reports of a pool: on a refused request, and on a drop with live blocks.

use forebay_core::address_space::AddressSpace;
use forebay_core::{Bytes, CallbackBudget};

use crate::pool::common::callback_guard::{Callback, CallbackGuard};
use crate::pool::common::counts::Counts;
use crate::pool::common::sizes::Sizes;
use crate::pool::inner::PoolInner;
use crate::report::{self, DropReport, Shortage};
use crate::sync::map::{SMALL, Side};
use crate::{MemoryClass, Request};

/// The most tags that a report names.
const OWNERS: usize = 4;

/// The most pages of a side that are looked at for a report. Each takes about 50 ns, under the heap lock.
const MAX_PAGES: usize = 20_000;

/// The figures of the pool for a refused request that needs `needed` contiguous bytes. Takes the heap lock once, so
/// that all figures are of one moment.
#[cold]
pub(in crate::pool) fn shortage(pool: &PoolInner, request: Request, needed: Bytes) -> Shortage {
    let info = pool.source.memory_info().unwrap_or_default();
    let mut heap = pool.heap();
    let (counts, cached) = pool.census(&mut heap);
    let sum = counts.sum();
    let space = heap.spaces.of(Side::of(request.size));
    let (held, live) = (heap.held(), sum.live());
    let free_pages = match pool.options.class.contains(MemoryClass::STABLE) {
        true => Bytes::ZERO,
        false => free_pages(heap.spaces.of(Side::Small))
            .saturating_add(free_pages(heap.spaces.of(Side::Large))),
    };
    let mut shortage = Shortage {
        requested: request.size,
        needed,
        limit: pool.group.limits.limit(),
        free_pages,
        held,
        held_by_group: heap.ledger.share.others(),
        live,
        cached,
        free: held.saturating_sub(live),
        largest_free: space.holes().largest(),
        device_free: info.free,
        held_elsewhere: info.total.saturating_sub(info.free).saturating_sub(held),
        owners: owners(&sum),
        ..Shortage::default()
    };
    let granule = pool.granule.alignment();
    let new_pages = needed.checked_align_up(granule).unwrap_or(Bytes::MAX);
    // A smaller request may be one of the small side.
    let hole = match shortage.largest_free > SMALL {
        true => shortage.largest_free,
        false => heap.spaces.of(Side::Small).holes().largest().min(SMALL),
    };
    drop(heap);
    shortage.explain(new_pages, granule, hole);
    shortage.fits = request_within(pool, shortage.fits, request, needed);
    shortage
}

/// The largest size whose request needs no more than `room`, if one like `request` needs `needed`.
fn request_within(pool: &PoolInner, room: Bytes, request: Request, needed: Bytes) -> Bytes {
    let rounded = pool.sizes.round(request.size).max(request.size);
    let room = room.saturating_sub(needed.saturating_sub(rounded));
    let fits = |size: &Bytes| {
        let rounded = pool.sizes.round(*size);
        Sizes::is_possible(*size, rounded) && rounded <= room
    };
    // Size classes are multiples of an eighth of a power of two, or powers of two.
    let power = room.get().checked_ilog2().map_or(0, |bit| 1_u64 << bit);
    let classes = [room.get() & !511, room.get() / (power / 8).max(1) * (power / 8), power];
    classes.map(Bytes::new).into_iter().find(fits).unwrap_or_default()
}

/// Calls the program's shortage callbacks, unless the request has called them in vain too often. Returns whether any
/// of them released memory.
pub(super) fn call_shortage_callbacks(
    pool: &PoolInner,
    request: Request,
    needed: Bytes,
    budget: &mut CallbackBudget,
) -> bool {
    if pool.options.shortage_callbacks.is_empty() {
        return false;
    }
    // A callback may allocate. If that request fails too, the callbacks of this pool are not called again from
    // within; those of another pool are.
    let Some(_asking) = CallbackGuard::begin(pool.id, Callback::Shortage) else { return false };
    let shortage = shortage(pool, request, needed);
    if !budget.may_call(room_of(&shortage)) {
        return false;
    }
    // Calls all of them, whether or not the first released anything.
    let asked = pool
        .options
        .shortage_callbacks
        .iter()
        .map(|let_go| pool.callbacks.call(|| let_go(&shortage)));
    asked.filter(|&released| released == Some(true)).count() > 0
}

/// The report of the blocks that are still live; `None` if there are none.
pub(in crate::pool) fn drop_report(pool: &PoolInner) -> Option<DropReport> {
    let (counts, _) = pool.census(&mut pool.heap());
    let sum = counts.sum();
    let blocks = sum.all().blocks.live();
    if blocks == 0 {
        return None;
    }
    let (bytes, largest) = report::largest(pool.map.live_blocks(), DropReport::MAX);
    let live_of = |counts: &Counts| counts.all().blocks.live();
    let streams = counts.streams.iter().map(|(&stream, counts)| (stream, live_of(counts)));
    let streams = streams.filter(|&(_, blocks)| blocks > 0 && blocks < u64::MAX / 2).collect();
    let owners = owners(&sum);
    Some(DropReport { pool: pool.id, blocks, bytes, owners, streams, largest })
}

/// The bytes of whole pages that are free; none if there are too many pages to look at under the lock.
fn free_pages(space: &AddressSpace) -> Bytes {
    if space.page_table().page_count() > MAX_PAGES {
        return Bytes::ZERO;
    }
    space.free_pages().fold(Bytes::ZERO, |sum, (_, size)| sum.saturating_add(size))
}

/// The bytes that the pool could have in blocks beside those that are live, by its limit and by the device.
fn room_of(shortage: &Shortage) -> Bytes {
    let Shortage { limit, held, held_by_group, device_free, live, .. } = *shortage;
    let most = held.saturating_add(device_free).min(limit.saturating_sub(held_by_group));
    most.saturating_sub(live)
}

/// Live bytes by tag, the most first. Beyond a few tags the rest is one entry.
fn owners(sum: &Counts) -> Vec<(String, Bytes)> {
    let mut owners: Vec<_> = sum.by_tag().map(|(tag, live)| (tag.name(), live)).collect();
    owners.sort_by(|one, two| two.1.cmp(&one.1).then_with(|| one.0.cmp(&two.0)));
    if owners.len() > OWNERS + 1 {
        let rest = owners.split_off(OWNERS);
        let bytes = rest.iter().fold(Bytes::ZERO, |sum, (_, bytes)| sum.saturating_add(*bytes));
        owners.push((format!("{} other tags", rest.len()), bytes));
    }
    owners
}
