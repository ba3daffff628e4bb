//! Into the quarantine and out of it.

use crate::pool::calls::reclaim::{Reclaiming, StreamWait};
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::debug::FREED;
use crate::pool::debug::quarantine::Quarantined;
use crate::pool::front::cached_block::FreedBlock;
use crate::pool::heap::stream_slots::Serial;
use crate::pool::shared::Shared;
use crate::report::RecentFree;
use crate::sync::tracked::lock;
use crate::{Error, Result};
use forebay_core::Bytes;
use forebay_hal::{Pattern, StreamHandle};
use std::sync::atomic::Ordering;

/// What became of a block that was to leave.
enum QuarantineExit {
    /// It is as it was put in, and the heap's.
    Clean,
    /// It was written to, and is retired.
    Written(Error),
    /// It has to stay: its stream was not waited for to the end.
    Stays,
}

impl Shared {
    /// Keeps a freed block from use for as long as the quarantine has room, and lets the oldest go
    /// for it. An error is a finding in one of those: the block itself is taken back in any case.
    pub(in crate::pool) fn quarantine(&self, memory: FreedBlock, former: RecentFree) -> Result<()> {
        let most = self.debug.most_quarantined.load(Ordering::Relaxed);
        // One that is larger than all of it would only drive the others out.
        if memory.size.get() > most {
            self.return_to_heap(vec![memory]);
        } else {
            let serial = self.heap().serial_for(memory.stream);
            match serial {
                Some(order) => {
                    let block = Quarantined { memory, order, former, number: 0 };
                    lock(&self.debug.quarantine).push(block);
                }
                // There is no slot to know its stream by.
                None => self.heap().free_unknown(memory),
            }
        }
        self.shrink_quarantine(most)
    }

    /// Lets the oldest go until no more than `most` bytes are left. An error is the first finding. A block
    /// that cannot be looked at in time stays, and those after it, to be looked at the next time.
    fn shrink_quarantine(&self, most: u64) -> Result<()> {
        if lock(&self.debug.quarantine).bytes().get() <= most {
            return Ok(());
        }
        // What is out of the quarantine is nowhere that another request would see it.
        let _leaving = Reclaiming::begin(self);
        let (mut wait, mut outcome) = (WaitBudget::default(), Ok(()));
        self.recheck_streams(&mut wait);
        loop {
            let Some(oldest) = lock(&self.debug.quarantine).pop_beyond(most) else {
                return outcome;
            };
            let waited = self.wait_before_release(oldest.order, self.deadline(&mut wait));
            match waited.and_then(|waited| self.release_quarantined(oldest, waited)) {
                Ok(QuarantineExit::Clean) => {}
                Ok(QuarantineExit::Written(finding)) => outcome = outcome.and(Err(finding)),
                // The device's trouble with another block is not this call's.
                Ok(QuarantineExit::Stays) | Err(_) => {
                    lock(&self.debug.quarantine).put_back(oldest);
                    return outcome;
                }
            }
        }
    }

    /// Changes how much is kept. What is found in blocks that go is noted, and no error of the change.
    pub(in crate::pool) fn bound_quarantine(&self, most: Bytes) {
        self.debug.most_quarantined.store(most.get(), Ordering::Relaxed);
        let _ = self.shrink_quarantine(most.get());
    }

    /// Waits for the work of a stream before blocks that were freed there leave, where they are looked at.
    fn wait_before_release(&self, order: Serial, deadline: Deadline) -> Result<StreamWait> {
        step::reach(Step::LeavingQuarantine);
        if self.debug.aids.poison {
            self.wait_for_stream(order, deadline)
        } else {
            Ok(StreamWait::Unknown)
        }
    }

