//! The bound, and what is refused.

use forebay_hal::Call;
use forebay_host::HostDevice;
use forebay_sim::{Fault, FaultKind, When};

use super::*;

#[test]
fn the_bound_holds_and_the_refusal_has_the_figures() {
    let options = PinnedOptions::new().max_bytes(Bytes::new((3 << 20) + 1));
    let bench = Bench::with(in_segments(), options);
    assert_eq!(bench.pinned.limit(), Bytes::new((3 << 20) + 4096), "whole pages of the host");
    let kept = bench.filled(2 << 20, 1);
    let error = bench.pinned.array::<u8>(2 << 20).unwrap_err();
    let Error::OutOfMemory(shortage) = &error else { panic!("{error}") };
    assert_eq!((shortage.requested, shortage.limit), (Bytes::mib(2), bench.pinned.limit()));
    assert_eq!(bench.pinned.held(), Bytes::mib(2));
    drop(kept);
    assert_eq!(bench.filled(3 << 20, 1).len(), 3 << 20, "what is free makes room");
    assert!(bench.pinned.held() <= bench.pinned.limit());
    bench.pinned.trim(Bytes::ZERO).unwrap();
    assert_eq!(bench.pinned.held(), Bytes::ZERO);
}

/// At the bound a request waits for a copy rather than being refused.
#[test]
fn memory_that_a_copy_uses_is_waited_for_at_the_bound() {
    let options = PinnedOptions::new().max_bytes(Bytes::mib(2));
    let bench = Bench::with(SimMachine::builder(), options);
    let mut array = bench.array(2 << 20, DEFAULT);
    for value in 0..10 {
        bench.filled(2 << 20, value).copy_to(&mut array).unwrap();
    }
    assert_eq!(contents(&array), vec![9; 2 << 20]);
    assert_eq!(bench.pinned.held(), Bytes::mib(2));
    bench.assert_no_race();
}

#[test]
fn half_of_the_machines_memory_is_the_bound_by_default() {
    let bench = Bench::with(in_segments(), PinnedOptions::new());
    let total = forebay_host::system::System::here().memory().usable_total().unwrap();
    let half = total.get() / 2;
    assert!(bench.pinned.limit().get().abs_diff(half) <= 4096, "{}", bench.pinned.limit());
}

/// The system limits how much memory a process locks, which a pool does not know of.
#[test]
fn a_device_that_pins_less_than_the_machine_has_is_quoted() {
    let all = Bytes::mib(64);
    for machine in both_kinds() {
        let bench = Bench::with(machine.capacity(all), PinnedOptions::new());
        for call in [Call::AllocatePinned, Call::CreatePage] {
            bench.machine.plan(Fault::new(When::Every(call), FaultKind::OutOfMemory));
        }
        let error = bench.pinned.array::<u8>(1 << 20).unwrap_err();
        let Error::Device(forebay_hal::Error::OutOfMemory { total, .. }) = error else {
            panic!("{error}")
        };
        assert_eq!(total, all);
        bench.machine.clear_faults();
        assert_eq!(bench.filled(1 << 20, 1).len(), 1 << 20);
    }
}

#[test]
fn devices_and_flags_that_cannot_be_had_are_refused() {
    let machine = SimMachine::builder().without(Capabilities::PINNED).build().unwrap();
    let error = PinnedPool::new(&machine.device(0).unwrap()).unwrap_err();
    assert!(error.to_string().contains("cannot pin host memory"), "{error}");
    let host = HostDevice::open().unwrap();
    let options = PinnedOptions::new().write_combined();
    let error = options.build(&host).unwrap().array::<u8>(1).unwrap_err();
    assert!(matches!(error, Error::Device(forebay_hal::Error::Unsupported { .. })), "{error}");
    let error = PinnedPool::new(&host).unwrap().array::<u8>(1).unwrap().device_address();
    assert!(error.is_err(), "it was not asked to be mapped");
}

#[test]
fn lengths_and_devices_have_to_fit() {
    let bench = Bench::with(SimMachine::builder().devices(2), PinnedOptions::new());
    let pinned = bench.filled(100, 1);
    let error = pinned.copy_to(&mut bench.array(99, DEFAULT)).unwrap_err();
    assert!(error.to_string().contains("99 elements"), "{error}");
    let other = PoolOptions::new().build(&bench.machine.device(1).unwrap()).unwrap();
    let error = pinned.copy_to(&mut other.on(DEFAULT).uninit(100).unwrap()).unwrap_err();
    assert!(error.to_string().contains("sim:1"), "{error}");
    assert!(bench.pinned.array::<u64>(usize::MAX).is_err());
    assert!(bench.pinned.array::<u8>(usize::MAX).is_err());
}

