//! Wrong frees, by every way there is to free: each is refused, and nothing changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forebay::{Block, Error, Pool};
use forebay_core::{Address, Bytes};
use forebay_hal::{Device, StreamHandle};
use forebay_sim::SimMachine;

use crate::trial::{Given, WAYS, Way, is_refusal};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// Two pools on one device, with blocks of several sizes live in the first and one in the second.
struct Yard {
    pool: Pool,
    live: Vec<Block>,
    freed: Vec<Block>,
    other: Pool,
    others: Block,
}

impl Yard {
    fn new() -> Self {
        // Real memory, so that addresses are of no other test's.
        let machine = SimMachine::builder().build().unwrap();
        let device: Arc<dyn Device> = machine.device(0).unwrap();
        let pool = Pool::new(&device).unwrap();
        let sizes = [1, 512, 700, 4096, 300 << 10, 3 << 20, 70 << 20];
        let allocate = |size: &u64| pool.allocate(Bytes::new(*size), DEFAULT).unwrap();
        let (live, freed): (Vec<Block>, Vec<Block>) =
            (sizes.iter().map(allocate).collect(), sizes.iter().map(allocate).collect());
        for block in &freed {
            pool.free(block.address(), DEFAULT).unwrap();
        }
        let other = Pool::new(&device).unwrap();
        let others = other.allocate(Bytes::new(5000), DEFAULT).unwrap();
        Self { pool, live, freed, other, others }
    }

    /// Everything that is not a live block of the first pool, with a word for it.
    fn wrongs(&self) -> Vec<(&'static str, Given)> {
        let at = |address: u64| Given {
            address: Address::new(address),
            block: None,
            requested: Bytes::ZERO,
            stream: DEFAULT,
        };
        let of = |block: &Block| Given {
            block: Some(*block),
            requested: block.size(),
            ..at(block.address().get())
        };
        let mut wrongs = Vec::new();
        for block in &self.live {
            let (start, size) = (block.address().get(), block.size().get());
            wrongs.push(("one byte into a block", at(start + 1)));
            wrongs.push(("the last byte of a block", at(start + size - 1)));
            if size > 512 {
                wrongs.push(("512 bytes into a block", at(start + 512)));
                wrongs.push(("half way into a block", at(start + size / 2 / 512 * 512)));
            }
        }
        wrongs.extend(self.freed.iter().map(|block| ("a block freed before", of(block))));
        let local = 0_u64;
        for address in [512, 1 << 40, u64::MAX, u64::MAX - 511, (&raw const local).addr() as u64] {
            wrongs.push(("an address of nobody", at(address)));
        }
        wrongs.push(("a block of another pool", of(&self.others)));
        wrongs
    }
}

#[test]
fn every_wrong_free_is_refused_by_every_way() {
    for Way { name, free } in WAYS {
        let yard = Yard::new();
        let before = yard.pool.statistics();
        let mut tried = 0;
        for (wrong, given) in yard.wrongs() {
            let Some(answer) = free(&yard.pool, given) else { continue };
            tried += 1;
            let error = answer.err().unwrap_or_else(|| panic!("{name}: {wrong} was freed"));
            assert!(is_refusal(&error), "{name}: {wrong}: {error}");
            assert!(error.to_string().contains("nothing was changed"), "{name}: {error}");
            assert_eq!(yard.pool.statistics(), before, "{name}: {wrong}");
        }
        assert!(tried >= 5, "{name} was tried only {tried} times");
        // What is live is what it was, here and in the other pool, and is freed as it should be.
        for block in &yard.live {
            assert_eq!(yard.pool.block_at(block.address()), Some(*block), "{name}");
            let given = Given {
                address: block.address(),
                block: Some(*block),
                requested: block.size(),
                stream: DEFAULT,
            };
            let freed = free(&yard.pool, given).unwrap_or_else(|| panic!("{name} frees nothing"));
            freed.unwrap_or_else(|error| panic!("{name}: {error}"));
        }
        yard.other.free(yard.others.address(), DEFAULT).unwrap();
        assert_eq!(yard.pool.statistics().live, Bytes::ZERO, "{name}");
    }
}

#[test]
fn null_is_freed_by_every_way_that_can_say_it() {
    let yard = Yard::new();
    let before = yard.pool.statistics();
    let null = yard.pool.allocate(Bytes::ZERO, DEFAULT).unwrap();
    assert_eq!((null.address(), null.size()), (Address::NULL, Bytes::ZERO));
    for Way { name, free } in WAYS {
        let given = Given {
            address: Address::NULL,
            block: Some(null),
            requested: Bytes::ZERO,
            stream: DEFAULT,
        };
        let Some(answer) = free(&yard.pool, given) else { continue };
        answer.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(yard.pool.statistics().live, before.live, "{name}");
    }
    assert_eq!(yard.pool.block_at(Address::NULL), None);
}

