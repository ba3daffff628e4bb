//! The calls of a pool that checks or records them: the same way down, with what is checked before and after. Which pools
//! take it is decided where the pool is made or a setting changes ([`Front::set_hits`](crate::pool::front::Front::set_hits));
//! a plain pool knows nothing of it.

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::pool::common::counts::Source;
use crate::pool::common::event::RawEvent;
use crate::pool::common::wait::WaitBudget;
use crate::pool::front::claimed_as::ClaimedAs;
use crate::pool::shared::Shared;
use crate::report::{EventAction, Stack};
use crate::sync::map::BlockState;
use crate::{Block, Request, Result, Tag};

impl Shared {
    /// Allocates a block, checked and recorded.
    #[cold]
    #[inline(never)]
    pub(in crate::pool) fn allocate_layered(&self, request: Request, size: Bytes) -> Result<Block> {
        self.told(request, || {
            let got = self.allocate_checked(request, size);
            let (action, address, generation) = match &got {
                Ok(block) => {
                    self.debug.add_live(block.size);
                    (EventAction::Allocate, block.address, block.generation)
                }
                Err(_) => (EventAction::Refuse, Address::NULL, 0),
            };
            let Request { size: requested, stream, .. } = request;
            let (tag, stack) = (Tag::current(), Stack::NONE);
            self.note(RawEvent { action, address, generation, requested, stream, tag, stack });
            // An observer may have forked.
            self.birth.check()?;
            got
        })
    }

    /// Allocates a block, and checks its stream and its memory.
    fn allocate_checked(&self, request: Request, size: Bytes) -> Result<Block> {
        let mut wait = WaitBudget::default();
        self.check_stream_identity(request.stream, &mut wait)?;
        let piece = self.piece(request, size, self.debug.tail())?;
        if let Some(guards) = self.debug.guards() {
            return self.allocate_guarded(guards, request, size, self.deadline(&mut wait));
        }
        if let Some(block) = self.take_any(request, size) {
            return Ok(block);
        }
        let found = match self.take_hole(piece, request.stream) {
            Ok(address) => (address, Source::Hole),
            Err(miss) => self.make_room(piece, request, miss, &mut wait)?,
        };
        self.prepare_block(found.0, size, request, &mut wait)?;
        self.hand_out(found, size, request)
    }

    /// Frees a block, checked and recorded.
    #[cold]
    #[inline(never)]
    pub(in crate::pool) fn free_layered(
        &self,
        address: Address,
        stream: StreamHandle,
        claimed: ClaimedAs,
    ) -> Result<()> {
        self.check_stream_identity(stream, &mut WaitBudget::default())?;
        self.watch_own_stream(stream);
        let block = self.claim(address, claimed)?;
        if self.debug.checks_frees() {
            return self.free_checked(block, stream);
        }
        // From here on only this call has the block, so its event comes before the next one at its address. Nothing
        // after this can fail, so the event is true.
        self.note_free(address, block.known, stream);
        // An observer may have forked.
        self.birth.check()?;
        self.put(block, stream);
        Ok(())
    }

    /// Records a free.
    pub(in crate::pool) fn note_free(
        &self,
        address: Address,
        known: BlockState,
        stream: StreamHandle,
    ) {
        self.debug.subtract_live(known.size());
        let requested = Bytes::new(known.requested());
        let (action, generation) = (EventAction::Free, known.generation());
        let (tag, stack) = (Tag::of(known), Stack::NONE);
        self.note(RawEvent { action, address, generation, requested, stream, tag, stack });
    }

    /// Records an event, and calls the observers.
    pub(in crate::pool) fn note(&self, event: RawEvent) {
        self.history.note(event, |push| {
            self.front.with_own(|caches| push(caches.events.get_or_insert_default()))
        });
    }
}
