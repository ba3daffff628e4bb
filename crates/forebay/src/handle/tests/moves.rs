//! Whatever a handle has enqueued, and wherever it goes then: nobody gets the memory before that work is done.
//!
//! A new asynchronous method of a handle belongs into [`WORK`], a new way to leave its stream into [`WAYS`].

use forebay_hal::{Priority, Stream};
use forebay_sim::HandleReuse;

use super::*;
use crate::PinnedPool;
use crate::arena::Arena;
use crate::transfer::TransferEngine;

const LENGTH: usize = 1 << 20;

/// A machine, and two streams. The first may end at any time, and its handle come back as another stream's.
struct Yard {
    bench: Bench,
    first: Option<Stream>,
    second: Stream,
    pinned: PinnedPool,
    engine: TransferEngine,
}

impl Yard {
    fn new(seed: u64) -> Self {
        let machine = SimMachine::builder().seed(seed).handles(HandleReuse::AtOnce);
        let bench = Bench::with(machine, PoolOptions::new());
        let stream = || Stream::new(&bench.device, Priority::Normal).unwrap();
        let (first, second) = (Some(stream()), stream());
        let pinned = PinnedPool::new(&bench.device).unwrap();
        let engine = TransferEngine::new(&bench.device).unwrap();
        Self { bench, first, second, pinned, engine }
    }

    fn first(&self) -> StreamHandle {
        self.first.as_ref().unwrap().handle()
    }

    fn second(&self) -> StreamHandle {
        self.second.handle()
    }

    fn array(&self) -> DeviceArray<u8> {
        self.bench.pool.on(self.first()).uninit(LENGTH).unwrap()
    }

    /// Waits until the engine has dropped the arrays of tickets that were dropped.
    fn wait_for_transfers(&self) {
        let begun = std::time::Instant::now();
        while !self.bench.live().is_zero() {
            assert!(begun.elapsed().as_secs() < 60, "{} live", self.bench.live());
            std::thread::yield_now();
        }
    }

    /// Ends the first stream, and makes another, which gets its handle.
    fn replace_first(&mut self) {
        let handle = self.first();
        self.first = None;
        self.first = Some(Stream::new(&self.bench.device, Priority::Normal).unwrap());
        assert_eq!(self.first(), handle, "the driver gives the handle out again");
    }
}

