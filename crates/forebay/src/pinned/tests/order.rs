//! When pinned memory is reused, and when the host may touch it.

use std::collections::VecDeque;

use forebay_hal::{Copy, Location, Transfers};

use super::*;

const LENGTH: usize = 1 << 20;

#[test]
fn memory_that_no_stream_used_is_reused_at_once() {
    let bench = Bench::new();
    for length in [1, 512, 70_000, LENGTH, 3 * LENGTH] {
        let first = bench.filled(length, 1);
        let address = first.address();
        drop(first);
        assert_eq!(bench.filled(length, 2).address(), address, "{length} bytes");
    }
    let driver = bench.pinned.statistics().driver;
    assert_eq!(driver.of(forebay_hal::Call::RecordEvent), 0, "nothing to wait for");
}

#[test]
fn a_free_while_a_copy_reads_is_not_reused_before_it_is_done() {
    let bench = Bench::new();
    let mut array = bench.array(LENGTH, DEFAULT);
    let gate = bench.close(DEFAULT);
    let first = bench.filled(LENGTH, 1);
    let address = first.address();
    first.copy_to(&mut array).unwrap();
    drop(first);
    assert_eq!(bench.pinned.statistics().live, Bytes::ZERO, "it is free, and cannot be had yet");
    let second = bench.filled(LENGTH, 2);
    assert_ne!(second.address(), address);
    drop(gate);
    assert_eq!(contents(&array), vec![1; LENGTH], "what was there when the copy was enqueued");
    bench.pinned.raw().process_deferred().unwrap();
    assert_eq!(bench.filled(LENGTH, 3).address(), address, "its memory has come back");
    bench.assert_no_race();
}

#[test]
fn a_free_while_a_copy_writes_is_not_reused_before_it_is_done() {
    let bench = Bench::new();
    let mut array = bench.array(LENGTH, DEFAULT);
    array.copy_from_slice(&vec![7; LENGTH]).unwrap();
    let gate = bench.close(DEFAULT);
    let mut first = bench.filled(LENGTH, 1);
    first.copy_from(&array).unwrap();
    drop(first);
    let second = bench.filled(LENGTH, 2);
    drop(gate);
    bench.device.synchronize_device().unwrap();
    assert_eq!(second.host().unwrap(), vec![2; LENGTH], "written by nobody but the host");
    bench.assert_no_race();
}

#[test]
fn memory_whose_copy_is_done_is_reused_at_once_whatever_the_stream_does_next() {
    let bench = Bench::new();
    let mut array = bench.array(LENGTH, DEFAULT);
    let first = bench.filled(LENGTH, 1);
    let address = first.address();
    first.copy_to(&mut array).unwrap();
    first.wait().unwrap();
    let gate = bench.close(DEFAULT);
    drop(first);
    assert_eq!(bench.filled(LENGTH, 2).address(), address);
    drop(gate);
}

#[test]
fn the_host_waits_for_writes_before_it_reads_and_for_reads_before_it_writes() {
    let bench = Bench::new();
    let mut array = bench.array(LENGTH, DEFAULT);
    let mut pinned = bench.filled(LENGTH, 5);
    let gate = bench.close(DEFAULT);
    pinned.copy_to(&mut array).unwrap();
    assert!(!pinned.is_idle());
    assert_eq!(pinned.host().unwrap()[0], 5, "reading beside a copy that reads needs no wait");
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(core::time::Duration::from_millis(30));
            opened.store(true, Ordering::SeqCst);
            drop(gate);
        });
        pinned.host_mut().unwrap().fill(6);
        assert!(opened.load(Ordering::SeqCst), "written while the copy was reading");
    });
    assert_eq!(contents(&array), vec![5; LENGTH]);
    pinned.copy_from(&array).unwrap();
    assert_eq!(pinned.host().unwrap(), vec![5; LENGTH], "the copy was waited for");
    assert!(pinned.is_idle());
    bench.assert_no_race();
}

#[test]
fn a_stream_that_is_destroyed_and_whose_handle_comes_back_keeps_the_memory_until_it_is_done() {
    let bench =
        Bench::with(SimMachine::builder().handles(HandleReuse::AtOnce), PinnedOptions::new());
    let stream = bench.stream();
    let mut array = bench.array(LENGTH, stream);
    let gate = bench.close(stream);
    let first = bench.filled(LENGTH, 1);
    let address = first.address();
    first.copy_to(&mut array).unwrap();
    bench.pool.forget_stream(stream).unwrap();
    bench.device.destroy_stream(stream).unwrap();
    assert_eq!(bench.stream(), stream, "the handle stands for another stream now");
    drop(first);
    let second = bench.filled(LENGTH, 2);
    assert_ne!(second.address(), address);
    drop((gate, array));
    bench.device.synchronize_device().unwrap();
    bench.assert_no_race();
}

