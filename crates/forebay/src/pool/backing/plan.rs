//! Planning growth within the limit, under one hold of the heap lock: what a plan takes from the device is reserved,
//! since other pools may share the limit, and what it needs of the address space is claimed, since other requests use it.

use forebay_core::Bytes;
use forebay_core::address_space::{AddressSpace, Claim, Plan, PlanError};

use crate::Result;
use crate::pool::backing::growth::{GrowthContext, Made};
use crate::pool::backing::page_provider::{PageProvider, Planned};
use crate::pool::common::log::CallLog;
use crate::sync::tracked::lock;

impl PageProvider {
    /// Plans a growth, reserves what it takes from the device, and claims what it needs of the address space.
    pub(super) fn plan_growth(
        &mut self,
        context: GrowthContext<'_>,
        log: &CallLog,
    ) -> Result<Planned> {
        let mut heap = lock(context.heap);
        loop {
            let room = if context.has_room { heap.ledger.share.room() } else { Bytes::ZERO };
            let claimed = heap.ledger.share.claimed_by_all().saturating_sub(room);
            let space = heap.spaces.of_mut(self.side);
            let elsewhere = claimed.saturating_sub(space.backed_bytes());
            let limit = context.limit.saturating_sub(elsewhere);
            if !self.maps_pages {
                let segment = Plan::segment(space, context.size, context.growth, limit);
                let Some(segment) = segment else { return Ok(Planned::Done(Made::Nothing)) };
                match heap.ledger.share.reserve(segment, context.has_room, context.limit) {
                    Some(reserved) => return Ok(Planned::Segment(reserved)),
                    None => continue,
                }
            }
            let Some(plan) = self.plan_pages(context, space, limit, log)? else {
                return Ok(Planned::Done(Made::Nothing));
            };
            if plan.steps.is_empty() {
                return Ok(Planned::Done(context.cut(&mut heap)));
            }
            let created = plan.created();
            let reserved = heap.ledger.share.reserve(created, context.has_room, context.limit);
            // Another pool of the group may have been faster; then less is left to plan with.
            let Some(reserved) = reserved else { continue };
            let space = heap.spaces.of_mut(self.side);
            let claim = Claim::take(space, &plan, &context.stream());
            let Ok(claim) = claim else {
                debug_assert!(false, "planned for another address space: {claim:?}");
                return Ok(Planned::Done(Made::Nothing));
            };
            // Pages on their way are held, wherever they are.
            heap.ledger.add_outgoing(claim.moved());
            return Ok(Planned::Pages { claim, reserved });
        }
    }

    /// Plans pages, in more addresses if these are lacking.
    fn plan_pages(
        &mut self,
        context: GrowthContext<'_>,
        space: &mut AddressSpace,
        limit: Bytes,
        log: &CallLog,
    ) -> Result<Option<Plan>> {
        let (size, taker) = (context.size, context.stream());
        let plan = Plan::make(space, size, taker, context.growth, limit);
        if plan != Err(PlanError::Addresses) {
            return Ok(plan.ok());
        }
        // Doubling, so that a growing pool reserves only a few times. The call takes half a microsecond, under the heap
        // lock.
        let page = context.growth.largest_page.max(space.page_table().granule().bytes());
        let least = size.saturating_add(page);
        self.reserve(space, space.page_table().reserved_bytes(), least, log)?;
        Ok(Plan::make(space, size, taker, context.growth, limit).ok())
    }
}
