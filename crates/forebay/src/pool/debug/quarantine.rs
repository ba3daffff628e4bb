//! The quarantine: freed blocks that nobody gets for a while, first in, first out.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::Ordering;

use forebay_core::{Bytes, Span};
use forebay_hal::{Pattern, StreamHandle};

use super::super::heap::FreedBlock;
use super::super::reclaim::{Patience, Reclaiming, StreamWait};
use super::super::shared::Shared;
use super::super::step::{self, Step};
use super::super::stream_slots::Serial;
use super::probe::Odd;
use super::{FREED, RecentFree};
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// A block in quarantine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quarantined {
    pub(super) memory: FreedBlock,
    /// The stream it was freed on, which may be gone, and its handle another's.
    pub(super) order: Serial,
    pub(super) former: RecentFree,
    /// How many were put in before it; set when it is.
    pub(super) number: u64,
}

impl Quarantined {
    /// Whether it was freed on a stream, and is one of the first `before` that were put in.
    fn is_of(&self, order: Serial, before: u64) -> bool {
        self.order == order && self.number < before
    }

    /// What to tell where it was written to.
    pub(super) fn written(&self, odd: Odd) -> Error {
        Error::WrittenAfterFree {
            written: odd.at,
            expected: odd.expected,
            found: odd.found,
            block: Some(self.former),
        }
    }
}

/// The blocks in quarantine, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    blocks: VecDeque<Quarantined>,
    bytes: u64,
    /// How many were ever put in.
    added: u64,
}

impl Quarantine {
    pub(super) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub(super) fn bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    /// The memory of each.
    pub(super) fn spans(&self) -> impl Iterator<Item = Span> {
        self.blocks.iter().map(|block| block.memory.span())
    }

    /// How many were ever put in.
    pub(super) fn added(&self) -> u64 {
        self.added
    }

    fn push(&mut self, mut block: Quarantined) {
        block.number = self.added;
        self.added += 1;
        self.bytes += block.memory.size.get();
        self.blocks.push_back(block);
    }

    /// Puts the oldest back where it was.
    fn put_back(&mut self, block: Quarantined) {
        self.bytes += block.memory.size.get();
        self.blocks.push_front(block);
    }

    /// The oldest, while there are more than `most` bytes.
    fn pop_beyond(&mut self, most: u64) -> Option<Quarantined> {
        let oldest = if self.bytes > most { self.blocks.pop_front() } else { None }?;
        self.bytes -= oldest.memory.size.get();
        Some(oldest)
    }

    /// The streams that the blocks were freed on.
    fn orders(&self) -> BTreeSet<Serial> {
        self.blocks.iter().map(|block| block.order).collect()
    }

    /// Takes out the blocks that were freed on a stream, of the first `before` that were put in.
    fn take_of(&mut self, order: Serial, before: u64) -> VecDeque<Quarantined> {
        let all = core::mem::take(&mut self.blocks);
        let (taken, others): (VecDeque<_>, VecDeque<_>) =
            all.into_iter().partition(|block| block.is_of(order, before));
        self.blocks = others;
        self.bytes -= taken.iter().map(|block| block.memory.size.get()).sum::<u64>();
        taken
    }

    /// Takes out all blocks that were freed on a stream.
    pub(super) fn take_all_of(&mut self, order: Serial) -> Vec<FreedBlock> {
        self.take_of(order, u64::MAX).into_iter().map(|block| block.memory).collect()
    }

    /// Takes out the blocks that were written to, as `look` says, of the first `before` that were put in.
    pub(super) fn take_spoilt(
        &mut self,
        before: u64,
        look: impl Fn(Span) -> Result<Option<Odd>>,
    ) -> Result<Vec<(Quarantined, Odd)>> {
        let mut spoilt = Vec::new();
        let mut outcome = Ok(());
        self.blocks.retain(|block| {
            if outcome.is_err() || block.number >= before {
                return true;
            }
            match look(block.memory.span()) {
                Ok(None) => true,
                Ok(Some(odd)) => {
                    spoilt.push((*block, odd));
                    false
                }
                Err(error) => {
                    outcome = Err(error);
                    true
                }
            }
        });
        for (block, _) in &spoilt {
            self.bytes -= block.memory.size.get();
        }
        // What was found is told before that looking on failed.
        if spoilt.is_empty() { outcome.map(|()| spoilt) } else { Ok(spoilt) }
    }
}

/// What became of a block that was to leave.
enum Left {
    /// It is as it was put in, and the heap's.
    Whole,
    /// It was written to, and is retired.
    Spoilt(Error),
    /// It has to stay: its stream was not waited for to the end.
    Not,
}