/// A pointer that was freed and given out again is the later block's: freeing it is right, once.
#[test]
fn an_address_given_out_again_is_freed_once() {
    let yard = Yard::new();
    let first = yard.pool.allocate(Bytes::mib(9), DEFAULT).unwrap();
    yard.pool.free(first.address(), DEFAULT).unwrap();
    let second = yard.pool.allocate(Bytes::mib(9), DEFAULT).unwrap();
    assert_eq!(first.address(), second.address(), "what was just freed is the best there is");
    yard.pool.free(second.address(), DEFAULT).unwrap();
    let error = yard.pool.free(second.address(), DEFAULT).unwrap_err();
    assert!(is_refusal(&error), "{error}");
}

/// Whoever has the block itself, not its address alone, is told that a later one lies there.
#[test]
fn a_block_whose_address_was_given_out_again_is_refused() {
    let yard = Yard::new();
    let first = yard.pool.allocate(Bytes::mib(9), DEFAULT).unwrap();
    yard.pool.free_block(first, DEFAULT).unwrap();
    let second = yard.pool.allocate(Bytes::mib(9), DEFAULT).unwrap();
    assert_eq!(first.address(), second.address(), "what was just freed is the best there is");
    let error = yard.pool.free_block(first, DEFAULT).unwrap_err();
    assert!(matches!(error, Error::StaleBlock { .. }), "{error}");
    assert_eq!(yard.pool.block_at(second.address()), Some(second));
    yard.pool.free_block(second, DEFAULT).unwrap();
}

#[test]
fn a_size_that_is_not_the_blocks_is_refused() {
    let yard = Yard::new();
    let requested = Bytes::new(3_000_000);
    let block = yard.pool.allocate(requested, DEFAULT).unwrap();
    let before = yard.pool.statistics();
    for wrong in [0, 1, 512, 2_999_999, block.size().get() + 512, u64::MAX] {
        let answer = yard.pool.free_sized(block.address(), Bytes::new(wrong), DEFAULT);
        let error = answer.err().unwrap_or_else(|| panic!("freed as {wrong} B"));
        assert!(matches!(error, Error::WrongSize { .. }), "{wrong}: {error}");
        assert_eq!(yard.pool.statistics(), before);
    }
    yard.pool.free_sized(block.address(), requested, DEFAULT).unwrap();
}

/// Waits, for as short a time as a thread can, until `cell` holds something other than `old`.
fn changed(cell: &AtomicU64, old: u64) -> u64 {
    let mut turn = 0_u64;
    loop {
        let now = cell.load(Ordering::Acquire);
        if now != old {
            return now;
        }
        turn += 1;
        // Where there is one processor for both, the other must get it.
        if turn.is_multiple_of(512) { thread::yield_now() } else { std::hint::spin_loop() }
    }
}

/// Two threads free the same block at the same time: one of them is right, and one is told. The
/// moment is some nanoseconds long, so they are brought together and try for a while: a mistake
/// here is found soon, not at once.
#[test]
fn of_two_frees_at_once_one_is_refused() {
    const OVER: u64 = u64::MAX;
    let yard = Yard::new();
    let before = yard.pool.statistics().live;
    let free = |address: u64| match yard.pool.free(Address::new(address), DEFAULT) {
        Ok(()) => 1,
        Err(error) if is_refusal(&error) => 0_u64,
        Err(error) => panic!("{error}"),
    };
    // Which round it is, the block of the round, and what came of the other's free.
    let [shown, block, answered] = [(); 3].map(|()| AtomicU64::new(0));
    let ending = Instant::now() + Duration::from_millis(1500);
    let both = thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            loop {
                round = changed(&shown, round);
                if round == OVER {
                    break;
                }
                let freed = free(block.load(Ordering::Relaxed));
                answered.store(round * 2 + freed, Ordering::Release);
            }
        });
        let (mut round, mut answer, mut delay) = (0, 0, 0_u64);
        let mut freed = 1;
        while freed == 1 && Instant::now() < ending {
            round += 1;
            let next = yard.pool.allocate(Bytes::new(5000), DEFAULT).unwrap().address().get();
            block.store(next, Ordering::Relaxed);
            shown.store(round, Ordering::Release);
            // A nanosecond or so each: a pause of the processor would step over the moment.
            for turn in 0..delay {
                std::hint::black_box(turn);
            }
            let here = free(next);
            answer = changed(&answered, answer);
            freed = here + (answer - round * 2);
            // Whoever was first waits longer the next time: so the two come together.
            delay = if here == 1 { (delay + 5).min(5_000) } else { delay.saturating_sub(5) };
        }
        shown.store(OVER, Ordering::Release);
        (round, freed)
    });
    assert_eq!(both.1, 1, "round {}: one block was freed {} times", both.0, both.1);
    assert_eq!(yard.pool.statistics().live, before);
}
