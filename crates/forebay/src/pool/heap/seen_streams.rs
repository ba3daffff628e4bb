//! Which pools have seen a stream, so that the end of a stream concerns only these pools. One process-wide lock, taken
//! when a pool first sees a stream and when either of them ends.

use std::collections::{BTreeMap, BTreeSet};

use forebay_hal::StreamHandle;

use crate::PoolId;
use crate::sync::fork::ForkSafeMutex;

/// The most streams that are listed for a pool. A program may destroy streams without notice, and their entries stay:
/// beyond this number the pool is asked about every stream.
const MAX_LISTED: usize = 4096;

/// A pool, and the address of its device: handles of two devices may be equal.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct SeeingPool {
    pub(in crate::pool) id: PoolId,
    pub(in crate::pool) device: usize,
}

/// The streams that a pool has seen.
#[derive(Debug)]
enum SeenBy {
    Listed(BTreeSet<StreamHandle>),
    /// So many that they are not listed.
    TooMany,
}

struct Seen {
    /// The pools that list a stream: device, stream, pool.
    pools: BTreeSet<(usize, StreamHandle, PoolId)>,
    /// What each pool has seen, and its device.
    streams: BTreeMap<PoolId, (usize, SeenBy)>,
    /// The pools that have seen too many: device, pool.
    too_many: BTreeSet<(usize, PoolId)>,
}

static SEEN: ForkSafeMutex<Seen> = ForkSafeMutex::new(Seen {
    pools: BTreeSet::new(),
    streams: BTreeMap::new(),
    too_many: BTreeSet::new(),
});

impl SeeingPool {
    /// Notes that the pool is about to have a slot or a cache for a stream.
    pub(in crate::pool) fn note(self, stream: StreamHandle) {
        let Self { id, device } = self;
        let Seen { pools, streams, too_many } = &mut *SEEN.lock();
        let nothing = || (device, SeenBy::Listed(BTreeSet::new()));
        let (_, seen) = streams.entry(id).or_insert_with(nothing);
        let SeenBy::Listed(listed) = seen else { return };
        if listed.len() >= MAX_LISTED && !listed.contains(&stream) {
            listed.iter().for_each(|&stream| _ = pools.remove(&(device, stream, id)));
            *seen = SeenBy::TooMany;
            too_many.insert((device, id));
        } else if listed.insert(stream) {
            pools.insert((device, stream, id));
        }
    }

    /// Notes that the pool has forgotten a stream.
    pub(in crate::pool) fn forget(self, stream: StreamHandle) {
        let Self { id, device } = self;
        let Seen { pools, streams, .. } = &mut *SEEN.lock();
        if let Some((_, SeenBy::Listed(listed))) = streams.get_mut(&id)
            && listed.remove(&stream)
        {
            pools.remove(&(device, stream, id));
        }
    }
}

/// Forgets a pool that is being dropped.
pub(in crate::pool) fn remove(id: PoolId) {
    let Seen { pools, streams, too_many } = &mut *SEEN.lock();
    let Some((device, seen)) = streams.remove(&id) else { return };
    match seen {
        SeenBy::Listed(listed) => {
            listed.into_iter().for_each(|stream| _ = pools.remove(&(device, stream, id)));
        }
        SeenBy::TooMany => _ = too_many.remove(&(device, id)),
    }
}

/// The pools of a device that have, or may have, seen a stream.
pub(in crate::pool) fn pools_of(device: usize, stream: StreamHandle) -> Vec<PoolId> {
    let (first, last) = (PoolId(0), PoolId(u64::MAX));
    let Seen { pools, too_many, .. } = &*SEEN.lock();
    let listing = pools.range((device, stream, first)..=(device, stream, last)).map(|it| it.2);
    listing.chain(too_many.range((device, first)..=(device, last)).map(|it| it.1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Devices that no other test has.
    #[test]
    fn a_stream_concerns_the_pools_that_saw_it() {
        let of = |device| SeeingPool { id: PoolId::next(), device };
        let (one, two, elsewhere) = (of(1), of(1), of(2));
        let (a, b) = (StreamHandle(0xa000), StreamHandle(0xb000));
        for (pool, stream) in [(one, a), (two, a), (two, b), (elsewhere, a), (one, a)] {
            pool.note(stream);
        }
        assert_eq!(pools_of(1, a), [one.id, two.id]);
        assert_eq!((pools_of(1, b), pools_of(2, b)), (vec![two.id], vec![]));
        one.forget(a);
        assert_eq!(pools_of(1, a), [two.id]);
        remove(two.id);
        assert_eq!((pools_of(1, a), pools_of(1, b)), (vec![], vec![]));
        assert_eq!(pools_of(2, a), [elsewhere.id]);
        [one, elsewhere].iter().for_each(|pool| remove(pool.id));
    }

    #[test]
    fn a_pool_with_too_many_streams_is_asked_about_all() {
        let pool = SeeingPool { id: PoolId::next(), device: 3 };
        let stream = |number: usize| StreamHandle(0x1_0000 + number as u64);
        (0..=MAX_LISTED).for_each(|number| pool.note(stream(number)));
        assert_eq!(pools_of(3, stream(0)), [pool.id]);
        assert_eq!(pools_of(3, stream(2 * MAX_LISTED)), [pool.id], "one it never saw");
        pool.forget(stream(0));
        assert_eq!(pools_of(3, stream(0)), [pool.id]);
        remove(pool.id);
        assert_eq!(pools_of(3, stream(0)), []);
    }
}
