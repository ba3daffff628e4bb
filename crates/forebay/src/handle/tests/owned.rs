use forebay_host::HostDevice;

use super::*;
use crate::{Pool, Request};

fn own(bench: &Bench, size: u64, stream: StreamHandle) -> OwnedBlock {
    bench.pool.on(stream).owned(Bytes::new(size)).unwrap()
}

#[test]
fn an_adopted_stream_is_forgotten_with_its_guard() {
    let bench = Bench::new();
    let raw = bench.device.make_foreign_stream();
    // SAFETY: the stream is destroyed below, after the guard is dropped.
    let theirs = unsafe { forebay_hal::Stream::foreign(&bench.device, raw) }.unwrap();
    let handle = theirs.handle();
    let knows = || bench.pool.statistics().streams.iter().any(|figures| figures.stream == handle);
    drop(bench.pool.on(handle).owned(Bytes::mib(1)).unwrap());
    assert!(knows());
    // SAFETY: as above.
    let again = unsafe { forebay_hal::Stream::foreign(&bench.device, raw) }.unwrap();
    // SAFETY: as above; the pool is told of the end of the stream by the drop of `theirs`.
    drop(unsafe { forebay_hal::Stream::borrowed(&bench.device, raw) }.unwrap());
    drop(again);
    assert!(knows(), "another has adopted it, and goes on to use it");
    drop(theirs);
    assert!(!knows(), "the driver may give the handle to another stream");
    assert!(bench.device.destroy_foreign_stream(raw));
    bench.assert_no_race();
}

#[test]
fn a_drop_gives_the_block_back_on_its_stream() {
    let bench = Bench::new();
    let stream = bench.stream();
    let recorder = Recorder::new(&bench.pool);
    let block = OwnedBlock::new(&recorder, Request::new(Bytes::new(1000), stream)).unwrap();
    assert_eq!(block.requested(), Bytes::new(1000));
    assert!(block.size() >= block.requested());
    assert_eq!(bench.live(), block.size());
    let address = block.address();
    drop(block);
    assert_eq!(bench.live(), Bytes::ZERO);
    assert_eq!(*recorder.frees.lock().unwrap(), [(address, stream)]);
}

#[test]
fn a_moved_handle_gives_back_once() {
    let turn = counting_lost();
    let bench = Bench::new();
    let before = lost_frees().count;
    let recorder = Recorder::new(&bench.pool);
    let block = OwnedBlock::new(&recorder, Request::new(Bytes::mib(1), DEFAULT)).unwrap();
    let boxed = Box::new(Some(block));
    let inside = |moved: Box<Option<OwnedBlock<Recorder>>>| assert!(moved.is_some());
    inside(boxed);
    assert_eq!(recorder.frees.lock().unwrap().len(), 1);
    assert_eq!((bench.live(), lost_frees().count - before), (Bytes::ZERO, 0));
    drop(turn);
}

#[test]
fn no_bytes_own_nothing() {
    let bench = Bench::new();
    let recorder = Recorder::new(&bench.pool);
    let nothing = OwnedBlock::new(&recorder, Request::new(Bytes::ZERO, DEFAULT)).unwrap();
    assert!(nothing.address().is_null());
    nothing.free().unwrap();
    assert!(recorder.frees.lock().unwrap().is_empty());
}

#[test]
fn a_raw_block_is_the_callers_until_it_is_owned_again() {
    let bench = Bench::new();
    let block = own(&bench, 5000, DEFAULT).into_raw().unwrap();
    assert_eq!(bench.live(), block.size());
    // SAFETY: the handle that owned it gave it up, and nothing was enqueued that uses it.
    let again = unsafe { OwnedBlock::from_raw(bench.pool.clone(), block, DEFAULT) };
    assert_eq!((again.block(), again.requested()), (block, block.size()));
    drop(again);
    assert_eq!(bench.live(), Bytes::ZERO);
}