type Work = (&'static str, fn(&Yard) -> DeviceArray<u8>);

/// Every call by which safe code enqueues work on an array's memory without waiting for it.
const WORK: &[Work] = &[
    ("nothing", |yard| yard.array()),
    ("zeros", |yard| yard.bench.pool.on(yard.first()).zeros(LENGTH).unwrap()),
    ("fill", |yard| {
        let mut array = yard.array();
        array.fill(7).unwrap();
        array
    }),
    ("a copy from pinned memory", |yard| {
        let mut array = yard.array();
        yard.pinned.array::<u8>(LENGTH).unwrap().copy_to(&mut array).unwrap();
        array
    }),
    ("a copy to pinned memory", |yard| {
        let array = yard.array();
        yard.pinned.array::<u8>(LENGTH).unwrap().copy_from(&array).unwrap();
        array
    }),
    ("an upload that is ordered", |yard| {
        let upload = yard.engine.upload(vec![1_u8; LENGTH], yard.array());
        upload.submit().unwrap().order().unwrap().1
    }),
    ("a download that is ordered", |yard| {
        let download = yard.engine.download(yard.array(), vec![1_u8; LENGTH]);
        download.submit().unwrap().order().unwrap().0
    }),
    ("a copy from a vector", |yard| {
        yard.bench.pool.on(yard.first()).from_vec(vec![1_u8; LENGTH]).unwrap()
    }),
    ("a copy from an array of another stream", |yard| {
        let other = yard.bench.pool.on(yard.second()).filled(LENGTH, 3_u8).unwrap();
        let mut array = yard.array();
        array.slice_mut(100..).unwrap().copy_from(other.slice(100..).unwrap()).unwrap();
        array
    }),
    ("a copy to an array of another stream", |yard| {
        let array = yard.bench.pool.on(yard.first()).filled(LENGTH, 3_u8).unwrap();
        yard.bench.pool.on(yard.second()).uninit(LENGTH).unwrap().copy_from(&array).unwrap();
        array
    }),
    ("a copy of itself", |yard| {
        let array = yard.bench.pool.on(yard.first()).filled(LENGTH, 3_u8).unwrap();
        array.try_clone().unwrap()
    }),
    ("growth", |yard| {
        let mut array = yard.bench.pool.on(yard.first()).filled(LENGTH / 2, 3_u8).unwrap();
        array.resize(LENGTH, 4).unwrap();
        array
    }),
    ("a kernel, as unsafe code may launch it", |yard| {
        let array = yard.array();
        yard.bench.write("kernel", array.block().block(), yard.first());
        array
    }),
    ("fill on two streams", |yard| {
        let mut array = yard.array();
        array.fill(7).unwrap();
        array.hand_over_to(yard.second()).unwrap();
        array.fill(8).unwrap();
        array.hand_over_to(yard.first()).unwrap();
        array
    }),
];

type Way = (&'static str, fn(&mut Yard, DeviceArray<u8>));

/// Every way in which a handle leaves its stream or its block.
const WAYS: &[Way] = &[
    ("drop", |_, array| drop(array)),
    ("free", |_, array| array.free().unwrap()),
    ("free_on", |yard, array| array.into_block().free_on(yard.second()).unwrap()),
    ("set_stream", |yard, mut array| array.set_stream(yard.second())),
    ("set_stream and back", |yard, mut array| {
        array.set_stream(yard.second());
        array.set_stream(yard.first());
        array.into_block().free_on(yard.second()).unwrap();
    }),
    ("hand_over_to", |yard, mut array| array.hand_over_to(yard.second()).unwrap()),
    ("into_raw, freed elsewhere", |yard, array| {
        let block = array.into_block().into_raw().unwrap();
        yard.bench.pool.free_block(block, yard.second()).unwrap();
    }),
    ("into_raw, freed by address", |yard, array| {
        let block = array.into_block().into_raw().unwrap();
        crate::process::free(block.address(), yard.second()).unwrap();
    }),
    ("into_raw and from_raw", |yard, array| {
        let block = array.into_block().into_raw().unwrap();
        // SAFETY: nobody else owns it, and what was enqueued is recorded.
        drop(unsafe { OwnedBlock::from_raw(yard.bench.pool.clone(), block, yard.second()) });
    }),
    ("from_block", |yard, array| {
        let mut array = DeviceArray::<u16>::from_block(array.into_block(), LENGTH / 2).unwrap();
        array.set_stream(yard.second());
    }),
    ("used_on", |yard, array| {
        array.block().used_on(yard.second());
        yard.bench.order(yard.first(), yard.second());
        yard.bench.read("reader", array.block().block(), yard.second());
        array.into_block().free_on(yard.second()).unwrap();
    }),
    ("shared", |yard, array| {
        let shared = SharedBlock::from(array.into_block());
        shared.clone().into_owned().unwrap_err();
        shared.into_owned().unwrap().free_on(yard.second()).unwrap();
    }),
    ("the stream ends, drop", |yard, array| {
        yard.replace_first();
        drop(array);
    }),
    ("the stream ends, free_on", |yard, array| {
        yard.replace_first();
        array.into_block().free_on(yard.second()).unwrap();
    }),
    ("the stream ends, set_stream to the one with its handle", |yard, mut array| {
        yard.replace_first();
        array.set_stream(yard.first());
    }),
    ("the stream ends, hand_over_to", |yard, mut array| {
        yard.replace_first();
        array.hand_over_to(yard.first()).unwrap();
        array.fill(9).unwrap();
    }),
    ("the stream ends, fill", |yard, mut array| {
        yard.replace_first();
        array.fill(9).unwrap();
    }),
    ("the stream ends, into_raw", |yard, array| {
        yard.replace_first();
        let block = array.into_block().into_raw().unwrap();
        yard.bench.pool.free_block(block, yard.first()).unwrap();
    }),
    ("the stream ends after set_stream", |yard, mut array| {
        array.set_stream(yard.second());
        yard.replace_first();
    }),
    ("the stream ends, an upload", |yard, array| {
        yard.replace_first();
        drop(yard.engine.upload(vec![1_u8; LENGTH], array).submit().unwrap());
    }),
    ("an upload, the stream ends", |yard, array| {
        let ticket = yard.engine.upload(vec![1_u8; LENGTH], array).submit().unwrap();
        yard.replace_first();
        drop(ticket);
    }),
];

#[test]
fn a_handle_carries_its_work_wherever_it_goes() {
    for &(work, enqueue) in WORK {
        for (number, &(way, leave)) in WAYS.iter().enumerate() {
            for seed in 0..4 {
                let mut yard = Yard::new(seed * 100 + number as u64);
                let array = enqueue(&yard);
                leave(&mut yard, array);
                // Whoever has the memory next writes at once.
                let (first, second) = (yard.first(), yard.second());
                let next: Vec<_> = [second, first, second, DEFAULT]
                    .map(|stream| yard.bench.pool.on(stream).zeros::<u8>(LENGTH).unwrap())
                    .into();
                let races = yard.bench.races();
                let found = yard.bench.machine.findings();
                assert_eq!(races, 0, "{work}, then {way}: {:?}", found.first());
                drop(next);
                yard.wait_for_transfers();
                // Nor do pages go that work still uses.
                yard.bench.pool.trim(Bytes::ZERO).unwrap();
                assert_eq!(yard.bench.races(), 0, "{work}, then {way}, then trim");
                assert_eq!(yard.bench.pool.held(), Bytes::ZERO, "{work}, then {way}: lost");
            }
        }
    }
}

/// The checker does find work that is left behind, by the form that takes its caller's word.
#[test]
fn work_that_is_left_behind_is_found() {
    let yard = Yard::new(1);
    let array = yard.bench.pool.on(yard.first()).zeros::<u8>(LENGTH).unwrap();
    // SAFETY: not kept on purpose: the checker must find out, and the memory is the simulated device's.
    let block = unsafe { array.into_block().into_raw_unused() };
    yard.bench.pool.free_block(block, yard.second()).unwrap();
    let next = yard.bench.pool.on(yard.second()).zeros::<u8>(LENGTH).unwrap();
    assert_eq!(next.address(), block.address());
    assert!(yard.bench.races() > 0);
}

/// As the first, where the pages go right after the handle: a trim waits for the work.
#[test]
fn pages_wait_for_the_work_of_a_handle() {
    for &(work, enqueue) in WORK {
        for &(way, leave) in WAYS {
            let mut yard = Yard::new(5);
            let array = enqueue(&yard);
            leave(&mut yard, array);
            yard.bench.pool.trim(Bytes::ZERO).unwrap();
            assert_eq!(yard.bench.races(), 0, "{work}, then {way}, then trim");
        }
    }
}

#[test]
fn an_arena_that_outlives_its_stream_keeps_the_order() {
    for seed in 0..20 {
        let mut yard = Yard::new(seed);
        let arena = Arena::new(yard.bench.pool.clone(), Bytes::mib(1), yard.first()).unwrap();
        let block = yard.bench.pool.block_at(arena.base()).unwrap();
        yard.bench.write("kernel", block, yard.first());
        yard.replace_first();
        drop(arena);
        drop(yard.bench.pool.on(yard.first()).zeros::<u8>(LENGTH).unwrap());
        assert_eq!(yard.bench.races(), 0, "seed {seed}");
    }
}

type Later = (&'static str, fn(&Yard, DeviceArray<u8>));

/// Every call of a handle that works on its memory.
const LATER: &[Later] = &[
    ("fill", |_, mut array| array.fill(5).unwrap()),
    ("copy_from_slice", |_, mut array| array.copy_from_slice(&[1; LENGTH]).unwrap()),
    ("copy_to_slice", |_, array| array.copy_to_slice(&mut vec![1; LENGTH]).unwrap()),
    ("a copy from pinned memory", |yard, mut array| {
        yard.pinned.array::<u8>(LENGTH).unwrap().copy_to(&mut array).unwrap();
    }),
    ("an upload", |yard, array| {
        let _ = yard.engine.upload(vec![1_u8; LENGTH], array).submit().unwrap().wait().unwrap();
    }),
    ("a download", |yard, array| {
        let _ = yard.engine.download(array, vec![1_u8; LENGTH]).submit().unwrap().wait().unwrap();
    }),
    ("an upload in a scope", |yard, mut array| {
        let data = vec![1_u8; LENGTH];
        let sent = yard.engine.scope(|scope| scope.upload(&data, &mut array).submit()?.wait());
        sent.unwrap().unwrap();
    }),
    ("many uploads in a scope", |yard, mut array| {
        let data = vec![1_u8; LENGTH];
        let items = vec![(&data[..], &mut array)];
        let sent = yard.engine.scope(|scope| scope.upload_all(items).wait());
        sent.unwrap().into_iter().for_each(|each| each.unwrap());
    }),
    ("a comparison", |yard, array| {
        let data = vec![0_u8; LENGTH];
        let compared = yard.engine.scope(|scope| scope.compare(&array, &data).submit()?.wait());
        compared.unwrap().unwrap();
    }),
];

/// A handle's work on its new stream comes after its work on the one before, also if that has ended.
#[test]
fn work_after_a_move_comes_after_the_work_before_it() {
    for &(later, act) in LATER {
        for seed in 0..12 {
            let mut yard = Yard::new(seed);
            let array = yard.bench.pool.on(yard.first()).zeros::<u8>(LENGTH);
            let mut array = array.unwrap();
            array.set_stream(yard.second());
            if seed % 3 == 0 {
                yard.replace_first();
            }
            act(&yard, array);
            yard.bench.device.synchronize_device().unwrap();
            assert_eq!(yard.bench.machine.findings(), [], "{later}, seed {seed}");
        }
    }
}

/// The same for a pinned array: its copies on different streams do not overtake each other where they conflict.
#[test]
fn copies_of_a_pinned_array_keep_their_order() {
    for seed in 0..12 {
        let yard = Yard::new(seed);
        let array = |stream| yard.bench.pool.on(stream).zeros::<u8>(LENGTH).unwrap();
        let (mut one, other) = (array(yard.first()), array(yard.second()));
        let mut pinned = yard.pinned.array::<u8>(LENGTH).unwrap();
        pinned.copy_from(&other).unwrap();
        pinned.copy_to(&mut one).unwrap();
        pinned.copy_from(&other).unwrap();
        pinned.copy_from(&one).unwrap();
        pinned.copy_to(&mut one).unwrap();
        yard.bench.device.synchronize_device().unwrap();
        assert_eq!(yard.bench.machine.findings(), [], "seed {seed}");
    }
}

/// During a capture no wait can be enqueued: what would need one is an error, and nothing is enqueued.
#[test]
fn a_capture_refuses_work_that_cannot_be_ordered() {
    let yard = Yard::new(1);
    let mut array = yard.bench.pool.on(yard.first()).zeros::<u8>(LENGTH).unwrap();
    array.set_stream(yard.second());
    let capture = yard.bench.pool.capture().unwrap();
    let unsupported =
        |error| matches!(error, Error::Device(forebay_hal::Error::Unsupported { .. }));
    assert!(unsupported(array.fill(2).unwrap_err()));
    assert!(unsupported(array.to_vec().unwrap_err()));
    drop(capture);
    array.fill(2).unwrap();
    assert_eq!(array.to_vec().unwrap(), vec![2; LENGTH]);
    assert_eq!(yard.bench.machine.findings(), []);
}

/// What others do with the block on further streams holds up no work of the handle, and a move is waited for once.
#[test]
fn a_further_use_makes_no_stream_wait() {
    let yard = Yard::new(1);
    let waits = || yard.bench.machine.calls().of(Call::WaitEvent);
    let mut array = yard.bench.pool.on(yard.first()).zeros::<u8>(LENGTH).unwrap();
    array.block().used_on(yard.second());
    let before = waits();
    array.fill(1).unwrap();
    array.copy_to_slice(&mut vec![0; LENGTH]).unwrap();
    assert_eq!(waits(), before);
    array.set_stream(yard.second());
    for value in 0..3 {
        array.fill(value).unwrap();
    }
    assert_eq!(waits(), before + 1);
}
