//! Records the events of calls that go past the caches.

use forebay_core::{Address, Bytes};
use forebay_hal::StreamHandle;

use crate::Tag;
use crate::pool::common::event::RawEvent;
use crate::pool::inner::PoolInner;
use crate::report::{EventAction, Stack};
use crate::sync::map::BlockState;

pub(super) fn note_free(
    pool: &PoolInner,
    address: Address,
    known: BlockState,
    stream: StreamHandle,
) {
    pool.debug.subtract_live(known.size());
    let requested = Bytes::new(known.requested());
    let (action, generation) = (EventAction::Free, known.generation());
    let (tag, stack) = (Tag::of(known), Stack::NONE);
    note(pool, RawEvent { action, address, generation, requested, stream, tag, stack });
}

/// Records an event, and calls the observers.
pub(in crate::pool) fn note(pool: &PoolInner, event: RawEvent) {
    pool.history.note(event, |push| {
        pool.front.with_own(|caches| push(caches.events.get_or_insert_default()))
    });
}