/// Nobody but a handle gives back what it owns: no safe call may take memory from under it.
#[test]
fn what_a_handle_owns_is_freed_by_nobody_else() {
    let bench = Bench::new();
    // Those after the first come from the cache; the last waits for another stream when it is freed.
    for (length, used) in [9, 1 << 20]
        .into_iter()
        .flat_map(|length| [(length, false); 3].into_iter().chain([(length, true)]))
    {
        let array = bench.pool.on(DEFAULT).uninit::<u64>(length).unwrap();
        let (block, size) = (array.block().block(), array.block().size());
        let address = block.address();
        let refused = Error::Owned { address };
        assert_eq!(bench.pool.free(address, DEFAULT).unwrap_err(), refused);
        assert_eq!(bench.pool.free_sized(address, size, DEFAULT).unwrap_err(), refused);
        assert_eq!(bench.pool.free_block(block, DEFAULT).unwrap_err(), refused);
        assert_eq!(crate::process::free(address, DEFAULT).unwrap_err(), refused);
        // Nor does a second handle come to own it.
        assert_eq!(bench.pool.own(block).unwrap_err(), refused);
        assert_eq!(bench.pool.block_at(address), Some(block), "it is live all the same");
        assert_eq!((bench.live(), bench.pool.statistics().blocks), (size, 1));
        if used {
            bench.pool.record_use(address, bench.stream()).unwrap();
        }
        array.free().unwrap();
        let error = bench.pool.free(address, DEFAULT).unwrap_err();
        assert!(matches!(error, Error::DoubleFree { .. }), "{error}");
        assert_eq!((bench.live(), bench.pool.statistics().blocks), (Bytes::ZERO, 0));
    }
    let figures = bench.pool.statistics();
    assert_eq!((figures.allocations, figures.frees), (8, 8));
}

/// What is freed behind a handle's back, by an allocator that lets that happen, is told when the handle
/// frees it again, whichever way, in the allocator's own words.
#[test]
fn a_double_free_is_told_in_every_way() {
    let turn = counting_lost();
    let bench = Bench::new();
    let behind = |block: &OwnedBlock| {
        let address = block.address();
        // SAFETY: nothing reads or writes it from here on.
        unsafe { bench.pool.disown(block.block()) };
        bench.pool.free(address, DEFAULT).unwrap();
        bench.pool.free(address, DEFAULT).unwrap_err()
    };

    let block = own(&bench, 700, DEFAULT);
    let expected = behind(&block);
    let (block, error) = block.free().unwrap_err().into_parts();
    assert_eq!(error, expected);
    assert!(block.address().is_null(), "the memory is not the handle's any more");
    // The same if the allocator refuses the uses that come before the free.
    let block = own(&bench, 700, DEFAULT);
    block.used_on(bench.stream());
    let expected = behind(&block);
    let (block, error) = block.free().unwrap_err().into_parts();
    assert_eq!((error, block.address().is_null()), (expected, true));
    let block = own(&bench, 700, DEFAULT);
    let expected = behind(&block);
    let before = lost_frees().count;
    drop(block);
    let lost = lost_frees();
    assert_eq!((lost.count - before, lost.latest.unwrap().error), (1, expected));

    let block = own(&bench, 700, DEFAULT);
    let expected = behind(&block);
    drop(SharedBlock::from(block));
    assert_eq!(lost_frees().latest.unwrap().error, expected);

    let array = bench.pool.on(DEFAULT).uninit::<u64>(9).unwrap();
    let expected = behind(array.block());
    assert_eq!(*array.free().unwrap_err().error(), expected);
    drop(turn);
}

/// The address belongs to someone else by now: the old handle leaves it alone.
#[test]
fn a_later_block_is_not_freed_by_an_older_handle() {
    let turn = counting_lost();
    let bench = Bench::new();
    let recorder = Recorder::new(&bench.pool);
    let old = OwnedBlock::new(&recorder, Request::new(Bytes::new(700), DEFAULT)).unwrap();
    bench.pool.free(old.address(), DEFAULT).unwrap();
    let new = OwnedBlock::new(&recorder, Request::new(Bytes::new(700), DEFAULT)).unwrap();
    assert_eq!(new.address(), old.address(), "the pool did not give the address again");
    let (address, size) = (new.address(), new.size());
    let refused = old.free().unwrap_err();
    assert_eq!(*refused.error(), Error::StaleBlock { address, size });
    let before = lost_frees().count;
    drop(refused);
    assert_eq!((bench.live(), lost_frees().count - before), (size, 1));
    new.free().unwrap();
    assert_eq!(bench.live(), Bytes::ZERO);
    drop(turn);
}

#[test]
fn a_block_of_another_pool_is_refused() {
    let turn = counting_lost();
    let bench = Bench::new();
    let other = Pool::new(Allocate::device(&bench.pool)).unwrap();
    let block = own(&bench, 4096, DEFAULT).into_raw().unwrap();
    // SAFETY: not kept on purpose: the allocator must find out.
    let wrong = unsafe { OwnedBlock::from_raw(other.clone(), block, DEFAULT) };
    let expected = other.free(block.address(), DEFAULT).unwrap_err();
    let (wrong, error) = wrong.free().unwrap_err().into_parts();
    assert_eq!(error, expected);
    // SAFETY: no work uses it.
    assert_eq!(unsafe { wrong.into_raw_unused() }, block);
    assert_eq!(bench.live(), block.size());
    bench.pool.free(block.address(), DEFAULT).unwrap();
    drop(turn);
}

