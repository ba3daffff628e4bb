//! Plans growth within the limit, under the heap lock. A plan reserves what it takes from the device, since other pools
//! may share the limit, and claims what it needs of the address space, since other requests use it.
//!
//! A large claim is made under several holds of the lock, so that other requests never wait long. They may then take a
//! page that is to move: the claim is given back, and the next plan is made and claimed under one hold.

use forebay_core::Bytes;
use forebay_core::address_space::{AddressSpace, Claim, Plan, PlanError};

use crate::Result;
use crate::pool::backing::growth::{GrowthContext, Made};
use crate::pool::backing::page_provider::{PageProvider, Planned};
use crate::pool::common::log::CallLog;
use crate::pool::common::step;
use crate::pool::heap::Heap;
use crate::sync::tracked::{Guard, lock};

/// How many steps of a plan are claimed under one hold of the heap lock: about two microseconds each.
const BATCH: usize = if cfg!(test) { 2 } else { 128 };

impl PageProvider {
    /// Plans a growth, reserves what it takes from the device, and claims what it needs of the address space.
    pub(super) fn plan_growth(
        &mut self,
        context: GrowthContext<'_>,
        log: &CallLog,
    ) -> Result<Planned> {
        let mut batch = BATCH;
        loop {
            let mut heap = lock(context.heap);
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
            if let Some(claim) = self.claim(context, heap, &plan, batch) {
                return Ok(Planned::Pages { claim, reserved });
            }
            context.end_reservation(reserved);
            debug_assert!(plan.steps.len() > batch, "planned for another address space");
            if batch == usize::MAX {
                return Ok(Planned::Done(Made::Nothing));
            }
            batch = usize::MAX;
        }
    }

    /// Claims what a plan needs, `batch` steps at a time, between which the heap is unlocked. Returns `None`, with nothing
    /// claimed, if another request took a page meanwhile.
    fn claim<'a>(
        &self,
        context: GrowthContext<'a>,
        mut heap: Guard<'a, Heap>,
        plan: &Plan,
        batch: usize,
    ) -> Option<Claim> {
        let mut claim = Claim::begin(heap.spaces.of_mut(self.side), plan);
        let (mut outgoing, mut batches) = (Bytes::ZERO, plan.steps.chunks(batch).peekable());
        while let Some(steps) = batches.next() {
            let space = heap.spaces.of_mut(self.side);
            let Ok(moved) = claim.take(space, steps, &context.stream()) else {
                claim.give_back(space);
                heap.ledger.remove_outgoing(outgoing);
                return None;
            };
            // Pages on their way are held, wherever they are.
            heap.ledger.add_outgoing(moved);
            outgoing = outgoing.saturating_add(moved);
            if batches.peek().is_some() {
                drop(heap);
                step::reach(step::Step::ClaimedPart);
                std::thread::yield_now();
                heap = lock(context.heap);
            }
        }
        Some(claim)
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
