//! A block's way out and back, where aids are on.

use std::sync::Arc;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{Pattern, StreamHandle};

use super::super::backing::{Backing, is_gone};
use super::super::deferred::End;
use super::super::heap::{FreedBlock, Heap};
use super::super::log::Point;
use super::super::map::{BlockState, Slot};
use super::super::reclaim::Patience;
use super::super::shared::Shared;
use super::super::step::{self, Step};
use super::super::stream_slots::{Fate, Serial};
use super::canary::{CANARY, CanaryRecord, overrun, pattern_of};
use super::{DebugChecks, FREED, RecentFree};
use crate::sync::tracked::lock;
use crate::{Error, Request, Result, Tag};

/// Memory that the device refused to fill, and the stream in whose order it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unclean {
    pub(super) memory: FreedBlock,
    /// The stream of `memory`, which may be gone, and its handle another's.
    pub(super) order: Serial,
}

impl DebugChecks {
    /// Writes what a block holds when it is given out, and its canary, in the order of `stream`.
    /// `canary` is empty where it has none.
    pub(super) fn dress(&self, block: Span, canary: Span, stream: StreamHandle) -> Result<()> {
        if let Some(byte) = self.aids.new_blocks {
            self.probe.fill(block, Pattern::U8(byte), stream)?;
        }
        if self.aids.canaries && !canary.is_empty() {
            self.probe.fill(canary, pattern_of(block.start()), stream)?;
            let watched = CanaryRecord { size: block.size(), canary, number: 0 };
            lock(&self.canaries).add(block.start(), watched);
        }
        Ok(())
    }

    /// Looks at the canary of the block at `address`, after all that is enqueued on `stream`, and
    /// fills its memory with what free memory holds. Gives what was found: then nothing is filled.
    ///
    /// Where the device refuses, all is as before.
    fn undress(&self, address: Address, memory: FreedBlock) -> Result<Option<Error>> {
        let watched = lock(&self.canaries).at(address);
        if let Some(CanaryRecord { size, canary, .. }) = watched {
            let odd = self.probe.first_odd(canary, pattern_of(address), memory.stream)?;
            // Nobody looks at it any more once it is filled.
            lock(&self.canaries).remove(address);
            if let Some(odd) = odd {
                return Ok(Some(overrun(address, size, odd)));
            }
        }
        if self.aids.poison && !self.aids.guard_pages {
            let filled = self.probe.fill(memory.span(), Pattern::U8(FREED), memory.stream);
            if let Err(error) = filled {
                if let Some(watched) = watched {
                    lock(&self.canaries).add(address, watched);
                }
                return Err(error);
            }
        }
        Ok(None)
    }

    /// The first sign in free memory, which no work uses, that someone has written there, and who had it last.
    fn written_since(&self, memory: FreedBlock) -> Result<Option<Error>> {
        let (free, own) = (Pattern::U8(FREED), self.probe.own_stream()?);
        let odd = self.probe.first_odd_now(memory.span(), free, own)?;
        Ok(odd.map(|odd| Error::WrittenAfterFree {
            written: odd.at,
            expected: odd.expected,
            found: odd.found,
            block: lock(&self.recent_frees).at(odd.at),
        }))
    }
}

impl Shared {
    /// Makes memory from the heap ready to be given out as a block of `size`. Where that fails, or
    /// something is found, the memory is no longer the caller's.
    pub(in super::super) fn prepare(
        &self,
        address: Address,
        size: Bytes,
        request: Request,
        begun: &mut Option<Patience>,
    ) -> Result<()> {
        let (debug, stream) = (&self.debug, request.stream);
        if !debug.aids.prepares_blocks() {
            return Ok(());
        }
        let memory = FreedBlock { address, size: size.saturating_add(debug.tail()), stream };
        if debug.aids.poison {
            // What is free in the order of the stream is still used by the work that was enqueued there.
            let looked = Point::after(&self.device, &self.log, stream)
                .and_then(|end| self.wait_for_events(&[Arc::new(end)], self.patience(begun)))
                .and_then(|over| match over {
                    true => debug.written_since(memory),
                    false => Err(self.shortage(request, memory.size).into()),
                });
            match looked {
                Ok(None) => {}
                Ok(Some(finding)) => {
                    debug.retire(memory.size);
                    return Err(debug.found(finding));
                }
                Err(error) => {
                    self.give_back(vec![memory]);
                    return Err(error);
                }
            }
        }
        let block = Span::new(memory.address, size).unwrap_or_default();
        let canary = Span::new(block.end(), debug.tail()).unwrap_or_default();
        debug.dress(block, canary, stream).inspect_err(|_| self.give_back_prepared(memory))
    }

    /// Takes back memory that was made ready to be given out, or nearly so, and never was.
    pub(in super::super) fn give_back_prepared(&self, memory: FreedBlock) {
        if self.debug.aids.poison {
            self.keep_unclean(memory);
        } else {
            self.give_back(vec![memory]);
        }
    }

    /// Keeps memory that is not as free memory should be until it can be filled.
    fn keep_unclean(&self, memory: FreedBlock) {
        // With the backing's lock, so that nobody else grows the pool and there is a slot for the stream.
        let serial = {
            let _backing = self.backing();
            self.heap().serial_for(memory.stream)
        };
        match serial {
            Some(order) => lock(&self.debug.unclean).push(Unclean { memory, order }),
            None => self.debug.retire(memory.size),
        }
    }

