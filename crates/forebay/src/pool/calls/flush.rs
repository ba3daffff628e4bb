//! Flushes the thread caches into the heap.

use forebay_core::Bytes;

use crate::pool::backing::Backing;
use crate::pool::calls::checked::unclean;
use crate::pool::inner::PoolInner;

/// Flushes the small blocks of this thread's magazines before the pool grows by `size` bytes for a large block: that
/// may free whole pages of the small side, which can be moved. Other threads keep their caches, since growing must not
/// stop many of them.
///
/// If `size` does not fit beside the blocks in use, the request will be refused, and the magazines stay as they
/// are.
pub(in crate::pool) fn flush_own_small(pool: &PoolInner, size: Bytes) {
    let most = pool.group.limits.limit().min(pool.device_total);
    let out = {
        let heap = pool.heap();
        heap.out().saturating_add(heap.ledger.share.others()).saturating_add(size)
    };
    let returns = pool.front.flush_own_small(out.saturating_sub(most));
    pool.heap().free_all(returns);
}

/// Flushes the thread caches into the heap, or only their large blocks: small ones are in another address space, and
/// help a large request only once whole pages of them are free, which `grow` and `reclaim` handle. Does not wait:
/// threads that are inside their gate flush at their next entry. Takes the backing, so that none of the streams is
/// forgotten meanwhile.
pub(super) fn flush_caches(pool: &PoolInner, backing: &mut Backing, only_large: bool) {
    let mut returns = unclean::fill_unclean(pool, backing);
    if only_large {
        pool.front.all.flush_large(&mut returns);
    } else {
        pool.front.all.flush(&mut returns);
    }
    pool.heap().free_all(returns);
}

/// Flushes all thread caches, and waits for threads that are inside their gate: for callers that need all blocks.
pub(in crate::pool) fn flush_all_caches(pool: &PoolInner, backing: &mut Backing) {
    let mut returns = unclean::fill_unclean(pool, backing);
    pool.front.all.flush_all(&mut returns);
    pool.heap().free_all(returns);
}