impl Shared {
    /// Keeps a freed block from use for as long as the quarantine has room, and lets the oldest go
    /// for it. An error is a finding in one of those: the block itself is taken back in any case.
    pub(super) fn keep_from_use(&self, memory: FreedBlock, former: RecentFree) -> Result<()> {
        let most = self.debug.most_quarantined.load(Ordering::Relaxed);
        // One that is larger than all of it would only drive the others out.
        if memory.size.get() > most {
            self.give_back(vec![memory]);
        } else {
            let serial = self.heap().serial_for(memory.stream);
            match serial {
                Some(order) => {
                    let block = Quarantined { memory, order, former, number: 0 };
                    lock(&self.debug.quarantine).push(block);
                }
                // There is no slot to know its stream by.
                None => self.heap().give_to_unknown(memory),
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
        let (mut begun, mut outcome) = (None, Ok(()));
        self.recheck_streams(&mut begun);
        loop {
            let Some(oldest) = lock(&self.debug.quarantine).pop_beyond(most) else {
                return outcome;
            };
            let waited = self.wait_to_leave(oldest.order, self.patience(&mut begun));
            match waited.and_then(|waited| self.let_leave(oldest, waited)) {
                Ok(Left::Whole) => {}
                Ok(Left::Spoilt(finding)) => outcome = outcome.and(Err(finding)),
                // The device's trouble with another block is not this call's.
                Ok(Left::Not) | Err(_) => {
                    lock(&self.debug.quarantine).put_back(oldest);
                    return outcome;
                }
            }
        }
    }

    /// Changes how much is kept. What is found in blocks that go is noted, and no error of the change.
    pub(in super::super) fn bound_quarantine(&self, most: Bytes) {
        self.debug.most_quarantined.store(most.get(), Ordering::Relaxed);
        let _ = self.shrink_quarantine(most.get());
    }

    /// Waits for the work of a stream before blocks that were freed there leave, where they are looked at.
    fn wait_to_leave(&self, order: Serial, patience: Patience) -> Result<StreamWait> {
        step::reach(Step::LeavingQuarantine);
        if self.debug.aids.poison {
            self.wait_for_stream(order, patience)
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
    fn let_leave(&self, block: Quarantined, waited: StreamWait) -> Result<Left> {
        let Quarantined { memory, order, .. } = block;
        if !self.debug.aids.poison {
            let mut heap = self.heap();
            heap.give_after(memory, order);
            if memory.stream.is_per_thread() {
                self.publish(&mut heap, memory.stream);
            }
            return Ok(Left::Whole);
        }
        match waited {
            StreamWait::Over => {}
            StreamWait::Pending => return Ok(Left::Not),
            StreamWait::Unknown => {
                // Its stream is gone: it comes back, unseen, when the device was waited for.
                self.heap().give_to_unknown(memory);
                return Ok(Left::Whole);
            }
        }
        let own = self.debug.probe.own_stream()?;
        match self.debug.probe.first_odd_now(memory.span(), Pattern::U8(FREED), own)? {
            None => {
                self.heap().give_to_all(memory);
                Ok(Left::Whole)
            }
            Some(odd) => {
                self.debug.retire(memory.size);
                Ok(Left::Spoilt(self.debug.found(block.written(odd))))
            }
        }
    }

    /// Gives what is in quarantine to the heap, as far as its work ends in time: a request would be refused
    /// without it, or the device is to have it back. What was written to does not come with it, and is the
    /// error.
    pub(in super::super) fn end_quarantine(&self, patience: Patience) -> Result<()> {
        let orders = lock(&self.debug.quarantine).orders();
        self.end_quarantine_after(orders, patience)
    }

    /// The same for what was freed on one stream, which is about to go.
    pub(in super::super) fn end_quarantine_of(&self, stream: StreamHandle) -> Result<()> {
        let order = {
            let mut heap = self.heap();
            let slot = heap.slots.get(stream);
            slot.and_then(|slot| heap.slots.serial(slot))
        };
        let order = order.filter(|order| lock(&self.debug.quarantine).orders().contains(order));
        self.end_quarantine_after(order, Patience::Unlimited)
    }

    /// The same for what was freed on some streams. Each is waited for once for all of its blocks, which
    /// stay where other requests see them until then.
    fn end_quarantine_after(
        &self,
        orders: impl IntoIterator<Item = Serial>,
        patience: Patience,
    ) -> Result<()> {
        let before = lock(&self.debug.quarantine).added();
        let (mut stay, mut outcome) = (Vec::new(), Ok(()));
        // Those whose work is over come first: one that never ends takes all the time there is.
        let mut orders: Vec<(Serial, Patience)> =
            orders.into_iter().map(|order| (order, Patience::None)).collect();
        let mut next = 0;
        while let Some(&(order, now)) = orders.get(next) {
            next += 1;
            let waited = match self.wait_to_leave(order, now) {
                Ok(StreamWait::Pending) => {
                    if matches!(now, Patience::None) {
                        orders.push((order, patience));
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
                match self.let_leave(block, waited) {
                    Ok(Left::Whole) => {}
                    // The others come all the same: the first is told, before any trouble of the
                    // device's, and all are noted.
                    Ok(Left::Spoilt(finding)) => {
                        if !outcome.as_ref().is_err_and(Error::is_finding) {
                            outcome = Err(finding);
                        }
                    }
                    Ok(Left::Not) => stay.push(block),
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
