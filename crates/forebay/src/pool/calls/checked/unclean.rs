//! Free memory without the free pattern, because the device refused to fill it: kept out of the heap until it can be
//! filled.

use forebay_hal::Pattern;

use crate::pool::backing::{Backing, is_gone};
use crate::pool::common::free_block::FreedBlock;
use crate::pool::debug::FREED;
use crate::pool::debug::quarantine::Unclean;
use crate::pool::heap::Heap;
use crate::pool::heap::stream_slots::StreamState;
use crate::pool::inner::PoolInner;
use crate::sync::tracked::lock;

/// Keeps memory without the free pattern out of the heap until it can be filled.
pub(super) fn keep_unclean(pool: &PoolInner, memory: FreedBlock) {
    // Under the backing lock no other thread grows the pool, so the stream can get a slot.
    let serial = {
        let _backing = pool.backing();
        pool.heap().serial_for(memory.stream)
    };
    match serial {
        Some(order) => lock(&pool.debug.unclean).push(Unclean { memory, order }),
        None => pool.debug.retire(memory.size),
    }
}

/// Fills memory that the device refused to fill before. Returns what holds the free pattern again, each in the
/// order of its stream. The caller holds the backing lock, so that no stream is forgotten before the memory is in
/// the heap.
pub(in crate::pool::calls) fn fill_unclean(
    pool: &PoolInner,
    _backing: &mut Backing,
) -> Vec<FreedBlock> {
    let unclean = core::mem::take(&mut *lock(&pool.debug.unclean));
    let (mut clean, mut rest) = (Vec::new(), Vec::new());
    for one in unclean {
        let fate = pool.heap().slots.state_of(one.order);
        match fate {
            StreamState::Live(stream, number) if !stream.is_of_another_thread() => {
                let memory = FreedBlock { stream, ..one.memory };
                match pool.debug.probe.fill(memory.span(), Pattern::U8(FREED), stream) {
                    Ok(()) => clean.push(memory),
                    Err(error) => {
                        let mut heap = pool.heap();
                        // Another stream may have the slot by now.
                        if is_gone(&error) && heap.slots.serial(number) == Some(one.order) {
                            heap.end_without_event(number);
                        }
                        rest.push(one);
                    }
                }
            }
            // The stream ended and its work is done.
            StreamState::Done => match pool.debug.probe.fill_now(one.memory.span(), FREED) {
                Ok(()) => pool.heap().free_for_all(one.memory),
                Err(_) => rest.push(one),
            },
            // There is no stream to fill it on until that work is done.
            StreamState::Live(..) | StreamState::Ended(..) | StreamState::Unknown(_) => {
                rest.push(one)
            }
        }
    }
    lock(&pool.debug.unclean).append(&mut rest);
    clean
}

/// Whether memory without the free pattern needs a wait for the whole device.
pub(in crate::pool::calls) fn has_unclean_unknown(pool: &PoolInner, heap: &Heap) -> bool {
    let unclean = lock(&pool.debug.unclean);
    unclean.iter().any(|one| matches!(heap.slots.state_of(one.order), StreamState::Unknown(_)))
}
