//! Blocks that other streams use too: freed in one order, reused only after all.

use forebay_hal::{Event, EventKind};

use super::*;
use crate::pool::calls::free;
use crate::pool::common::step::{Step, stepping};
use crate::pool::front::claimed::FreeClaim;

/// A block is freed in the order of its stream while another stream reads it: nobody gets its memory
/// before that is done, and then somebody does.
#[test]
fn a_block_used_on_another_stream_is_not_reused_before_that_is_done() {
    let (machine, device, shared) = open(SimMachine::builder().seed(3));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(8)).build(&shared).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    let wrong = Arc::new(AtomicU64::new(0));
    let size = Bytes::mib(3);
    let block = pool.allocate(size, DEFAULT).unwrap();
    write(&device, block, 1, DEFAULT);
    order(&shared, DEFAULT, other);
    check(&device, block, 1, other, &wrong);
    pool.record_use(block.address(), other).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    assert_eq!(pool.statistics().live, Bytes::ZERO, "it is free, and cannot be had yet");
    assert!(matches!(pool.free(block.address(), DEFAULT), Err(Error::DoubleFree { .. })));

    let next = pool.allocate(size, DEFAULT).unwrap();
    write(&device, next, 2, DEFAULT);
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
    assert_eq!(wrong.load(Ordering::Relaxed), 0);
    assert_ne!(next.address(), block.address());
    pool.process_deferred().unwrap();
    let later = pool.allocate(size, DEFAULT).unwrap();
    assert_eq!(later.address(), block.address(), "its memory has come back");
}

/// Where there is nothing else, the request waits for the other stream rather than being refused.
#[test]
fn memory_in_use_elsewhere_is_waited_for_before_a_request_is_refused() {
    let (machine, device, shared) = open(SimMachine::builder().seed(5));
    let pool = PoolOptions::new().max_bytes(Bytes::mib(4)).build(&shared).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    for tag in 0..20 {
        let block = pool.allocate(Bytes::mib(3), DEFAULT).unwrap();
        write(&device, block, tag, DEFAULT);
        order(&shared, DEFAULT, other);
        write(&device, block, tag ^ 1, other);
        pool.record_use(block.address(), other).unwrap();
        pool.free(block.address(), DEFAULT).unwrap();
    }
    device.synchronize_device().unwrap();
    assert_eq!(machine.finding_count(), 0, "{}", machine.findings()[0]);
}

/// Lets what `after` is given from now on come after what `before` has been given.
fn order(device: &Arc<dyn Device>, before: StreamHandle, after: StreamHandle) {
    let event = Event::new(device, EventKind::Order).unwrap();
    device.record_event(event.handle(), before).unwrap();
    device.wait_event(after, event.handle()).unwrap();
}

/// Random programs in which blocks are read by streams beside their own, in order, and freed while
/// that goes on.
#[test]
fn uses_on_any_streams_are_kept_apart_in_random_programs() {
    let mut put_off = 0;
    for seed in 0..40 {
        let (machine, device, shared) = open(small_device().seed(seed));
        let pool = PoolOptions::new().growth(small_pages()).build(&shared).unwrap();
        let mut random = Random::new(seed);
        let streams: Vec<StreamHandle> =
            (0..3).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
        let wrong = Arc::new(AtomicU64::new(0));
        let mut live: Vec<(Block, u8, StreamHandle)> = Vec::new();
        for step in 0..300_u32 {
            let tag = u8::try_from(step % 251).unwrap();
            let stream = *random.pick(&streams).unwrap();
            match random.below(4) {
                0 | 1 if live.len() < 20 => {
                    let size = Bytes::new(size_up_to(&mut random, 4, 17));
                    let Ok(block) = pool.allocate(size, stream) else { continue };
                    write(&device, block, tag, stream);
                    live.push((block, tag, stream));
                }
                2 => {
                    // Read on another stream, after it was written; only the pool was told.
                    let Some(&(block, tag, own)) = random.pick(&live) else { continue };
                    order(&shared, own, stream);
                    check(&device, block, tag, stream, &wrong);
                    pool.record_use(block.address(), stream).unwrap();
                }
                _ => {
                    let Some(index) = random.index(live.len()) else { continue };
                    let (block, tag, own) = live.swap_remove(index);
                    check(&device, block, tag, own, &wrong);
                    pool.free(block.address(), own).unwrap();
                    put_off += u64::from(pool.shared.backing().deferred.returns().count() > 0);
                }
            }
        }
        for (block, tag, own) in live {
            check(&device, block, tag, own, &wrong);
            pool.free_block(block, own).unwrap();
        }
        device.synchronize_device().unwrap();
        pool.process_deferred().unwrap();
        pool.trim(Bytes::ZERO).unwrap();
        assert_eq!(pool.held(), Bytes::ZERO, "seed {seed}: something never came back");
        drop(pool);
        assert_eq!(machine.finding_count(), 0, "seed {seed}: {}", machine.findings()[0]);
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "seed {seed}: bytes were overwritten");
        nothing_is_left(&machine);
    }
    assert!(put_off > 500, "only {put_off} frees were put off");
}

#[test]
fn uses_of_what_is_not_live_are_refused() {
    let (_, device, shared) = open(SimMachine::builder());
    let pool = Pool::new(&shared).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    let nowhere = Address::new(4096);
    assert_eq!(pool.record_use(nowhere, other).unwrap_err(), Error::NotABlock { address: nowhere });
    let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
    pool.record_use(block.address(), other).unwrap();
    pool.record_use(block.address(), other).unwrap();
    pool.record_use(block.address(), DEFAULT).unwrap();
    pool.free(block.address(), DEFAULT).unwrap();
    let error = pool.record_use(block.address(), other).unwrap_err();
    assert!(matches!(error, Error::DoubleFree { .. }), "{error}");
    assert!(pool.shared.heap().uses.is_empty(), "nothing is remembered of it");
}

/// One thread says that a block is used while another frees it, between its look at the block and its
/// claim of it: the block is live, and is freed with its use counted.
#[test]
fn a_use_noted_while_the_block_is_freed_is_no_error() {
    let (machine, device, shared) = open(SimMachine::builder());
    for aids in [false, true] {
        let options = PoolOptions::new().set(|set| set.canaries(aids));
        let pool = options.build(&shared).unwrap();
        let other = device.create_stream(Priority::Normal).unwrap();
        let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        write(&device, block, 1, other);
        let (looks, user) = (Arc::new(AtomicU64::new(0)), pool.clone());
        let counted = Arc::clone(&looks);
        let note = move |step| {
            if step == Step::Claiming && counted.fetch_add(1, Ordering::Relaxed) == 0 {
                user.record_use(block.address(), other).unwrap();
            }
        };
        let free = || free::free_below(&pool.shared, block.address(), DEFAULT, FreeClaim::Any);
        stepping(note, free).unwrap();
        assert_eq!(looks.load(Ordering::Relaxed), 2, "what is there now is checked too");
        assert!(pool.shared.heap().uses.is_empty());
        let next = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        write(&device, next, 2, DEFAULT);
        device.synchronize_device().unwrap();
        drop(pool);
    }
    assert_eq!(machine.finding_count(), 0);
}
