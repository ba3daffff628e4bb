//! Planning growth within the limit: what a plan takes from the device is reserved before any page is created, since
//! other pools may share the limit.

use forebay_core::Bytes;
use forebay_core::address_space::{Plan, PlanError, Streams};

use crate::Result;
use crate::pool::backing::page_provider::{GrowthContext, PageProvider, Planned};
use crate::pool::common::log::CallLog;
use crate::pool::heap::SideHeap;
use crate::sync::tracked::lock;

/// How often a growth is planned anew because another pool of the group took what was left.
const MOST_PLANS: usize = 64;

impl PageProvider {
    /// Plans a growth, and reserves what it takes from the device. `None` if the limit or the addresses do not allow
    /// it.
    pub(super) fn plan_growth(
        &mut self,
        context: GrowthContext<'_>,
        size: Bytes,
        taker: Streams,
        log: &CallLog,
    ) -> Result<Option<Planned>> {
        let mut heap = lock(context.heap);
        for _ in 0..MOST_PLANS {
            let elsewhere = heap.held().saturating_add(heap.share.others());
            let side_heap = heap.side_heap(self.side);
            let elsewhere = elsewhere.saturating_sub(side_heap.space.backed_bytes());
            let limit = context.limit.saturating_sub(elsewhere);
            let planned = if self.maps_pages {
                self.plan_pages(context, side_heap, size, taker, limit, log)?.map(Planned::Pages)
            } else {
                let segment = Plan::segment(&side_heap.space, size, context.growth, limit);
                segment.map(Planned::Segment)
            };
            let Some(planned) = planned else { return Ok(None) };
            // Another pool of the group may have been faster; then less is left to plan with.
            if heap.share.reserve(planned.created(), context.limit) {
                return Ok(Some(planned));
            }
        }
        Ok(None)
    }

    /// Plans pages, in more addresses if these are lacking.
    fn plan_pages(
        &mut self,
        context: GrowthContext<'_>,
        side_heap: &mut SideHeap,
        size: Bytes,
        taker: Streams,
        limit: Bytes,
        log: &CallLog,
    ) -> Result<Option<Plan>> {
        if context.growth.moves {
            side_heap.space.prepare_to_plan();
        }
        let plan = Plan::make(&side_heap.space, size, taker, context.growth, limit);
        if plan != Err(PlanError::Addresses) {
            return Ok(plan.ok());
        }
        // Doubling, so that a growing pool reserves only a few times. The call takes half a microsecond, under the heap
        // lock.
        let page = context.growth.largest_page.max(side_heap.space.granule().bytes());
        let least = size.saturating_add(page);
        self.reserve(side_heap, side_heap.space.reserved_bytes(), least, log)?;
        Ok(Plan::make(&side_heap.space, size, taker, context.growth, limit).ok())
    }
}
