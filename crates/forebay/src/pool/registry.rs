//! The pools of the process: their numbers, and whose an address is.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use forebay_core::Address;

use super::shared::Shared;
use crate::PoolId;
use crate::sync::lock;

static NEXT: AtomicU64 = AtomicU64::new(1);
static POOLS: Mutex<Vec<(PoolId, Weak<Shared>)>> = Mutex::new(Vec::new());

fn pools() -> MutexGuard<'static, Vec<(PoolId, Weak<Shared>)>> {
    lock(&POOLS)
}

/// A number no pool had before.
pub(super) fn next_id() -> PoolId {
    PoolId(NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(super) fn add(shared: &Arc<Shared>) {
    pools().push((shared.id, Arc::downgrade(shared)));
}

pub(super) fn remove(id: PoolId) {
    pools().retain(|&(other, _)| other != id);
}

/// Every pool there is. Apart from the list's lock: whoever drops the last of a pool takes it again.
pub(super) fn all() -> Vec<Arc<Shared>> {
    let weak: Vec<Weak<Shared>> = pools().iter().map(|(_, pool)| Weak::clone(pool)).collect();
    weak.iter().filter_map(Weak::upgrade).collect()
}

/// The pool of that number, if it is there.
pub(super) fn find(id: PoolId) -> Option<Arc<Shared>> {
    let weak = pools().iter().find(|&&(other, _)| other == id).map(|(_, pool)| Weak::clone(pool));
    weak?.upgrade()
}

/// The pool, other than `asked`, that has or had a block at `address`.
pub(super) fn owner_of(address: Address, asked: PoolId) -> Option<PoolId> {
    let others = all().into_iter().filter(|pool| pool.id != asked);
    others.filter(|pool| pool.knows(address)).map(|pool| pool.id).next()
}