#[test]
fn arrays_without_bytes_take_none() {
    let bench = Bench::new();
    let mut none = bench.pinned.array::<u64>(0).unwrap();
    assert_eq!((none.host_mut().unwrap().len(), none.is_empty()), (0, true));
    none.copy_from(&bench.pool.on(DEFAULT).uninit(0).unwrap()).unwrap();
    let units = bench.pinned.array::<()>(3).unwrap();
    assert_eq!(units.host().unwrap(), [(); 3]);
    assert_eq!(bench.pinned.held(), Bytes::ZERO);
}

/// Nobody but the handle can free its block: the host may be reading it.
#[test]
fn no_other_call_frees_the_block_of_an_array() {
    let bench = Bench::new();
    let array = bench.filled(5000, 4);
    let freed = crate::process::free(array.address(), DEFAULT);
    assert!(matches!(freed, Err(Error::Owned { .. })), "{freed:?}");
    let pool = Pool::owning(array.address()).unwrap();
    assert!(pool.free(array.address(), DEFAULT).is_err());
}

/// A pool that somebody finds by its block's address serves other streams too. What is freed in their order does not
/// reach the host before they are idle: a wait on the device would not keep the host from writing.
#[test]
fn memory_of_another_stream_reaches_the_host_when_that_stream_is_idle() {
    for machine in both_kinds() {
        let bench = Bench::with(machine, PinnedOptions::new().max_bytes(Bytes::mib(4)));
        let pool = bench.pinned.raw().clone();
        let gate = bench.close(DEFAULT);
        let block = pool.allocate(Bytes::mib(1), DEFAULT).unwrap();
        pool.free_block(block, DEFAULT).unwrap();
        assert_ne!(bench.filled(1 << 20, 1).address(), block.address());
        assert_eq!(bench.pinned.statistics().waits, 0, "no stream can wait for the host");
        drop(gate);
        bench.device.synchronize_device().unwrap();
        assert_eq!(bench.filled(3 << 20, 1).len(), 3 << 20, "all of it serves the host now");
    }
}

#[test]
fn the_host_device_has_a_pinned_pool() {
    let device = HostDevice::open().unwrap();
    let (pool, pinned) = (Pool::new(&device).unwrap(), PinnedPool::new(&device).unwrap());
    let stream = device.create_stream(Priority::Normal).unwrap();
    let mut array = pool.on(stream).uninit::<u32>(100_000).unwrap();
    for value in 0..50 {
        let mut batch = pinned.array::<u32>(100_000).unwrap();
        batch.host_mut().unwrap().fill(value);
        batch.copy_to(&mut array).unwrap();
        drop(batch);
        let mut back = pinned.array::<u32>(100_000).unwrap();
        back.copy_from(&array).unwrap();
        assert_eq!(back.host().unwrap(), [value; 100_000]);
    }
    assert!(pinned.held() <= Bytes::mib(8), "{}", pinned.held());
    pinned.trim(Bytes::ZERO).unwrap();
    assert_eq!(pinned.held(), Bytes::ZERO);
}

#[test]
fn a_block_that_is_used_again_and_again_keeps_few_events() {
    let bench = Bench::with(SimMachine::builder().costs(CostModel::Free), PinnedOptions::new());
    let address = bench.pinned.allocate_raw(Bytes::kib(64)).unwrap().address();
    let events = || {
        let calls = bench.machine.calls();
        calls.of(Call::CreateEvent) - calls.of(Call::DestroyEvent)
    };
    let before = events();
    for _ in 0..10_000 {
        bench.pinned.record_raw(address, &bench.pool, DEFAULT).unwrap();
        bench.pool.device().synchronize_stream(DEFAULT).unwrap();
    }
    assert!(events() - before < 20, "{} events", events() - before);
    // SAFETY: no work uses the block.
    unsafe { bench.pinned.free_raw(address) }.unwrap();
    assert!(bench.pinned.requested_raw(address).is_none());
}
