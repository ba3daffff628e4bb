//! Lets another device of the same kind use a pool's memory while the pool lives.

use forebay_core::{DeviceOrdinal, Span};
use forebay_hal::{Access, Call};

use crate::Result;
use crate::pool::common::backing_kind::BackingKind;
use crate::pool::heap::span_of;
use crate::pool::inner::PoolInner;

/// Lets `peer` read and write all memory of the pool, including later growth.
pub(in crate::pool) fn grant_access(pool: &PoolInner, peer: DeviceOrdinal) -> Result<()> {
    pool.fork_generation.check()?;
    if peer == pool.device.descriptor().ordinal {
        return Ok(());
    }
    BackingKind::check_reach(&pool.device, pool.options.class, peer)?;
    let backing = pool.backing();
    let kind = &backing.large.kind;
    if kind.peers().contains(&peer) {
        return Ok(());
    }
    let Some(memory) = kind.pages() else { return Ok(()) };
    let mapped: Vec<Span> = {
        let heap = pool.heap();
        let spaces = heap.spaces.both();
        // A kept mapping serves again without a call.
        let kept = spaces.iter().flat_map(|space| space.page_table().kept().oldest_first());
        let pages = spaces.iter().flat_map(|space| space.page_table().pages());
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
        pool.log.make(Call::SetAccess, span.size(), grant)?;
    }
    kind.add_peer(peer);
    Ok(())
}
