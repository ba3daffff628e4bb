//! Programs that do nothing wrong: no aid says otherwise, and data stays what it is.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Address, Bytes, Random};
use forebay_hal::{Call, Capabilities, Priority, StreamHandle, Streams};
use forebay_sim::{HandleReuse, MemoryModel, SimMachine};

use super::{
    COMBINATIONS, Change, Stage, count_other, order, size_up_to, small_machine, small_pages,
    span_of, write,
};
use crate::{Block, Error, PoolOptions};

/// A block, what was written to it, and where it will be freed.
type Live = (Block, u8, StreamHandle);

/// Allocates, uses, and frees on several streams that come and go: blocks are handed from stream to
/// stream by events, used on two at once by `record_use`, and freed where they are.
fn program(stage: &Stage, seed: u64, steps: u32) {
    let Stage { device, pool, .. } = stage;
    let mut random = Random::new(seed);
    let fresh = || device.create_stream(Priority::Normal).unwrap();
    let mut streams: Vec<StreamHandle> = (0..4).map(|_| fresh()).collect();
    let wrong = Arc::new(AtomicU64::new(0));
    let mut live: Vec<Live> = Vec::new();
    let mut used: BTreeSet<(Address, StreamHandle)> = BTreeSet::new();
    let end = |(block, byte, stream): Live| {
        count_other(device, span_of(block), byte, stream, &wrong);
        pool.free(block.address(), stream).unwrap();
    };
    for step in 0..steps {
        let byte = u8::try_from(step % 200).unwrap();
        let stream = *random.pick(&streams).unwrap();
        match random.below(20) {
            0..=9 if live.len() < 30 => match pool.allocate(size_up_to(&mut random, 17), stream) {
                Ok(block) => {
                    write(device, span_of(block), byte, stream);
                    live.push((block, byte, stream));
                }
                Err(Error::OutOfMemory { .. }) => {}
                Err(error) => panic!("{error}"),
            },
            10 => {
                if let Some(index) = random.index(live.len()) {
                    let (_, _, before) = live[index];
                    order(device, before, stream);
                    live[index].2 = stream;
                }
            }
            11 => {
                if let Some(index) = random.index(live.len()) {
                    let (block, byte, own) = live[index];
                    order(device, own, stream);
                    pool.record_use(block.address(), stream).unwrap();
                    used.insert((block.address(), stream));
                    count_other(device, span_of(block), byte, stream, &wrong);
                }
            }
            12 => {
                // A stream is destroyed once no live block is its own or was used on it.
                let index = random.index(streams.len()).unwrap();
                let gone = streams[index];
                let (of_it, others): (Vec<Live>, Vec<Live>) = std::mem::take(&mut live)
                    .into_iter()
                    .partition(|one| one.2 == gone || used.contains(&(one.0.address(), gone)));
                of_it.into_iter().for_each(end);
                live = others;
                pool.forget_stream(gone).unwrap();
                device.destroy_stream(gone).unwrap();
                used.retain(|&(_, stream)| stream != gone);
                streams[index] = fresh();
            }
            13 => device.synchronize_stream(stream).unwrap(),
            14 => pool.check().unwrap(),
            15 if step % 3 == 0 => drop(pool.trim(Bytes::ZERO).unwrap()),
            _ => {
                if let Some(index) = random.index(live.len()) {
                    end(live.swap_remove(index));
                }
            }
        }
    }
    live.into_iter().for_each(end);
    device.synchronize_device().unwrap();
    pool.check().unwrap();
    assert_eq!(wrong.load(Ordering::Relaxed), 0, "seed {seed}: bytes of blocks were overwritten");
    let figures = pool.statistics();
    assert_eq!((figures.live, figures.retired), (Bytes::ZERO, Bytes::ZERO));
}

fn assert_clean(stage: Stage, name: &str) {
    let Stage { machine, pool, .. } = stage;
    assert_eq!(machine.finding_count(), 0, "{name}: {}", machine.findings()[0]);
    assert_eq!(pool.findings(), [], "{name}");
    drop(pool);
    let left = machine.census();
    let left = (left.blocks, left.pages, left.mappings, left.regions, left.events);
    assert_eq!(left, (0, 0, 0, 0, 0), "{name}");
}

#[test]
fn nothing_right_is_taken_for_a_mistake() {
    for &(name, change) in COMBINATIONS {
        let mut waits = 0;
        for seed in 0..6 {
            let machine = small_machine(seed).handles(HandleReuse::AtOnce);
            let stage = Stage::new(machine, small_pages().set(change));
            program(&stage, seed, 300);
            waits += stage.pool.statistics().driver.of(Call::WaitEvent);
            assert_clean(stage, name);
        }
        assert!(waits > 0, "{name}: the pool never ordered one stream after another");
    }
}

#[test]
fn segments_are_looked_after_as_pages_are() {
    for &(name, change) in COMBINATIONS {
        let machine = small_machine(3).without(Capabilities::VIRTUAL_MEMORY);
        let unguarded: Change = |settings| settings.guard_pages(false);
        let options = small_pages().set(change).set(unguarded);
        let stage = Stage::new(machine.capacity(Bytes::mib(64)), options);
        program(&stage, 3, 200);
        assert_clean(stage, name);
    }
}

/// Memory of which there are addresses alone reads as nothing: the aids find nothing in it.
#[test]
fn a_device_that_keeps_no_bytes_raises_no_alarm() {
    for &(name, change) in COMBINATIONS {
        let machine = SimMachine::builder().memory(MemoryModel::Phantom);
        let stage = Stage::new(machine, PoolOptions::new().set(change));
        let stream = stage.device.create_stream(Priority::Normal).unwrap();
        for round in 1..50_u64 {
            let block = stage.pool.allocate(Bytes::new(round * 7777), stream).unwrap();
            stage.pool.free(block.address(), stream).unwrap();
        }
        stage.pool.check().unwrap();
        assert_clean(stage, name);
    }
}

/// Threads on streams of their own, and one that looks at everything all the while.
#[test]
fn threads_do_not_alarm_each_other() {
    for &(name, change) in COMBINATIONS {
        let options = small_pages().set(change);
        let stage = Stage::new(small_machine(8).capacity(Bytes::mib(16)), options);
        let wrong = Arc::new(AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4_u8 {
                let (Stage { device, pool, .. }, wrong) = (&stage, &wrong);
                scope.spawn(move || {
                    let mut random = Random::new(u64::from(thread));
                    let stream = device.create_stream(Priority::Normal).unwrap();
                    let mut live: Vec<(Block, u8)> = Vec::new();
                    for step in 0..80_u8 {
                        if thread == 0 && step % 8 == 0 {
                            pool.check().unwrap();
                        }
                        if live.len() < 8 && random.chance(3, 5) {
                            let size = size_up_to(&mut random, 16);
                            let block = pool.allocate(size, stream).unwrap();
                            write(device, span_of(block), step ^ thread, stream);
                            live.push((block, step ^ thread));
                        } else if let Some(index) = random.index(live.len()) {
                            let (block, byte) = live.swap_remove(index);
                            count_other(device, span_of(block), byte, stream, wrong);
                            pool.free(block.address(), stream).unwrap();
                        }
                    }
                    for (block, _) in live {
                        pool.free(block.address(), stream).unwrap();
                    }
                });
            }
        });
        stage.device.synchronize_device().unwrap();
        assert_eq!(wrong.load(Ordering::Relaxed), 0, "{name}");
        assert_eq!(stage.pool.statistics().live, Bytes::ZERO);
        assert_clean(stage, name);
    }
}