#[test]
fn work_that_the_program_enqueued_itself_is_recorded() {
    let bench = Bench::with(SimMachine::builder(), PinnedOptions::new().mapped());
    let stream = bench.stream();
    let mut first = bench.filled(LENGTH, 1);
    let address = first.address();
    let span = forebay_core::Span::new(first.device_address().unwrap(), Bytes::mib(1)).unwrap();
    let gate = bench.close(stream);
    let kernel = forebay_sim::Kernel::new("fill").writes(span).body(move |memory| {
        assert!(memory.write(span, &vec![9; LENGTH]));
    });
    // SAFETY: the array lives, and is told of the kernel.
    unsafe { bench.device.launch(kernel, stream) }.unwrap();
    first.written_on(stream).unwrap();
    first.read_on(stream).unwrap();
    drop(gate);
    assert_eq!(first.host().unwrap(), vec![9; LENGTH]);
    drop(first);
    bench.pinned.raw().process_deferred().unwrap();
    assert_eq!(bench.filled(LENGTH, 2).address(), address);
    bench.assert_no_race();
}

/// Loaders that fill, copy and drop on several streams, as fast as they can: no byte arrives wrong.
#[test]
fn random_programs_copy_what_the_host_wrote() {
    for seed in 0..20 {
        both_kinds().into_iter().for_each(|machine| random_program(machine, seed));
    }
}

fn random_program(machine: SimOptions, seed: u64) {
    let options = PinnedOptions::new().max_bytes(Bytes::mib(2));
    let bench = Bench::with(machine.seed(seed), options);
    let mut random = Random::new(seed);
    let streams: Vec<StreamHandle> = (0..3).map(|_| bench.stream()).collect();
    let mut copied: VecDeque<(DeviceArray<u8>, u8)> = VecDeque::new();
    for step in 0..200_u32 {
        let value = u8::try_from(step % 251).unwrap();
        let magnitude = random.between(4, 19);
        let length = usize::try_from(1 + random.below(1 << magnitude)).unwrap();
        let batch = bench.filled(length, value);
        let mut array = bench.array(length, *random.pick(&streams).unwrap());
        batch.copy_to(&mut array).unwrap();
        if random.chance(1, 3) {
            let mut back = bench.filled(length, 0);
            back.copy_from(&array).unwrap();
            drop(batch);
            if random.chance(1, 2) {
                assert_eq!(back.host().unwrap(), vec![value; length], "seed {seed}");
            }
        }
        copied.push_back((array, value));
        if copied.len() > 20 {
            let (array, value) = copied.pop_front().unwrap();
            assert_eq!(contents(&array), vec![value; array.len()], "seed {seed}");
        }
    }
    assert!(bench.pinned.held() <= Bytes::mib(2));
    bench.assert_no_race();
    drop((copied, bench.pinned, bench.pool));
    let left = bench.machine.census();
    assert_eq!((left.blocks, left.events, left.streams), (0, 0, 4), "{left}");
    assert_eq!((left.pages, left.mappings, left.regions), (0, 0, 0), "{left}");
}

/// A stream that ends between the work and the call that records it: the work goes on, and keeps the memory.
#[test]
fn work_of_a_stream_that_ended_keeps_the_memory() {
    let bench = Bench::new();
    let stream = bench.stream();
    let array = bench.array(LENGTH, stream);
    let gate = bench.close(stream);
    let pinned = bench.filled(LENGTH, 1);
    let (host, device) = (Location::Host(pinned.address()), Location::Device(array.address()));
    let copy = Copy::linear(device, host, Bytes::new(LENGTH as u64)).unwrap();
    // SAFETY: both sides live until the copy is done, which the pools see to.
    unsafe { bench.device.copy(&copy, stream) }.unwrap();
    bench.device.destroy_stream(stream).unwrap();
    pinned.read_on(stream).unwrap_err();
    assert!(!pinned.is_idle());
    let address = pinned.address();
    drop(pinned);
    assert_ne!(bench.filled(LENGTH, 2).address(), address);
    drop(gate);
    bench.device.synchronize_device().unwrap();
    bench.pinned.trim(Bytes::ZERO).unwrap();
    assert_eq!(bench.pinned.held(), Bytes::ZERO, "nothing is lost");
    bench.assert_no_race();
}

/// During a capture no event is recorded, queried or waited for, and what is used meanwhile comes back afterwards.
#[test]
fn a_capture_sees_nothing_of_pinned_memory() {
    use forebay_hal::Call;
    let bench = Bench::new();
    let mut array = bench.array(LENGTH, DEFAULT);
    let before = bench.filled(LENGTH, 1);
    before.copy_to(&mut array).unwrap();
    let seen = || {
        let calls = bench.machine.calls();
        [Call::CreateEvent, Call::RecordEvent, Call::QueryEvent, Call::SynchronizeEvent]
            .map(|call| calls.of(call))
    };
    let (at_first, capture) = (seen(), bench.pinned.capture().unwrap());
    let during = bench.pinned.array::<u8>(LENGTH).unwrap();
    during.copy_to(&mut array).unwrap();
    assert!(!during.is_idle() && !before.is_idle(), "it cannot be asked");
    drop(before);
    drop(during);
    drop(bench.pinned.array::<u8>(LENGTH).unwrap());
    assert_eq!(seen(), at_first);
    drop(capture);
    bench.pinned.trim(Bytes::ZERO).unwrap();
    assert_eq!(bench.pinned.held(), Bytes::ZERO);
    bench.assert_no_race();
}
