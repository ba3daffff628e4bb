//! The registry: all pools of the process, and which of them owns an address. It has one process-wide lock. The pools
//! that may own an address, or have seen a stream, are looked up elsewhere first, so that no call asks all pools.
//!
//! The thread that drops the last reference to a pool waits for the device and releases everything. So an entry keeps
//! what can be answered without a reference: a free that only asks who owns an address must not end up dropping a pool.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, Weak};

use forebay_core::Address;
use forebay_hal::Device;

use crate::PoolId;
use crate::pool::heap::seen_streams;
use crate::pool::inner::{PoolInner, address_of};
use crate::sync::fork::{ForkGeneration, ForkSafeMutex};
use crate::sync::map::{AddressMap, LiveBlock, owners_near};

/// A pool, and what can be asked about it without a reference.
struct Entry {
    pool: Weak<PoolInner>,
    map: AddressMap,
    device: usize,
    /// Whether its settings ask for the upkeep thread.
    upkeep: bool,
    /// The process that made the pool.
    fork_generation: ForkGeneration,
}

impl Entry {
    /// Whether the pool was made in this process, not before a fork.
    fn is_ours(&self) -> bool {
        self.fork_generation.check().is_ok()
    }
}

/// By number, which is the order in which they were made.
type Entries = BTreeMap<PoolId, Entry>;

static POOLS: ForkSafeMutex<Entries> = ForkSafeMutex::new(Entries::new());

fn pools() -> MutexGuard<'static, Entries> {
    POOLS.lock()
}

pub(in crate::pool) fn add(shared: &Arc<PoolInner>) {
    let (pool, map) = (Arc::downgrade(shared), shared.map.clone());
    let upkeep = shared.settings().upkeep();
    let device = address_of(&shared.device);
    pools().insert(
        shared.id,
        Entry { pool, map, device, upkeep, fork_generation: shared.fork_generation },
    );
}

pub(in crate::pool) fn remove(id: PoolId) {
    // Dropped after the list is unlocked: the last reference to a map takes another lock.
    let _entry = pools().remove(&id);
    seen_streams::remove(id);
}

pub(super) fn set_upkeep(id: PoolId, upkeep: bool) {
    if let Some(entry) = pools().get_mut(&id) {
        entry.upkeep = upkeep;
    }
}

/// Every pool of this process that wants the upkeep thread.
pub(in crate::pool) fn with_upkeep() -> Vec<(PoolId, Weak<PoolInner>)> {
    list(|entry| entry.upkeep)
}

/// Every living pool of this process, without references: each is made when it is used, after the list is unlocked, since
/// dropping the last one locks it again.
pub(in crate::pool) fn all() -> Vec<(PoolId, Weak<PoolInner>)> {
    // A pool that is being dropped has its entry until the device is done.
    list(|entry| entry.pool.strong_count() > 0)
}

fn list(is_listed: impl Fn(&Entry) -> bool) -> Vec<(PoolId, Weak<PoolInner>)> {
    let pools = pools();
    let listed = pools.iter().filter(|(_, entry)| entry.is_ours() && is_listed(entry));
    listed.map(|(&id, entry)| (id, Weak::clone(&entry.pool))).collect()
}

/// The pools of `device`, likewise.
pub(in crate::pool) fn all_of(device: &Arc<dyn Device>) -> Vec<(PoolId, Weak<PoolInner>)> {
    let device = address_of(device);
    list(|entry| entry.device == device)
}

/// The live blocks of every pool of this process. No reference to a pool is made, as above.
pub(crate) fn live_blocks() -> Vec<(PoolId, Vec<LiveBlock>)> {
    let ours = |pools: MutexGuard<'_, Entries>| -> Vec<(PoolId, AddressMap)> {
        let ours = pools.iter().filter(|(_, entry)| entry.is_ours());
        ours.map(|(&id, entry)| (id, entry.map.clone())).collect()
    };
    // Read after the list is unlocked.
    ours(pools()).into_iter().map(|(id, map)| (id, map.live_blocks())).collect()
}

/// The pool with this number, if it is alive.
pub(in crate::pool) fn find(id: PoolId) -> Option<Arc<PoolInner>> {
    let weak = pools().get(&id).map(|entry| Weak::clone(&entry.pool));
    weak?.upgrade()
}

/// The pool with this number, if this process made it.
pub(in crate::pool) fn weak(id: PoolId) -> Option<Weak<PoolInner>> {
    let pools = pools();
    pools.get(&id).filter(|entry| entry.is_ours()).map(|entry| Weak::clone(&entry.pool))
}

/// The pools with memory near `address` for whose map `holds` is true, oldest first.
fn owners_of<'a>(
    pools: &'a Entries,
    near: &'a [u64],
    holds: impl Fn(&AddressMap) -> bool + 'a,
) -> impl Iterator<Item = PoolId> + 'a {
    let near = near.iter().map(|&id| PoolId(id));
    near.filter(move |id| pools.get(id).is_some_and(|entry| holds(&entry.map)))
}

/// The pool, other than `asked`, that has or had a block at `address`.
pub(super) fn other_owner_of(address: Address, asked: PoolId) -> Option<PoolId> {
    let near = owners_near(address);
    let pools = pools();
    owners_of(&pools, &near, |map| map.knows(address)).find(|&id| id != asked)
}

/// Which pool owns the block at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum AddressOwner {
    /// No pool has or had a block there.
    Nobody,
    /// This pool had one, and it was freed.
    Freed(PoolId),
    /// This pool has one.
    One(PoolId),
    /// Two pools have one, which only happens with simulated memory.
    Two(PoolId, PoolId),
}

/// Which of all pools owns the block at `address`.
pub(in crate::pool) fn owner_at(address: Address) -> AddressOwner {
    let near = owners_near(address);
    let pools = pools();
    let mut owners = owners_of(&pools, &near, |map| map.has(address));
    match (owners.next(), owners.next()) {
        (Some(one), None) => AddressOwner::One(one),
        (Some(one), Some(two)) => AddressOwner::Two(one, two),
        (None, _) => {
            let former = owners_of(&pools, &near, |map| map.knows(address)).next();
            former.map_or(AddressOwner::Nobody, AddressOwner::Freed)
        }
    }
}
