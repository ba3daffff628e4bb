//! The pools of the process: their numbers, and whose an address is.
//!
//! Who drops the last of a pool waits for its device and gives everything back. So what can be told
//! of pools without having them, even for a moment, is kept here beside them: a free that asks whose
//! an address is must not come to end a pool that its last user let go meanwhile.

use std::sync::{Arc, MutexGuard, Weak};

use forebay_core::Address;
use forebay_hal::{Device, StreamHandle};

use crate::PoolId;
use crate::pool::shared::Shared;
use crate::sync::fork::{Birth, ForkSafeMutex};
use crate::sync::map::AddressMap;

/// A pool, and what is asked of it without having it.
struct Entry {
    id: PoolId,
    pool: Weak<Shared>,
    map: AddressMap,
    /// Where its device lies.
    device: usize,
    /// Whether it wants the upkeep thread.
    upkeep: bool,
    /// The process that made it.
    birth: Birth,
}

impl Entry {
    /// Whether it was made in this process, and not before a fork.
    fn is_ours(&self) -> bool {
        self.birth.check().is_ok()
    }
}

static POOLS: ForkSafeMutex<Vec<Entry>> = ForkSafeMutex::new(Vec::new());

fn pools() -> MutexGuard<'static, Vec<Entry>> {
    POOLS.lock()
}

/// A stream is about to go: every pool of its device forgets it.
fn forget_stream(device: &Arc<dyn Device>, stream: StreamHandle) {
    for shared in all_of(device) {
        if shared.knows_stream(stream) {
            shared.forget_lost_stream(stream.resolved());
        }
    }
}

pub(in crate::pool) fn add(shared: &Arc<Shared>) {
    forebay_hal::on_stream_end(forget_stream);
    let (id, pool, map) = (shared.id, Arc::downgrade(shared), shared.map.clone());
    shared.thread_ends.set_pool(Weak::<Shared>::clone(&pool));
    let upkeep = shared.settings().upkeep();
    let device = address_of(&shared.device);
    pools().push(Entry { id, pool, map, device, upkeep, birth: shared.birth });
}

pub(in crate::pool) fn remove(id: PoolId) {
    pools().retain(|entry| entry.id != id);
}

/// Notes whether a pool wants the upkeep thread.
pub(in crate::pool) fn set_upkeep(id: PoolId, upkeep: bool) {
    for entry in pools().iter_mut().filter(|entry| entry.id == id) {
        entry.upkeep = upkeep;
    }
}

/// Every pool of this process that wants the upkeep thread. The list is unlocked by then: the
/// thread that drops the last reference to a pool locks it again.
pub(in crate::pool) fn with_upkeep() -> Vec<Arc<Shared>> {
    let weak: Vec<Weak<Shared>> = pools()
        .iter()
        .filter(|entry| entry.upkeep && entry.is_ours())
        .map(|entry| Weak::clone(&entry.pool))
        .collect();
    weak.iter().filter_map(Weak::upgrade).collect()
}

/// Every pool of `device` that was made in this process. Apart from the list's lock, as above; and of no other device, so that nobody has
/// a pool for a moment that is none of theirs.
pub(in crate::pool) fn all_of(device: &Arc<dyn Device>) -> Vec<Arc<Shared>> {
    let device = address_of(device);
    let pools = pools();
    let of_it = pools.iter().filter(|entry| entry.device == device && entry.is_ours());
    let weak: Vec<Weak<Shared>> = of_it.map(|entry| Weak::clone(&entry.pool)).collect();
    drop(pools);
    weak.iter().filter_map(Weak::upgrade).collect()
}

/// Where a device object lies: which it is, as long as it lives, and a pool keeps its own alive.
fn address_of(device: &Arc<dyn Device>) -> usize {
    Arc::as_ptr(device).cast::<()>().addr()
}

/// The pool of that number, if it is there.
pub(in crate::pool) fn find(id: PoolId) -> Option<Arc<Shared>> {
    let weak = pools().iter().find(|entry| entry.id == id).map(|entry| Weak::clone(&entry.pool));
    weak?.upgrade()
}

/// The pool, other than `asked`, that has or had a block at `address`.
pub(in crate::pool) fn other_owner_of(address: Address, asked: PoolId) -> Option<PoolId> {
    let pools = pools();
    let mut others = pools.iter().filter(|entry| entry.id != asked);
    others.find(|entry| entry.map.knows(address)).map(|entry| entry.id)
}

/// Whose the block is that begins at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum AddressOwner {
    /// Nobody has or had one there.
    Nobody,
    /// This pool had one, which was freed.
    Freed(PoolId),
    /// This pool has one.
    One(PoolId),
    /// Two pools have one: addresses of simulated memory alone can come to that.
    Two(PoolId, PoolId),
}

/// Whose the block at `address` is, of all pools.
pub(in crate::pool) fn owner_at(address: Address) -> AddressOwner {
    let pools = pools();
    let mut owners = pools.iter().filter(|entry| entry.map.has(address)).map(|entry| entry.id);
    match (owners.next(), owners.next()) {
        (Some(one), None) => AddressOwner::One(one),
        (Some(one), Some(two)) => AddressOwner::Two(one, two),
        (None, _) => {
            let former = pools.iter().find(|entry| entry.map.knows(address));
            former.map_or(AddressOwner::Nobody, |entry| AddressOwner::Freed(entry.id))
        }
    }
}
