//! Allocating and freeing a block with debug checks on.

use crate::pool::backing::deferred::WorkEnd;
use crate::pool::backing::{Backing, is_gone};
use crate::pool::calls::free::Claimed;
use crate::pool::common::free_block::FreedBlock;
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::step::{self, Step};
use crate::pool::common::wait::{Deadline, WaitBudget};
use crate::pool::debug::FREED;
use crate::pool::debug::quarantine::Unclean;
use crate::pool::heap::Heap;
use crate::pool::heap::stream_slots::StreamState;
use crate::pool::shared::Shared;
use crate::report::RecentFree;
use crate::sync::map::BlockState;
use crate::sync::tracked::lock;
use crate::{Request, Result, Tag};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Pattern, StreamHandle};
use std::sync::Arc;

impl Shared {
    /// Prepares memory from the heap to become a block of `size`. On an error or a finding, the memory is no longer the
    /// caller's.
    pub(in crate::pool) fn prepare_block(
        &self,
        address: Address,
        size: Bytes,
        request: Request,
        wait: &mut WaitBudget,
    ) -> Result<()> {
        let (debug, stream) = (&self.debug, request.stream);
        if !debug.aids.prepares_blocks() {
            return Ok(());
        }
        let memory = FreedBlock { address, size: size.saturating_add(debug.tail()), stream };
        if debug.aids.poison {
            // Memory that is free in the order of the stream may still be used by work enqueued there.
            let looked = LoggedEvent::after(&self.device, &self.log, stream)
                .and_then(|end| self.wait_for_events(&[Arc::new(end)], self.deadline(wait)))
                .and_then(|over| match over {
                    true => debug.written_since(memory),
                    false => Err(self.shortage(request, memory.size).into()),
                });
            match looked {
                Ok(None) => {}
                Ok(Some(finding)) => {
                    debug.retire(memory.size);
                    return Err(debug.record_finding(finding));
                }
                Err(error) => {
                    self.return_to_heap(vec![memory]);
                    return Err(error);
                }
            }
        }
        let block = Span::new(memory.address, size).unwrap_or_default();
        let canary = Span::new(block.end(), debug.tail()).unwrap_or_default();
        debug.write_patterns(block, canary, stream).inspect_err(|_| self.return_prepared(memory))
    }

    /// Returns memory that was prepared, perhaps only in part, and never became a block.
    pub(in crate::pool) fn return_prepared(&self, memory: FreedBlock) {
        if self.debug.aids.poison {
            self.keep_unclean(memory);
        } else {
            self.return_to_heap(vec![memory]);
        }
    }

    /// Keeps memory without the free pattern out of the heap until it can be filled.
    fn keep_unclean(&self, memory: FreedBlock) {
        // Under the backing lock no other thread grows the pool, so the stream can get a slot.
        let serial = {
            let _backing = self.backing();
            self.heap().serial_for(memory.stream)
        };
        match serial {
            Some(order) => lock(&self.debug.unclean).push(Unclean { memory, order }),
            None => self.debug.retire(memory.size),
        }
    }

    /// Fills memory that the device refused to fill before. Returns what holds the free pattern again, each in the
    /// order of its stream. The caller holds the backing lock, so that no stream is forgotten before the memory is in
    /// the heap.
    pub(in crate::pool) fn fill_unclean(&self, _backing: &mut Backing) -> Vec<FreedBlock> {
        let unclean = core::mem::take(&mut *lock(&self.debug.unclean));
        let (mut clean, mut rest) = (Vec::new(), Vec::new());
        for one in unclean {
            let fate = self.heap().slots.state_of(one.order);
            match fate {
                StreamState::Live(stream, number) if !stream.is_of_another_thread() => {
                    let memory = FreedBlock { stream, ..one.memory };
                    match self.debug.probe.fill(memory.span(), Pattern::U8(FREED), stream) {
                        Ok(()) => clean.push(memory),
                        Err(error) => {
                            let mut heap = self.heap();
                            // Another stream may have the slot by now.
                            if is_gone(&error) && heap.slots.serial(number) == Some(one.order) {
                                heap.end_without_event(number);
                            }
                            rest.push(one);
                        }
                    }
                }
                // The stream ended and its work is done.
                StreamState::Done => match self.debug.probe.fill_now(one.memory.span(), FREED) {
                    Ok(()) => self.heap().free_for_all(one.memory),
                    Err(_) => rest.push(one),
                },
                // There is no stream to fill it on until that work is done.
                StreamState::Live(..) | StreamState::Ended(..) | StreamState::Unknown(_) => {
                    rest.push(one)
                }
            }
        }
        lock(&self.debug.unclean).append(&mut rest);
        clean
    }

    /// Whether memory without the free pattern needs a wait for the whole device.
    pub(in crate::pool) fn has_unclean_unknown(&self, heap: &Heap) -> bool {
        let unclean = lock(&self.debug.unclean);
        unclean.iter().any(|one| matches!(heap.slots.state_of(one.order), StreamState::Unknown(_)))
    }

    /// Frees the claimed block at `address` after checking its surroundings.
    pub(in crate::pool) fn free_checked(
        &self,
        block: Claimed<'_>,
        stream: StreamHandle,
    ) -> Result<()> {
        let Claimed { slot, known, address } = block;
        let size = known.size().saturating_add(self.debug.tail());
        let memory = FreedBlock { address, size, stream };
        let finding = match self
            .join_users(known, memory)
            .and_then(|()| self.debug.check_and_poison(address, memory))
        {
            Ok(finding) => finding,
            Err(error) => {
                slot.unclaim(known);
                return Err(error);
            }
        };
        // The block is free from here on, whatever happens next.
        if known.used_elsewhere() {
            self.heap().uses.remove(&address);
        }
        self.note_free(address, known, stream);
        self.front.count(stream, |counts| {
            counts.count_free(known.units(), known.requested(), known.tag());
        });
        let former = RecentFree {
            address,
            size: known.size(),
            requested: Bytes::new(known.requested()),
            tag: Tag::of(known),
            stream,
        };
        if self.debug.aids.poison {
            lock(&self.debug.recent_frees).remember(former);
        }
        match (self.debug.guards(), finding) {
            (Some(guards), finding) => {
                self.release_guarded(guards, address, stream);
                finding.map_or(Ok(()), |finding| Err(self.debug.record_finding(finding)))
            }
            (None, Some(finding)) => {
                self.debug.retire(memory.size);
                Err(self.debug.record_finding(finding))
            }
            (None, None) => self.quarantine(memory, former),
        }
    }

    /// Makes the stream a block is freed on wait, on the device, for the further streams that used it: what the pool
    /// does with the block in that stream's order then comes after all of its uses.
    fn join_users(&self, known: BlockState, memory: FreedBlock) -> Result<()> {
        if !known.used_elsewhere() {
            return Ok(());
        }
        step::reach(Step::JoiningUsers);
        let joined = {
            // Locked from before the look-up until the events are recorded: a user that is forgotten in between would
            // leave its handle to another stream.
            let backing = self.backing();
            let ends: Vec<WorkEnd> = {
                let mut heap = self.heap();
                let own = heap.serial_for(memory.stream);
                let uses = heap.uses.get(&memory.address).cloned().unwrap_or_default();
                Backing::ends_of(&mut heap, uses, own)
            };
            backing.make_stream_wait(memory.stream, &ends)?
        };
        if !joined {
            self.wait_for_device(Deadline::Never)?;
        }
        Ok(())
    }
}
