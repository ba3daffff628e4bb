//! Forgetting streams. Holes stay in the order of an ended stream until its work is done, and its handle may be reused
//! from then on.

use forebay_hal::{StreamHandle, announce_stream_end, stream_ends};

use crate::Result;
use crate::pool::common::wait::WaitBudget;
use crate::pool::shared::Shared;

impl Shared {
    /// Gives a stream that uses a block of the pool a slot, so that its end is noticed.
    pub(in crate::pool) fn watch_stream(&self, stream: StreamHandle) {
        if !self.is_inherited() {
            self.heap().slot_for(stream);
        }
    }

    /// Whether the pool knows a stream by its handle: by a slot, or by a thread cache.
    pub(in crate::pool) fn knows_stream(&self, stream: StreamHandle) -> bool {
        let stream = stream.resolved();
        self.heap().slots.knows(stream) || self.front.knows(stream)
    }

    /// Forgets a stream that will be destroyed. An error has changed nothing but where free memory is.
    pub(in crate::pool) fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        self.birth.check()?;
        self.check_stream_identity(stream, &mut WaitBudget::default())?;
        // First, so that the count is past every handle that names the stream.
        announce_stream_end(&self.device, stream);
        self.end_and_forget(stream, false)
    }

    /// Forgets a stream that ends in any case, where no error can be returned. If its last event cannot be recorded,
    /// its holes wait for the whole device.
    pub(in crate::pool) fn forget_lost_stream(&self, stream: StreamHandle) {
        if self.birth.check().is_ok() {
            let _ = self.end_and_forget(stream, true);
        }
    }

    fn end_and_forget(&self, stream: StreamHandle, force: bool) -> Result<()> {
        // A finding in the quarantine is reported after the stream is forgotten, a device error at once.
        let ended = self.empty_quarantine_of(stream);
        if let Err(error) = &ended
            && !error.is_finding()
            && !force
        {
            return ended;
        }
        self.record_end(stream, force, &|| true)?;
        ended
    }

    /// Records the last event of a stream and forgets it, if `is_same` finds that the handle still stands for it. If
    /// not, its holes wait for the whole device. Its blocks in quarantine stay there.
    pub(in crate::pool) fn record_end(
        &self,
        stream: StreamHandle,
        force: bool,
        is_same: &dyn Fn() -> bool,
    ) -> Result<()> {
        {
            let mut backing = self.backing();
            let returns = self.fill_unclean(&mut backing);
            // The heap lock is held from before the magazines are emptied until the last event is recorded: a free on
            // the stream comes before both or after both. It is taken before the gates are shut, here and wherever both
            // are: an owner waits for the heap only outside its gate.
            let mut heap = self.heap();
            self.front.forget_stream(&mut heap, stream);
            heap.free_all(returns);
            let serial = heap.slots.get(stream).and_then(|number| heap.slots.serial(number));
            let parted = backing.end_stream(&mut heap, stream, is_same);
            if parted.is_err() && force {
                if let Some(number) = heap.slots.get(stream) {
                    heap.end_without_event(number);
                }
            } else {
                parted?;
            }
            if let Some(serial) = serial {
                heap.ended.add(stream, stream_ends(), serial);
            }
            heap.counts.forget_stream(stream);
            self.seeing().forget(stream);
            drop(heap);
            // Its work may be done already: then its holes become free for all now.
            let _ = backing.run_deferred(self.context());
        }
        self.forget_identity(stream);
        Ok(())
    }
}