    /// Fills what the device refused to fill before; gives what is as free memory should be again, in the
    /// order of the stream that each is of. With the backing's lock, so that none of those streams is forgotten
    /// before the memory is in the heap.
    pub(in super::super) fn tidy(&self, _backing: &mut Backing) -> Vec<FreedBlock> {
        let unclean = core::mem::take(&mut *lock(&self.debug.unclean));
        let (mut clean, mut rest) = (Vec::new(), Vec::new());
        for one in unclean {
            let fate = self.heap().slots.fate(one.order);
            match fate {
                Fate::Live(stream, number) if !stream.is_of_another_thread() => {
                    let memory = FreedBlock { stream, ..one.memory };
                    match self.debug.probe.fill(memory.span(), Pattern::U8(FREED), stream) {
                        Ok(()) => clean.push(memory),
                        Err(error) => {
                            let mut heap = self.heap();
                            // Another stream may have taken the slot over since.
                            if is_gone(&error) && heap.slots.serial(number) == Some(one.order) {
                                heap.bury(number);
                            }
                            rest.push(one);
                        }
                    }
                }
                // Its stream is gone, and so is its work.
                Fate::Over => match self.debug.probe.fill_now(one.memory.span(), FREED) {
                    Ok(()) => self.heap().give_to_all(one.memory),
                    Err(_) => rest.push(one),
                },
                // There is no stream to fill it on until the work is over.
                Fate::Live(..) | Fate::Ended(..) | Fate::Unknown(_) => rest.push(one),
            }
        }
        lock(&self.debug.unclean).append(&mut rest);
        clean
    }

    /// Whether memory that is to be filled waits for a wait for the whole device.
    pub(in super::super) fn has_unclean_unknown(&self, heap: &Heap) -> bool {
        let unclean = lock(&self.debug.unclean);
        unclean.iter().any(|one| matches!(heap.slots.fate(one.order), Fate::Unknown(_)))
    }

    /// Takes back the block at `address`, which was claimed, having looked at what surrounds it.
    pub(in super::super) fn take_back(
        &self,
        slot: &Slot,
        known: BlockState,
        address: Address,
        stream: StreamHandle,
    ) -> Result<()> {
        let size = known.size().saturating_add(self.debug.tail());
        let memory = FreedBlock { address, size, stream };
        let finding =
            match self.join_users(known, memory).and_then(|()| self.debug.undress(address, memory))
            {
                Ok(finding) => finding,
                Err(error) => {
                    slot.unclaim(known);
                    return Err(error);
                }
            };
        // It is taken back from here on, whatever else comes.
        if known.used_elsewhere() {
            self.heap().uses.remove(&address);
        }
        self.note_free(address, known, stream);
        self.count(stream, |counts| {
            counts.freed(known.units(), known.requested(), known.tag());
        });
        let former = RecentFree {
            address,
            size: known.size(),
            requested: Bytes::new(known.requested()),
            tag: Tag::numbered(usize::from(known.tag())).unwrap_or(Tag::NONE),
            stream,
        };
        if self.debug.aids.poison {
            lock(&self.debug.recent_frees).remember(former);
        }
        match (self.debug.guards(), finding) {
            (Some(guards), finding) => {
                self.unfence(guards, address, stream);
                finding.map_or(Ok(()), |finding| Err(self.debug.found(finding)))
            }
            (None, Some(finding)) => {
                self.debug.retire(memory.size);
                Err(self.debug.found(finding))
            }
            (None, None) => self.keep_from_use(memory, former),
        }
    }

    /// Makes the stream a block is freed on wait, on the device, for the others it was used on: so
    /// what is done with it in that stream's order comes after all of its uses.
    fn join_users(&self, known: BlockState, memory: FreedBlock) -> Result<()> {
        if !known.used_elsewhere() {
            return Ok(());
        }
        step::reach(Step::JoiningUsers);
        let joined = {
            // From before the users are looked up until their events are recorded: a user that is forgotten
            // meanwhile would leave its handle to another stream.
            let backing = self.backing();
            let ends: Vec<End> = {
                let mut heap = self.heap();
                let own = heap.serial_for(memory.stream);
                let uses = heap.uses.get(&memory.address).cloned().unwrap_or_default();
                let unknown = uses.unknown.then_some(End::Unknown);
                let others = uses.streams.into_iter().filter(|&user| Some(user) != own);
                others.filter_map(|user| Backing::end_of(&heap, user)).chain(unknown).collect()
            };
            backing.join(memory.stream, &ends)?
        };
        if !joined {
            self.wait_for_device(Patience::Unlimited)?;
        }
        Ok(())
    }
}

/// Where the canary of a block before guard pages is: in front of it, as far as its first page goes.
pub(super) fn canary_before(pages: Span, block: Address) -> Span {
    let room = block.offset_from(pages.start()).unwrap_or_default().min(CANARY);
    let start = Address::new(block.get().saturating_sub(room.get()));
    Span::new(start, room).unwrap_or_default()
}
