//! Strict streams: whether a handle is still that of the stream it was.
//!
//! Drivers give the value of a destroyed stream's handle out again. A pool that goes by the value takes
//! what was freed on the old stream for free on the new one, while the old one's work still runs: it
//! hands out memory in use. Here every handle is known by the stream's identity. One that has become
//! another's is noticed before anything is taken or waited for by it, the device is waited for, and what the
//! old stream had becomes everybody's.

use forebay_core::{Address, StreamId};
use forebay_hal::StreamHandle;

use crate::pool::common::wait::WaitBudget;
use crate::pool::heap::stream_slots::StreamState;
use crate::pool::shared::Shared;
use crate::sync::tracked::lock;
use crate::{Error, Result};

impl Shared {
    /// Sees to it that `stream` is the stream it was, or starts afresh. Does nothing where that is not
    /// asked for.
    pub(in crate::pool) fn check_stream_identity(
        &self,
        stream: StreamHandle,
        wait: &mut WaitBudget,
    ) -> Result<()> {
        if !self.debug.aids.strict_streams {
            return Ok(());
        }
        let id = self.debug.probe.stream_id(stream)?;
        self.note_identity(stream, Some(id), wait)?;
        self.heap().slots.set_doubted(stream, false);
        Ok(())
    }

    /// Notes which stream a handle is now, `None` where it is none any more. Where it was another before,
    /// that one is gone: what was freed on it is in nobody's order until the device was waited for, which
    /// is done at once, unless the call's time runs out first.
    ///
    /// Which stream a handle is and in whose order its memory lies change together, under the lock of the
    /// notes: two threads that meet the new stream at once must not both take it for the old.
    fn note_identity(
        &self,
        stream: StreamHandle,
        id: Option<StreamId>,
        wait: &mut WaitBudget,
    ) -> Result<()> {
        let gone = {
            let mut noted = lock(&self.debug.streams);
            let gone = noted.get(&stream).is_some_and(|&before| Some(before) != id);
            if gone {
                self.end_replaced_stream(stream);
            }
            match id {
                Some(id) => noted.insert(stream, id),
                None => noted.remove(&stream),
            };
            gone
        };
        if gone {
            self.settle(self.deadline(wait))?;
        }
        Ok(())
    }

    /// The same for every stream that the pool may wait for, before it does: an event on a handle that
    /// has become another's says nothing of the work of the old one. One of which it cannot be told
    /// now is not waited for until it can.
    pub(in crate::pool) fn recheck_streams(&self, wait: &mut WaitBudget) {
        if !self.debug.aids.strict_streams {
            return;
        }
        let noted: Vec<StreamHandle> = lock(&self.debug.streams).keys().copied().collect();
        for stream in noted {
            let doubted = self.recheck_stream(stream, wait).is_err();
            self.heap().slots.set_doubted(stream, doubted);
        }
    }

    /// The same for the streams that the block at `address` was used on.
    pub(in crate::pool) fn recheck_users(&self, address: Address) -> Result<()> {
        if !self.debug.aids.strict_streams {
            return Ok(());
        }
        let users: Vec<StreamHandle> = {
            let heap = self.heap();
            let uses = heap.uses.get(&address);
            let users = uses.into_iter().flat_map(|uses| &uses.streams);
            let live = users.filter_map(|&serial| match heap.slots.state_of(serial) {
                StreamState::Live(stream, _) => Some(stream),
                _ => None,
            });
            live.collect()
        };
        let mut wait = WaitBudget::default();
        users.into_iter().try_for_each(|stream| self.recheck_stream(stream, &mut wait))
    }

    /// Sees to it that `stream` is the stream it was, or is buried.
    fn recheck_stream(&self, stream: StreamHandle, wait: &mut WaitBudget) -> Result<()> {
        // Of another thread's own stream the device tells nothing, and its handle is never another's.
        if stream.is_of_another_thread() || !lock(&self.debug.streams).contains_key(&stream) {
            return Ok(());
        }
        match self.debug.probe.stream_id(stream) {
            Ok(now) => self.note_identity(stream, Some(now), wait),
            // There is no such stream any more.
            Err(Error::Device(forebay_hal::Error::Invalid { .. })) => {
                self.note_identity(stream, None, wait)
            }
            Err(error) => Err(error),
        }
    }

    /// A stream is gone, and its handle another's or nobody's: what was freed on it comes back when the
    /// device was waited for, since there is no handle left to wait for the one stream by.
    fn end_replaced_stream(&self, stream: StreamHandle) {
        let _backing = self.backing();
        let mut heap = self.heap();
        let mut returns = Vec::new();
        self.thread_caches.each(|caches| {
            while let Some(cache) = caches.remove(stream) {
                heap.absorb_cache(*cache, &mut returns);
            }
        });
        heap.free_all(returns);
        let slot = heap.slots.get(stream);
        let serial = slot.and_then(|slot| heap.slots.serial(slot));
        slot.into_iter().for_each(|slot| heap.end_without_event(slot));
        heap.counts.forget(|other| other == stream);
        drop(heap);
        // What is kept from use was ordered on the old stream, too.
        // What is unclean stays until that stream's work is over.
        let Some(serial) = serial else { return };
        let kept = lock(&self.debug.quarantine).take_all_of(serial);
        let mut heap = self.heap();
        kept.into_iter().for_each(|memory| heap.free_unknown(memory));
    }

    /// Notes that a stream was forgotten.
    pub(in crate::pool) fn forget_identity(&self, stream: StreamHandle) {
        lock(&self.debug.streams).remove(&stream);
        self.heap().slots.set_doubted(stream, false);
    }
}
