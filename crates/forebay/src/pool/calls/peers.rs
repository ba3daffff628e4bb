//! Letting another device of the same kind use a pool's memory while the pool lives.

use forebay_core::{DeviceOrdinal, Span};
use forebay_hal::{Access, Call};

use crate::Result;
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::heap::span_of;
use crate::pool::shared::Shared;

impl Shared {
    /// Lets `peer` read and write all memory of the pool, that of later growth too.
    pub(in crate::pool) fn grant_access(&self, peer: DeviceOrdinal) -> Result<()> {
        self.birth.check()?;
        if peer == self.device.descriptor().ordinal {
            return Ok(());
        }
        BackingKind::check_reach(&self.device, self.options.class, peer)?;
        let backing = self.backing();
        let kind = backing.large.kind();
        if kind.peers().contains(&peer) {
            return Ok(());
        }
        let Some(memory) = kind.pages_of(&*self.device) else { return Ok(()) };
        let mapped: Vec<Span> = {
            let heap = self.heap();
            let spaces = [&heap.small.space, &heap.large.space];
            // A kept mapping serves again without a call.
            let kept = spaces.iter().flat_map(|space| space.kept());
            let pages = spaces.iter().flat_map(|space| space.pages());
            pages
                .map(|(at, _, size)| (at, size))
                .chain(kept)
                .map(|(at, size)| span_of(at, size))
                .collect()
        };
        for span in mapped {
            // SAFETY: the mapping is the pool's, and stays while the backing lock is held. Work that uses it loses
            // nothing: one more device may use it.
            let grant = || unsafe { memory.set_access(span, Access::ReadWrite, peer) };
            self.log.make(Call::SetAccess, span.size(), grant)?;
        }
        kind.add_peer(peer);
        Ok(())
    }
}
