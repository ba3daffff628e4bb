//! Whether a request could be served if all work were over and all that was freed came back: what is asked
//! before the device is waited for and caches are given up.
//!
//! ```text
//!   [ free | cached | live ]    a page in use: its free bytes serve requests that fit between its blocks
//!   [ free | put off | free ]   a page that comes free: it can be moved, or given to the device
//! ```
//!
//! The address spaces are copied, what may come back is given to the copies, and a plan is made there as it would be
//! made in the end. The copies take time that grows with the holes, under the pool's locks; they can save a wait
//! for the device and every cached page. With more than [`MOST_HOLES`] holes no copy is made.

use forebay_core::address_space::{AddressSpace, Growth, Plan, PlanError, Streams};
use forebay_core::{Bytes, Span};

use crate::MemoryClass;
use crate::pool::front::cached_block::FreedBlock;
use crate::pool::shared::Shared;
use crate::sync::map::Side;

/// How many holes are too many to copy.
const MOST_HOLES: usize = 20_000;

/// A pool as it would be if all came back that may.
struct Feasibility {
    /// The address space of the request's side.
    own: AddressSpace,
    /// Whether it is made of pages, as opposed to segments.
    maps_pages: bool,
    growth: Growth,
    /// The most that space may hold by the limit of the pool.
    limit: Bytes,
    /// Bytes that the device gets back from elsewhere.
    given_up: Bytes,
    /// The bytes of segments in the address space that could go back.
    whole: Bytes,
}

impl Shared {
    /// Whether all there is would not do for `size` bytes: what is free, what may come back, and what the
    /// limit and the device still allow.
    pub(in crate::pool) fn is_infeasible(&self, side: Side, size: Bytes) -> bool {
        let Some(feasibility) = self.feasibility(side) else { return false };
        if !feasibility.can_serve(size, feasibility.limit) {
            return true;
        }
        // The device is asked only where the limit leaves it open.
        let Ok(info) = self.device.memory_info() else { return false };
        let room = info.free.saturating_add(feasibility.given_up);
        let most = feasibility.own.backed_bytes().saturating_add(room);
        !feasibility.can_serve(size, feasibility.limit.min(most))
    }

    /// The pool as it would be; `None` where it has too many holes for that to be seen.
    fn feasibility(&self, side: Side) -> Option<Feasibility> {
        let mut returning: Vec<Span> = Vec::new();
        // Before anything is locked: a thread may be stopped inside its magazines. What is given out
        // meanwhile is hoped for in vain, and what has come to the heap is a hole there.
        self.thread_caches.each(|caches| {
            for cache in caches.all().filter(|cache| cache.magazine.held() > 0) {
                let stream = cache.stream;
                let out = |kept, units| returning.push(FreedBlock::of(kept, units, stream).span());
                // Drains a copy: the blocks stay in the thread's cache.
                cache.magazine.clone().drain(|_| true, out);
            }
        });
        let mut backing = self.backing();
        let heap = self.heap();
        if heap.small.space.hole_count().max(heap.large.space.hole_count()) > MOST_HOLES {
            return None;
        }
        returning.extend(backing.deferred.returns().map(|block| block.span()));
        self.debug.add_withheld(&mut returning);
        let reclaimed_space = |of: Side| {
            let mut space = match of {
                Side::Small => heap.small.space.clone(),
                Side::Large => heap.large.space.clone(),
            };
            // Old mappings and pages on their way out are gone by then.
            backing.deferred.cleared(of).for_each(|at| _ = space.clear_alias(at));
            space.record_idle(Streams::ALL);
            for span in returning.iter().filter(|span| Side::of(span.size()) == of) {
                // What came back since it was noted is a hole already.
                let _ = space.free(span.start().get(), span.size(), Streams::ALL);
            }
            space
        };
        // In stable memory nothing is moved, and nothing of either side is given up.
        let stable = self.options.class.contains(MemoryClass::STABLE);
        let own = reclaimed_space(side);
        let (whole, others) = if stable {
            (Bytes::ZERO, Bytes::ZERO)
        } else {
            let other = if side == Side::Small { Side::Large } else { Side::Small };
            (own.free_whole_pages(), reclaimed_space(other).free_whole_pages())
        };
        let given_up = others.saturating_add(heap.outgoing);
        let held_elsewhere =
            heap.held().saturating_sub(own.backed_bytes()).saturating_sub(given_up);
        let mut growth = backing.growth;
        // Where pages are not moved they go to the device, and come back elsewhere.
        growth.moves = !stable;
        let maps_pages = backing.provider(side).0.maps_pages;
        let limit = self.limits.limit().saturating_sub(held_elsewhere);
        Some(Feasibility { own, maps_pages, growth, limit, given_up, whole })
    }
}

impl Feasibility {
    /// Whether there is a way to `size` bytes where the address space may hold `limit`.
    fn can_serve(&self, size: Bytes, limit: Bytes) -> bool {
        if !self.maps_pages {
            // One segment, in which there is room or which is new.
            let limit = limit.saturating_add(self.whole);
            return self.own.largest_hole() >= size
                || Plan::segment(&self.own, size, &self.growth, limit).is_some();
        }
        // Everything is free for all by now: any stream will do. More addresses can be had.
        let can_plan = |space: &AddressSpace, growth: &Growth| {
            let plan = Plan::make(space, size, Streams::only(0), growth, limit);
            !matches!(plan, Err(PlanError::Limit))
        };
        if can_plan(&self.own, &self.growth) {
            return true;
        }
        // Pages that are free are given up then, and smaller ones come beside what is partly in use.
        let mut removed = self.own.clone();
        let pages: Vec<u64> = removed.free_pages().map(|page| page.0).collect();
        for at in pages {
            let _ = removed.remove_page(at).and_then(|_| removed.clear_alias(at));
        }
        let mut smallest = self.growth;
        smallest.largest_page = Bytes::ZERO;
        can_plan(&removed, &self.growth) || can_plan(&removed, &smallest)
    }
}
