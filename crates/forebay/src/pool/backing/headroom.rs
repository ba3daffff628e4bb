//! The reach of a pool: the most it could hold, given its limit and what the device has left. The more of it is in use,
//! the smaller the pages.

use forebay_core::Bytes;
use forebay_core::address_space::Growth;
use forebay_hal::Call;

use crate::pool::backing::{Backing, PoolContext};

/// The device is asked again for its free bytes after the pool has grown or shrunk by this fraction of its limit: others
/// use the device too. Asking takes a tenth of the time of one page.
const ASK_EVERY: u64 = 64;

impl Backing {
    /// The growth policy for a request of `size`.
    pub(super) fn growth_for(&mut self, pool: PoolContext<'_>, size: Bytes) -> Growth {
        let (held, others) = {
            let heap = pool.heap();
            (heap.held(), heap.ledger.share.others())
        };
        let limit = pool.limit.saturating_sub(others);
        let reach = limit.min(self.device_headroom(limit, held));
        self.growth.within(held.saturating_add(size), reach)
    }

    /// What the pool holds plus what the device has left; `limit` if the device cannot tell.
    fn device_headroom(&mut self, limit: Bytes, held: Bytes) -> Bytes {
        let is_recent = |then: Bytes| held.get().abs_diff(then.get()) <= limit.get() / ASK_EVERY;
        let (free, then) = match self.asked {
            Some((free, then)) if is_recent(then) => (free, then),
            _ => {
                let asked = self.log.call(Call::MemoryInfo, || self.source.memory_info());
                let Ok(info) = asked else { return limit };
                *self.asked.insert((info.free, held))
            }
        };
        free.saturating_add(then)
    }
}
