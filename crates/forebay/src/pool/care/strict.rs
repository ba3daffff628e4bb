//! Strict streams: whether a handle is still that of the stream it was.
//!
//! Drivers give the value of a destroyed stream's handle out again. A pool that goes by the value takes
//! what was freed on the old stream for free on the new one, while the old one's work still runs: it
//! hands out memory in use. Here every handle is known by the stream's identity. One that has become
//! another's is noticed before anything is taken or waited for by it, the device is waited for, and
//! what the old stream had becomes everybody's.

use forebay_core::Address;
use forebay_hal::StreamHandle;

use super::super::shared::Shared;
use crate::sync::lock;
use crate::{Error, Result};

impl Shared {
    /// Sees to it that `stream` is the stream it was, or starts afresh. Does nothing where that is not
    /// asked for.
    pub(in super::super) fn admit(&self, stream: StreamHandle) -> Result<()> {
        if !self.care.aids.strict_streams {
            return Ok(());
        }
        let mut noted = lock(&self.care.streams);
        let id = self.care.probe.stream_id(stream)?;
        if noted.get(&stream).is_some_and(|&before| before != id) {
            self.forget_at_once(stream)?;
        }
        noted.insert(stream, id);
        self.heap().lanes.set_doubted(stream, false);
        Ok(())
    }

    /// The same for every stream that the pool may wait for, before it does: an event on a handle that
    /// has become another's says nothing of the work of the old one. One of which it cannot be told
    /// now is not waited for until it can.
    pub(in super::super) fn recheck_streams(&self) {
        if !self.care.aids.strict_streams {
            return;
        }
        let noted: Vec<StreamHandle> = lock(&self.care.streams).keys().copied().collect();
        for stream in noted {
            let doubted = self.recheck(stream).is_err();
            self.heap().lanes.set_doubted(stream, doubted);
        }
    }

    /// The same for the streams that the block at `address` was used on.
    pub(in super::super) fn recheck_users(&self, address: Address) -> Result<()> {
        if !self.care.aids.strict_streams {
            return Ok(());
        }
        let users = self.heap().uses.get(&address).cloned().unwrap_or_default();
        users.into_iter().try_for_each(|stream| self.recheck(stream))
    }

    /// Sees to it that `stream` is the stream it was, or is forgotten.
    fn recheck(&self, stream: StreamHandle) -> Result<()> {
        let mut noted = lock(&self.care.streams);
        let Some(&before) = noted.get(&stream) else { return Ok(()) };
        match self.care.probe.stream_id(stream) {
            Ok(now) if now == before => {}
            Ok(now) => {
                self.forget_at_once(stream)?;
                noted.insert(stream, now);
            }
            // There is no such stream any more.
            Err(Error::Device(forebay_hal::Error::Invalid { .. })) => {
                self.forget_at_once(stream)?;
                noted.remove(&stream);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Makes what was freed on a stream that is gone everybody's. Waits for the device: there is no
    /// handle left to wait for the one stream by.
    fn forget_at_once(&self, stream: StreamHandle) -> Result<()> {
        let mut works = self.works();
        let mut returns = self.take_down_shelves(stream);
        self.heap().later.append(&mut returns);
        works.settle(self.site())?;
        {
            let mut heap = self.heap();
            for block in heap.take_later_of(stream) {
                heap.give_to_all(block);
            }
            if let Some(number) = heap.lanes.leave(stream) {
                heap.gone(number);
            }
            heap.counts.forget(|other| other == stream);
            // Its uses are over, and nobody need wait for them.
            for users in heap.uses.values_mut() {
                users.retain(|&user| user != stream);
            }
        }
        lock(&self.care.quarantine).rename(stream);
        for memory in lock(&self.care.unclean).iter_mut().filter(|one| one.stream == stream) {
            memory.stream = StreamHandle::DEFAULT;
        }
        Ok(())
    }

    /// Notes that a stream was forgotten.
    pub(in super::super) fn dismiss(&self, stream: StreamHandle) {
        lock(&self.care.streams).remove(&stream);
        self.heap().lanes.set_doubted(stream, false);
    }
}
