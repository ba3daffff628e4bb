//! Whether a request could be served if all work were done and all freed memory came back. Asked before the pool waits
//! for the device and gives up caches. Takes the backing lock and the heap lock, without driver calls.
//!
//! ```text
//!   [ free | cached | live ]    a page in use: its free bytes serve requests that fit between its blocks
//!   [ free | deferred | free ]  a page that becomes free: it can be moved, or returned to the device
//! ```
//!
//! An outline of the address spaces counts all memory that may come back as free. That takes time proportional to the
//! pages, whatever the number of holes, under the pool's locks; it can save a wait for the device and every cached
//! page. Only a request that is smaller than a page goes through all holes.

use forebay_core::address_space::{Offset, Outline};
use forebay_core::{Bytes, Span};

use crate::MemoryClass;
use crate::pool::common::step::{self, Step};
use crate::pool::heap::Piece;
use crate::pool::inner::PoolInner;
use crate::sync::map::Side;

/// A pool as it would be if everything that may come back did.
struct Feasibility {
    /// The outline of the request's side.
    own: Outline,
    /// Whether it consists of pages, as opposed to segments.
    maps_pages: bool,
    /// The most that this address space may hold by the limit of the pool.
    limit: Bytes,
    /// Bytes that the device would get back from elsewhere.
    given_up: Bytes,
}

/// Whether `size` bytes are out of reach even with all that is free, all that may come back, and all that the limit and
/// the device still allow. Cached blocks count as free if `with_caches` is set.
pub(super) fn is_infeasible(pool: &PoolInner, piece: Piece, with_caches: bool) -> bool {
    let size = piece.whole();
    let Some(feasibility) = feasibility(pool, piece.side(), size, with_caches) else {
        return false;
    };
    if !feasibility.can_serve(size, feasibility.limit) {
        return true;
    }
    // The device is asked only if the limit alone does not decide.
    let Ok(info) = pool.source.memory_info() else { return false };
    let room = info.free.saturating_add(feasibility.given_up);
    let most = feasibility.own.backed_bytes().saturating_add(room);
    !feasibility.can_serve(size, feasibility.limit.min(most))
}

/// The pool as it would be; `None` if it would have a hole of `size` bytes.
///
/// Thread caches are looked at twice, before and under the locks, and a block that was in one at either time counts.
/// So a request is refused only if the memory was too little all the time: a block may go from one cache, and
/// another come to a cache that was looked at already.
fn feasibility(
    pool: &PoolInner,
    side: Side,
    size: Bytes,
    with_caches: bool,
) -> Option<Feasibility> {
    let mut returning: Vec<Span> = Vec::new();
    let mut look = || {
        if with_caches {
            pool.front.all.add_spans(&mut returning);
        }
    };
    look();
    step::reach(Step::Estimating);
    let mut backing = pool.backing();
    let heap = pool.heap();
    look();
    returning.extend(backing.deferred.returns().map(|block| block.span()));
    pool.debug.add_withheld(&mut returning);
    let returned = |of: Side| {
        let spans = returning.iter().filter(|span| Side::of(span.size()) == of);
        let mut ranges: Vec<(Offset, Offset)> =
            spans.map(|span| (span.start().get(), span.end().get())).collect();
        ranges.sort_unstable();
        // A block that was seen twice may have been merged or split meanwhile.
        ranges.dedup_by(|next, last| {
            let overlaps = next.0 < last.1;
            if overlaps {
                last.1 = last.1.max(next.1);
            }
            overlaps
        });
        ranges
    };
    // Stable memory is neither moved nor released.
    let moves = !pool.options.class.contains(MemoryClass::STABLE);
    let space = |of: Side| heap.spaces.of(of);
    let own_returned = returned(side);
    let own = Outline::new(space(side), &own_returned, moves);
    if size <= own.largest_page() && space(side).holes().would_fit(size, &own_returned) {
        return None;
    }
    let other = if side == Side::Small { Side::Large } else { Side::Small };
    let others = Outline::new(space(other), &returned(other), moves).movable_bytes();
    let given_up = others.saturating_add(heap.ledger.outgoing());
    let held_elsewhere = heap.held().saturating_sub(own.backed_bytes()).saturating_sub(given_up);
    let held_elsewhere = held_elsewhere.saturating_add(heap.ledger.share.others());
    let maps_pages = backing.provider(side).0.maps_pages;
    let limit = pool.group.limits.limit().saturating_sub(held_elsewhere);
    Some(Feasibility { own, maps_pages, limit, given_up })
}

impl Feasibility {
    /// Whether `size` bytes can be had if the address space may hold `limit`.
    fn can_serve(&self, size: Bytes, limit: Bytes) -> bool {
        if self.maps_pages {
            self.own.could_fit(size, limit)
        } else {
            self.own.could_add(size, limit)
        }
    }
}
