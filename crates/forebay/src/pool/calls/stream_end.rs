//! Streams that end: what was freed on them stays in their order, and their handles may be others' from then on.

use forebay_hal::StreamHandle;

use crate::Result;
use crate::pool::common::wait::WaitBudget;
use crate::pool::shared::Shared;

impl Shared {
    /// Whether the pool has anything that goes by a stream's handle: a slot, or a magazine of a thread.
    pub(in crate::pool) fn knows_stream(&self, stream: StreamHandle) -> bool {
        let stream = stream.resolved();
        let mut known = self.heap().slots.knows(stream);
        self.thread_caches.each(|caches| known |= caches.all().any(|cache| cache.stream == stream));
        known
    }

    /// Says that a stream will be destroyed. What fails has changed nothing but where free memory lies.
    pub(in crate::pool) fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        self.birth.check()?;
        self.check_stream_identity(stream, &mut WaitBudget::default())?;
        self.end_and_forget(stream, false)
    }

    /// The same where the stream goes in any case, and there is nobody to tell of an error: what is free in
    /// its order is nobody's then until the device was waited for.
    pub(in crate::pool) fn forget_lost_stream(&self, stream: StreamHandle) {
        if self.birth.check().is_ok() {
            let _ = self.end_and_forget(stream, true);
        }
    }

    fn end_and_forget(&self, stream: StreamHandle, force: bool) -> Result<()> {
        // A finding there is told when the stream is forgotten, what the device says at once.
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

    /// Records the last event of a stream and lets go of it, if `is_same` finds the handle to be still that
    /// stream's; if not, what is free in its order waits for the whole device. What is in quarantine in its order
    /// stays there.
    pub(in crate::pool) fn record_end(
        &self,
        stream: StreamHandle,
        force: bool,
        is_same: &dyn Fn() -> bool,
    ) -> Result<()> {
        {
            let mut backing = self.backing();
            let mut returns = self.fill_unclean(&mut backing);
            // The heap's lock is held from before the magazines are emptied until the stream's last event
            // is recorded: a free on the stream comes before both or after both. It is taken before the
            // gates are shut, here and wherever both are: an owner waits for the heap outside its gate
            // alone.
            let mut heap = self.heap();
            self.thread_caches.each(|caches| {
                while let Some(cache) = caches.remove(stream) {
                    heap.absorb_cache(*cache, &mut returns);
                }
            });
            heap.free_all(returns);
            let parted = backing.end_stream(&mut heap, stream, is_same);
            if parted.is_err() && force {
                if let Some(number) = heap.slots.get(stream) {
                    heap.end_without_event(number);
                }
            } else {
                parted?;
            }
            heap.counts.forget(|other| other == stream);
            drop(heap);
            // Its work may be over already: then what it freed is everybody's from now on.
            let _ = backing.run_deferred(self.context(), false);
        }
        self.forget_identity(stream);
        Ok(())
    }
}