    /// Gives a block that leaves to the heap, unless it was written to. Where looking fails it has to go
    /// back.
    ///
    /// No lock is held while it is looked at, and its stream may be forgotten meanwhile: so the stream goes by
    /// its serial. The work that was enqueued on it was waited for before the block is looked at, so what was
    /// looked at is everybody's; what is not looked at goes to the heap in whatever order it has now.
    fn release_quarantined(
        &self,
        block: Quarantined,
        waited: StreamWait,
    ) -> Result<QuarantineExit> {
        let Quarantined { memory, order, .. } = block;
        if !self.debug.aids.poison {
            let mut heap = self.heap();
            heap.free_after(memory, order);
            if memory.stream.is_per_thread() {
                self.publish(&mut heap, memory.stream);
            }
            return Ok(QuarantineExit::Clean);
        }
        match waited {
            StreamWait::Over => {}
            StreamWait::Pending => return Ok(QuarantineExit::Stays),
            StreamWait::Unknown => {
                // Its stream is gone: it comes back, unseen, when the device was waited for.
                self.heap().free_unknown(memory);
                return Ok(QuarantineExit::Clean);
            }
        }
        let own = self.debug.probe.own_stream()?;
        match self.debug.probe.first_mismatch_now(memory.span(), Pattern::U8(FREED), own)? {
            None => {
                self.heap().free_for_all(memory);
                Ok(QuarantineExit::Clean)
            }
            Some(mismatch) => {
                self.debug.retire(memory.size);
                Ok(QuarantineExit::Written(self.debug.record_finding(block.written(mismatch))))
            }
        }
    }

    /// Gives what is in quarantine to the heap, as far as its work ends in time: a request would be refused
    /// without it, or the device is to have it back. What was written to does not come with it, and is the
    /// error.
    pub(in crate::pool) fn empty_quarantine(&self, deadline: Deadline) -> Result<()> {
        let orders = lock(&self.debug.quarantine).orders();
        self.empty_quarantine_after(orders, deadline)
    }

    /// The same for what was freed on one stream, which is about to go.
    pub(in crate::pool) fn empty_quarantine_of(&self, stream: StreamHandle) -> Result<()> {
        let order = {
            let mut heap = self.heap();
            let slot = heap.slots.get(stream);
            slot.and_then(|slot| heap.slots.serial(slot))
        };
        let order = order.filter(|order| lock(&self.debug.quarantine).orders().contains(order));
        self.empty_quarantine_after(order, Deadline::Never)
    }

    /// The same for what was freed on some streams. Each is waited for once for all of its blocks, which
    /// stay where other requests see them until then.
    fn empty_quarantine_after(
        &self,
        orders: impl IntoIterator<Item = Serial>,
        deadline: Deadline,
    ) -> Result<()> {
        let before = lock(&self.debug.quarantine).added();
        let (mut stay, mut outcome) = (Vec::new(), Ok(()));
        // Those whose work is over come first: one that never ends takes all the time there is.
        let mut orders: Vec<(Serial, Deadline)> =
            orders.into_iter().map(|order| (order, Deadline::Now)).collect();
        let mut next = 0;
        while let Some(&(order, now)) = orders.get(next) {
            next += 1;
            let waited = match self.wait_before_release(order, now) {
                Ok(StreamWait::Pending) => {
                    if matches!(now, Deadline::Now) {
                        orders.push((order, deadline));
                    }
                    continue;
                }
                Ok(waited) => waited,
                // A stream that cannot be waited for keeps no other's blocks in.
                Err(error) => {
                    outcome = outcome.and(Err(error));
                    continue;
                }
            };
            // What is out of the quarantine is nowhere that another request would see it.
            let _leaving = Reclaiming::begin(self);
            let leaving = lock(&self.debug.quarantine).take_of(order, before);
            for block in leaving {
                match self.release_quarantined(block, waited) {
                    Ok(QuarantineExit::Clean) => {}
                    // The others come all the same: the first is told, before any trouble of the
                    // device's, and all are noted.
                    Ok(QuarantineExit::Written(finding)) => {
                        if !outcome.as_ref().is_err_and(Error::is_finding) {
                            outcome = Err(finding);
                        }
                    }
                    Ok(QuarantineExit::Stays) => stay.push(block),
                    Err(error) => {
                        outcome = outcome.and(Err(error));
                        stay.push(block);
                    }
                }
            }
        }
        for block in stay.into_iter().rev() {
            lock(&self.debug.quarantine).put_back(block);
        }
        outcome
    }
}
