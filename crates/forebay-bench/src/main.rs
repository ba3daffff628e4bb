//! One hot pair again and again, for an instruction counter to look at.
//!
//! `hot_pair PAIRS WAY`: WAY is `address` (free by address alone), `sized`, `block`, `uncounted` (as
//! `address`, with no statistics), `history` (as `address`, with events recorded), `stacks` (with events and call stacks
//! recorded, at the end of 17 calls), `array` (a handle that frees itself), `pinned` (the same in pinned memory), `heap`
//! (past the thread's cache: blocks of many sizes that live long) or `none` (the loop without the pair).
//! `cargo xtask instructions` runs it under callgrind.
#![allow(clippy::unwrap_used, reason = "a probe that cannot go on has nothing to say")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use forebay::sim::{CostModel, MemoryModel, SimMachine};
use forebay::{Address, Bytes, Device, PinnedPool, Pool, PoolOptions, StreamHandle};

const LENGTH: usize = 64 << 10;
const SIZE: Bytes = Bytes::new(LENGTH as u64);
const SETTLED: Duration = Duration::from_millis(500);
const STREAM: StreamHandle = StreamHandle::DEFAULT;

fn main() {
    let mut words = std::env::args().skip(1);
    let pairs: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or(1000);
    let way = words.next().unwrap_or_else(|| "address".to_owned());
    let machine = SimMachine::builder()
        .memory(MemoryModel::Phantom)
        .costs(CostModel::Free)
        .checked(false)
        .build()
        .unwrap();
    let device: Arc<dyn Device> = machine.device(0).unwrap();
    let stacks = way == "stacks";
    let history = if stacks || way == "history" { 4096 } else { 0_u64 };
    let options = PoolOptions::new().set(|settings| settings.history(history).stacks(stacks));
    let pool = options.build(&device).unwrap();
    // The first pool starts a thread that registers for barriers. Its instructions are counted too, so they must all
    // come before the end of every run.
    std::thread::sleep(SETTLED);
    // The first two make the shelf and the bin.
    for _ in 0..2 {
        let block = pool.allocate(SIZE, STREAM).unwrap();
        pool.free(block.address(), STREAM).unwrap();
    }
    match way.as_str() {
        "address" | "history" => by_address(&pool, pairs),
        "sized" => by_size(&pool, pairs),
        "block" => by_block(&pool, pairs),
        "stacks" => nested(&pool, pairs, 16),
        "uncounted" => uncounted(&pool, pairs),
        "array" => array(&pool, pairs),
        "pinned" => pinned(&PinnedPool::new(&device).unwrap(), pairs),
        "heap" => held(&pool, pairs),
        _ => nothing(pairs),
    }
}

#[inline(never)]
fn by_address(pool: &Pool, pairs: u64) {
    for _ in 0..pairs {
        let block = pool.allocate(black_box(SIZE), black_box(STREAM)).unwrap();
        pool.free(black_box(block.address()), black_box(STREAM)).unwrap();
    }
}

/// A stack of a program's depth.
#[inline(never)]
fn nested(pool: &Pool, pairs: u64, calls: u32) {
    match calls {
        0 => by_address(pool, pairs),
        _ => nested(black_box(pool), pairs, calls - 1),
    }
    black_box(calls);
}

#[inline(never)]
fn by_size(pool: &Pool, pairs: u64) {
    for _ in 0..pairs {
        let block = pool.allocate(black_box(SIZE), black_box(STREAM)).unwrap();
        pool.free_sized(black_box(block.address()), SIZE, black_box(STREAM)).unwrap();
    }
}

#[inline(never)]
fn by_block(pool: &Pool, pairs: u64) {
    for _ in 0..pairs {
        let block = pool.allocate(black_box(SIZE), black_box(STREAM)).unwrap();
        pool.free_block(block, black_box(STREAM)).unwrap();
    }
}

#[inline(never)]
fn uncounted(pool: &Pool, pairs: u64) {
    for _ in 0..pairs {
        let block = pool.allocate_uncounted(black_box(SIZE), black_box(STREAM)).unwrap();
        pool.free_uncounted(black_box(block.address()), black_box(STREAM)).unwrap();
    }
}

#[inline(never)]
fn array(pool: &Pool, pairs: u64) {
    for _ in 0..pairs {
        drop(black_box(pool.on(black_box(STREAM)).uninit::<u8>(black_box(LENGTH)).unwrap()));
    }
}

#[inline(never)]
fn pinned(pool: &PinnedPool, pairs: u64) {
    for _ in 0..pairs {
        drop(black_box(pool.array::<u8>(black_box(LENGTH)).unwrap()));
    }
}

/// Frees one of many live blocks and allocates another of a random size up to 8 MiB: most calls reach the heap.
#[inline(never)]
fn held(pool: &Pool, pairs: u64) {
    let mut state = 1_u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let allocate = |which: u64| {
        let size = Bytes::new(256 + (which & 0xff) * (256 << (which >> 8 & 7)));
        pool.allocate(black_box(size), black_box(STREAM)).unwrap()
    };
    let mut live: Vec<_> = (0..512).map(|_| allocate(random())).collect();
    for _ in 0..pairs {
        let place = (random() % 512) as usize;
        let freed = std::mem::replace(&mut live[place], allocate(random()));
        pool.free(black_box(freed.address()), black_box(STREAM)).unwrap();
    }
}

/// What the loop itself costs.
#[inline(never)]
fn nothing(pairs: u64) {
    for _ in 0..pairs {
        black_box(black_box(SIZE));
        black_box(black_box(STREAM));
        black_box(black_box(Address::NULL));
        black_box(black_box(STREAM));
    }
}