#[test]
fn a_free_that_fails_leaves_the_handle_and_its_stream() {
    let bench = Bench::new();
    let stream = bench.stream();
    let recorder = Recorder::new(&bench.pool);
    let block = OwnedBlock::new(&recorder, Request::new(Bytes::mib(1), DEFAULT)).unwrap();
    recorder.fail_frees(1);
    let refused = block.free_on(stream).unwrap_err();
    assert!(matches!(refused.error(), Error::Device(forebay_hal::Error::Transient { .. })));
    let block = refused.into_handle();
    assert_eq!(block.stream(), stream);
    block.free().unwrap();
    assert_eq!(recorder.frees.lock().unwrap()[0].1, stream);
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn a_drop_tries_twice_and_then_tells() {
    let turn = counting_lost();
    let bench = Bench::new();
    let recorder = Recorder::new(&bench.pool);
    let before = lost_frees().count;
    recorder.fail_frees(1);
    drop(OwnedBlock::new(&recorder, Request::new(Bytes::mib(1), DEFAULT)).unwrap());
    assert_eq!((bench.live(), lost_frees().count - before), (Bytes::ZERO, 0));

    recorder.fail_frees(2);
    let kept = OwnedBlock::new(&recorder, Request::new(Bytes::mib(1), DEFAULT)).unwrap();
    let block = kept.block();
    drop(kept);
    let lost = lost_frees();
    let latest = lost.latest.unwrap();
    assert_eq!((lost.count - before, latest.block, latest.stream), (1, block, DEFAULT));
    assert!(latest.to_string().contains("told to"), "{latest}");
    // It is still the pool's, and can be freed by what was noted.
    bench.pool.free(latest.block.address(), latest.stream).unwrap();
    assert_eq!(bench.live(), Bytes::ZERO);
    drop(turn);
}

/// Takes as much again on `stream` and writes it: the memory of the last block, in whose order it is.
/// Gives where it is.
fn write_next(bench: &Bench, stream: StreamHandle) -> Address {
    let next = own(bench, 1 << 20, stream);
    bench.write("next", next.block(), stream);
    next.address()
}

/// Used on another stream, then freed on its own: the memory is reused after both, and neither stream waits. Without
/// a word of the other stream the checker has something to find.
#[test]
fn noted_uses_defer_the_reuse() {
    for noted in [true, false] {
        let bench = Bench::new();
        let side = bench.stream();
        let block = own(&bench, 1 << 20, DEFAULT);
        bench.write("first", block.block(), side);
        if noted {
            block.used_on(side);
        }
        let address = block.address();
        drop(block);
        assert_eq!(bench.machine.calls().of(Call::WaitEvent), 0, "no stream waits");
        assert_eq!(write_next(&bench, DEFAULT) == address, !noted);
        assert_eq!(bench.races() == 0, noted);
        bench.pool.process_deferred().unwrap();
        let both = [own(&bench, 1 << 20, DEFAULT), own(&bench, 1 << 20, DEFAULT)];
        assert!(both.iter().any(|block| block.address() == address), "it comes back");
    }
}

#[test]
fn a_handle_that_is_handed_over_takes_its_order_along() {
    let bench = Bench::new();
    let [side, third] = [bench.stream(), bench.stream()];
    let mut block = own(&bench, 1 << 20, DEFAULT);
    bench.write("own", block.block(), DEFAULT);
    bench.order(DEFAULT, third);
    bench.read("third", block.block(), third);
    block.used_on(third);
    block.hand_over_to(side).unwrap();
    assert_eq!(block.stream(), side);
    bench.write("side", block.block(), side);
    drop(block);
    write_next(&bench, side);
    bench.assert_no_race();
}

#[test]
fn a_set_stream_orders_nothing() {
    let bench = Bench::new();
    let side = bench.stream();
    let mut block = own(&bench, 1 << 20, DEFAULT);
    let calls = bench.machine.calls().total();
    block.set_stream(side);
    assert_eq!((block.stream(), bench.machine.calls().total()), (side, calls));
    bench.write("side", block.block(), side);
    drop(block);
    write_next(&bench, side);
    bench.assert_no_race();
}

#[test]
fn settling_forgets_what_was_noted() {
    let bench = Bench::new();
    let side = bench.stream();
    let mut block = own(&bench, 1 << 20, DEFAULT);
    bench.write("side", block.block(), side);
    block.used_on(side);
    block.settle().unwrap();
    let waits = bench.machine.calls().of(Call::WaitEvent);
    drop(block);
    assert_eq!(bench.machine.calls().of(Call::WaitEvent), waits);
    write_next(&bench, DEFAULT);
    bench.assert_no_race();
}

/// Large sizes too, which the pool itself rounds to 512 B.
#[test]
fn about_the_same_large_size_is_served_from_the_same_block() {
    let bench = Bench::new();
    let gpu = bench.pool.default_stream();
    for mib in [2_u64, 8, 100] {
        let sizes = [Bytes::mib(mib), Bytes::mib(mib).saturating_sub(Bytes::new(3000))];
        let [first, second] = sizes.map(|size| {
            let rented = gpu.rent(size).unwrap();
            (rented.address(), rented.size())
        });
        assert_eq!(first, second, "{mib} MiB");
    }
}

/// Sizes that differ by less than an eighth share a block, in the order of the stream.
#[test]
fn about_the_same_size_is_served_from_the_cache() {
    let bench = Bench::new();
    let (gpu, side) = (bench.pool.default_stream(), bench.stream());
    let first = gpu.rent(Bytes::new(100_000)).unwrap();
    let address = first.address();
    assert!(first.size() >= Bytes::new(100_000) && first.size() <= Bytes::new(112_500));
    drop(first);
    let again = gpu.rent(Bytes::new(99_000)).unwrap();
    assert_eq!((again.address(), again.requested()), (address, Bytes::new(99_000)));
    assert_eq!(bench.pool.statistics().magazine_hits, 1);
    bench.write("side", again.block(), side);
    again.used_on(side);
    drop(again);
    let next = gpu.rent(Bytes::new(98_500)).unwrap();
    bench.write("next", next.block(), DEFAULT);
    bench.assert_no_race();
    assert!(gpu.rent(Bytes::ZERO).unwrap().address().is_null());
    assert!(matches!(gpu.rent(Bytes::MAX), Err(Error::OutOfMemory(_))));
    drop(next);
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn a_drop_does_not_wait_for_the_device() {
    let bench = Bench::new();
    let side = bench.stream();
    let block = own(&bench, 1 << 20, DEFAULT);
    bench.write("late", block.block(), side);
    block.used_on(side);
    drop(block);
    assert!(bench.machine.census().queued > 0, "the drop ran the work");
    let calls = bench.machine.calls();
    assert_eq!(calls.of(Call::SynchronizeStream) + calls.of(Call::SynchronizeDevice), 0);
}

#[test]
fn handles_cross_threads() {
    let bench = Bench::new();
    std::thread::scope(|scope| {
        let (sender, receiver) = std::sync::mpsc::channel::<OwnedBlock>();
        for thread in 0..4_u64 {
            let (sender, pool) = (sender.clone(), &bench.pool);
            scope.spawn(move || {
                for size in 1..200_u64 {
                    sender
                        .send(pool.on(DEFAULT).owned(Bytes::new(size * 97 + thread)).unwrap())
                        .unwrap();
                }
            });
        }
        drop(sender);
        scope.spawn(move || receiver.iter().for_each(drop));
    });
    let statistics = bench.pool.statistics();
    assert_eq!((statistics.allocations, statistics.frees), (4 * 199, 4 * 199));
    assert_eq!(statistics.live, Bytes::ZERO);
}

#[test]
fn any_call_may_fail_and_no_block_is_lost() {
    let turn = counting_lost();
    sweep(|bench| {
        let side = bench.device.create_stream(Priority::Normal);
        let Ok(side) = side else { return };
        let before = lost_frees().count;
        for size in [1000, 300_000, 5 << 20] {
            let Ok(mut block) = bench.pool.on(DEFAULT).owned(Bytes::new(size)) else { continue };
            block.used_on(side);
            if block.hand_over_to(side).is_err() {
                assert_eq!(block.stream(), DEFAULT);
            }
            block.used_on(if block.stream() == side { DEFAULT } else { side });
        }
        assert_eq!(lost_frees().count, before);
    });
    drop(turn);
}

/// An allocator that records no uses: the handle's stream waits for the others. Where that order cannot be had the
/// block is not given back without: it is kept and told.
#[test]
fn a_block_that_cannot_be_ordered_is_not_reused() {
    let turn = counting_lost();
    let bench = Bench::new();
    let side = bench.stream();
    let recorder = Recorder::new(&bench.pool);
    let block = OwnedBlock::new(&recorder, Request::new(Bytes::mib(1), DEFAULT)).unwrap();
    bench.write("before", block.block(), side);
    block.used_on(side);
    let address = block.address();
    drop(block);
    assert_eq!(write_next(&bench, DEFAULT), address);
    bench.assert_no_race();

    let block = OwnedBlock::new(&recorder, Request::new(Bytes::mib(1), DEFAULT)).unwrap();
    bench.write("side", block.block(), side);
    block.used_on(side);
    let before = lost_frees().count;
    bench.machine.plan(Fault::new(When::Every(Call::WaitEvent), FaultKind::Transient));
    drop(block);
    bench.machine.clear_faults();
    assert_eq!((lost_frees().count - before, bench.live()), (1, Bytes::mib(1)));
    let latest = lost_frees().latest.unwrap();
    assert!(matches!(&latest.error, Error::Device(error) if error.call() == Call::WaitEvent));
    bench.pool.free(latest.block.address(), side).unwrap();
    bench.assert_no_race();
    drop(turn);
}

#[test]
fn the_last_handle_takes_the_pool_along() {
    let bench = Bench::new();
    let block = own(&bench, 1 << 20, DEFAULT);
    let Bench { machine, pool, device } = bench;
    drop((pool, device));
    assert!(machine.census().pages > 0);
    drop(block);
    let left = machine.census();
    assert_eq!((left.pages, left.mappings, left.regions), (0, 0, 0), "{left}");
}

#[test]
fn an_allocator_behind_a_pointer_serves_as_well() {
    let bench = Bench::new();
    let any: Arc<dyn Allocate> = Arc::new(bench.pool.clone());
    let block = OwnedBlock::new(&any, Request::new(Bytes::new(9000), DEFAULT)).unwrap();
    assert_eq!(bench.live(), block.size());
    drop(block);
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn handles_work_on_the_host() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = Pool::new(&device).unwrap();
    let side = device.create_stream(Priority::Normal).unwrap();
    for _ in 0..100 {
        let block = pool.on(DEFAULT).owned(Bytes::mib(2)).unwrap();
        block.used_on(side);
        block.free().unwrap();
    }
    assert_eq!(pool.statistics().live, Bytes::ZERO);
    device.destroy_stream(side).unwrap();
}

/// Every call that a capture would see or be spoilt by.
pub(super) fn seen_by_a_capture(bench: &Bench) -> Vec<u64> {
    use forebay_hal::Call;
    let calls = bench.machine.calls();
    [
        Call::CreateEvent,
        Call::RecordEvent,
        Call::WaitEvent,
        Call::QueryEvent,
        Call::SynchronizeEvent,
        Call::SynchronizeStream,
        Call::SynchronizeDevice,
    ]
    .map(|call| calls.of(call))
    .to_vec()
}

/// A handle that other streams use is dropped while work is captured: nothing is recorded, the memory is
/// used by nobody until those streams are done, and none of it is lost.
#[test]
fn dropped_while_work_is_captured_nothing_is_recorded_and_nothing_lost() {
    let _turn = counting_lost();
    let lost = lost_frees().count;
    let bench = Bench::new();
    let [own, reader, third] = [(); 3].map(|()| bench.stream());
    let plain = OwnedBlock::new(&bench.pool, Request::new(Bytes::mib(1), own)).unwrap();
    let used = OwnedBlock::new(&bench.pool, Request::new(Bytes::mib(2), own)).unwrap();
    let adapted = OwnedBlock::new(&Arc::new(bench.pool.clone()), Request::new(Bytes::mib(2), own));
    let adapted = adapted.unwrap();
    let freed = OwnedBlock::new(&bench.pool, Request::new(Bytes::mib(2), own)).unwrap();
    bench.write("before", used.block(), own);
    bench.order(own, reader);
    bench.read("elsewhere", used.block(), reader);
    for handle in [&used, &freed] {
        handle.used_on(reader);
        handle.used_on(own);
        handle.used_on(third);
    }
    adapted.used_on(reader);
    let (block, before) = (used.block(), seen_by_a_capture(&bench));
    let capture = bench.pool.capture().unwrap();
    drop(plain);
    drop(used);
    drop(adapted);
    freed.free().unwrap();
    assert_eq!(seen_by_a_capture(&bench), before);
    assert_eq!(bench.live(), Bytes::ZERO);
    drop(capture);
    let next = OwnedBlock::new(&bench.pool, Request::new(Bytes::mib(2), own)).unwrap();
    assert_ne!(next.address(), block.address(), "the reader may not be done");
    bench.write("after", next.block(), own);
    drop(next);
    bench.assert_no_race();
    bench.pool.trim(Bytes::ZERO).unwrap();
    assert_eq!((bench.pool.held(), lost_frees().count), (Bytes::ZERO, lost));
}
