use forebay_core::Alignment;
use forebay_hal::Stream;
use forebay_host::HostDevice;

use super::*;
use crate::{Pool, Request, Result};

#[test]
fn what_is_copied_in_comes_out() {
    let bench = Bench::new();
    let stream = bench.stream();
    // More than the stage holds at once, and no multiple of it.
    for length in [0_usize, 1, 1000, 3_000_001] {
        let data: Vec<u32> =
            (0..length).map(|index| u32::try_from(index).unwrap() ^ 0xa5).collect();
        let mut array = bench.pool.on(stream).uninit::<u32>(length).unwrap();
        assert_eq!((array.len(), array.is_empty()), (length, length == 0));
        array.copy_from_slice(&data).unwrap();
        let mut back = vec![0; length];
        array.copy_to_slice(&mut back).unwrap();
        assert!(back == data, "{length} elements came back changed");
    }
    bench.assert_no_race();
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn the_host_copies_as_well() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = Pool::new(&device).unwrap();
    let mut array = pool.on(DEFAULT).uninit::<[f64; 3]>(100_000).unwrap();
    let data = vec![[1.0, -2.0, 0.5]; 100_000];
    array.copy_from_slice(&data).unwrap();
    let mut back = vec![[0.0; 3]; 100_000];
    array.copy_to_slice(&mut back).unwrap();
    assert!(back == data);
}

#[test]
fn lengths_must_agree() {
    let bench = Bench::new();
    let mut array = bench.pool.on(DEFAULT).uninit::<i16>(10).unwrap();
    let error = array.copy_from_slice(&[1; 9]).unwrap_err().to_string();
    assert!(error.contains("9 elements") && error.contains("10 elements"), "{error}");
    assert!(array.copy_to_slice(&mut [0; 11]).is_err());
    assert_eq!(bench.machine.calls().of(Call::Copy), 0);
}

#[test]
fn lengths_that_do_not_fit_are_refused_with_figures() {
    let bench = Bench::new();
    let error = bench.pool.on(DEFAULT).uninit::<u64>(usize::MAX).unwrap_err().to_string();
    assert!(error.contains("8 B x 18446744073709551615"), "{error}");
    assert_eq!(bench.pool.statistics().allocations, 0);
}

#[test]
fn half_floats_and_derived_types_are_elements() {
    #[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
    #[repr(C)]
    struct Particle {
        place: [f32; 3],
        mass: f32,
    }
    fn round_trip<T: Pod + PartialEq + core::fmt::Debug>(pool: &Pool, values: [T; 2]) {
        let mut array = pool.on(DEFAULT).uninit(2).unwrap();
        array.copy_from_slice(&values).unwrap();
        let mut back = [T::zeroed(); 2];
        array.copy_to_slice(&mut back).unwrap();
        assert_eq!(back, values);
    }
    let pool = Pool::new(&HostDevice::open().unwrap()).unwrap();
    round_trip(&pool, [half::f16::from_f32(1.5), half::f16::MAX]);
    round_trip(&pool, [half::bf16::from_f32(-2.0), half::bf16::EPSILON]);
    let particle = Particle { place: [1.0, 2.0, 3.0], mass: 4.0 };
    round_trip(&pool, [particle, Particle { mass: 0.5, ..particle }]);
}

#[derive(Clone, Copy, PartialEq, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(4096))]
struct Wide([u8; 4096]);

#[test]
fn a_types_alignment_is_asked_for() {
    let bench = Bench::new();
    let recorder = Recorder::new(&bench.pool);
    // Whether the pool keeps it is the pool's affair: given or refused, never less.
    match DeviceArray::<Wide, _>::new(&recorder, 3, DEFAULT) {
        Ok(array) => assert!(array.address().is_aligned_to(Alignment::HOST_PAGE)),
        Err(error) => assert!(error.to_string().contains("a multiple of 4096 B"), "{error}"),
    }
    drop(DeviceArray::<f32, _>::new(&recorder, 3, DEFAULT).unwrap());
    let asked: Vec<Alignment> =
        recorder.requests.lock().unwrap().iter().map(Request::alignment).collect();
    assert_eq!(asked, [Alignment::HOST_PAGE, Alignment::BLOCK]);
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn elements_without_bytes_take_none() {
    let bench = Bench::new();
    let mut array = bench.pool.on(DEFAULT).uninit::<[u64; 0]>(1 << 40).unwrap();
    assert_eq!((array.len(), array.address()), (1 << 40, Address::NULL));
    assert!(array.copy_from_slice(&[]).is_err());
    let mut few = bench.pool.on(DEFAULT).uninit::<[u64; 0]>(3).unwrap();
    few.copy_from_slice(&[[]; 3]).unwrap();
    // As many as can be: copies that took them in turn would never end.
    let mut most = bench.pool.on(DEFAULT).uninit::<()>(usize::MAX).unwrap();
    let mut units = vec![(); usize::MAX];
    most.copy_from_slice(&units).unwrap();
    most.copy_to_slice(&mut units).unwrap();
    assert!(most.copy_from_slice(&units[1..]).is_err());
    array.set_stream(bench.stream());
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn elements_lie_side_by_side() {
    let bench = Bench::new();
    let array = bench.pool.on(DEFAULT).uninit::<[u16; 3]>(10).unwrap();
    let start = array.address();
    assert_eq!(array.address_of(0), Some(start));
    assert_eq!(array.address_of(9).unwrap().offset_from(start), Some(Bytes::new(54)));
    assert_eq!(array.address_of(10), None);
}

#[test]
fn a_block_becomes_an_array_only_if_it_holds_one() {
    let bench = Bench::new();
    let block = bench.pool.on(DEFAULT).owned(Bytes::new(1024)).unwrap();
    let refused = DeviceArray::<u32>::from_block(block, 257).unwrap_err();
    assert!(refused.to_string().contains("1028 B"), "{refused}");
    let refused = DeviceArray::<u32>::from_block(refused.into_handle(), usize::MAX).unwrap_err();
    let array = DeviceArray::<u32>::from_block(refused.into_handle(), 256).unwrap();
    assert_eq!(array.into_block().into_raw().unwrap().size(), bench.live());
}

/// An allocator that gives half of what is asked for must not lead to copies past its blocks.
#[derive(Clone)]
struct Miser(Pool);

// SAFETY: for tests, which touch no memory that is not theirs.
unsafe impl Allocate for Miser {
    fn allocate_request(&self, request: Request) -> Result<Block> {
        Allocate::allocate_request(
            &self.0,
            Request::new(Bytes::new(request.size().get() / 2), request.stream()),
        )
    }

    fn free(&self, address: Address, stream: StreamHandle) -> Result<()> {
        Allocate::free(&self.0, address, stream)
    }

    fn block_at(&self, address: Address) -> Option<Block> {
        Allocate::block_at(&self.0, address)
    }

    fn device(&self) -> &Arc<dyn Device> {
        Allocate::device(&self.0)
    }
}

#[test]
fn an_allocator_that_gives_too_little_is_found_out() {
    let bench = Bench::new();
    let miser = Miser(bench.pool.clone());
    let error = DeviceArray::<u8, _>::new(&miser, 1 << 20, DEFAULT).unwrap_err().to_string();
    assert!(error.contains("1048576 elements"), "{error}");
    assert_eq!(bench.live(), Bytes::ZERO);
}

#[test]
fn a_phantom_device_changes_nothing_here() {
    let memory = forebay_sim::MemoryModel::Phantom;
    let bench = Bench::with(SimMachine::builder().memory(memory), PoolOptions::new());
    let array = bench.pool.on(DEFAULT).uninit::<u8>(4).unwrap();
    let mut here = [1, 2, 3, 4];
    array.copy_to_slice(&mut here).unwrap();
    assert_eq!(here, [1, 2, 3, 4]);
}

#[test]
fn copies_that_fail_say_so_and_can_be_made_again() {
    for call in [Call::Copy, Call::SynchronizeStream] {
        let bench = Bench::new();
        let mut array = bench.pool.on(DEFAULT).uninit::<u32>(1000).unwrap();
        bench.machine.plan(Fault::new(When::Every(call), FaultKind::Transient));
        let error = array.copy_from_slice(&[7; 1000]).unwrap_err();
        assert!(matches!(&error, Error::Device(error) if error.call() == call), "{error}");
        bench.machine.clear_faults();
        array.copy_from_slice(&[8; 1000]).unwrap();
        let mut back = [0; 1000];
        array.copy_to_slice(&mut back).unwrap();
        assert_eq!(back, [8; 1000]);
        bench.assert_no_race();
    }
}

#[test]
fn one_failure_to_wait_is_not_one_of_the_copy() {
    let bench = Bench::new();
    let mut array = bench.pool.on(DEFAULT).uninit::<u32>(1000).unwrap();
    let number = bench.machine.calls().of(Call::SynchronizeStream) + 1;
    let when = When::Kind(Call::SynchronizeStream, number);
    bench.machine.plan(Fault::new(when, FaultKind::Transient));
    array.copy_from_slice(&[7; 1000]).unwrap();
}

#[test]
fn a_lost_device_is_told() {
    let turn = counting_lost();
    let bench = Bench::new();
    let mut array = bench.pool.on(DEFAULT).uninit::<u32>(1000).unwrap();
    bench.machine.lose(0);
    let error = array.copy_from_slice(&[7; 1000]).unwrap_err();
    assert!(matches!(error, Error::Device(forebay_hal::Error::Lost { .. })), "{error}");
    drop((array, turn));
}

#[test]
fn an_array_handed_over_is_copied_in_its_new_order() {
    let bench = Bench::new();
    let side = bench.stream();
    let mut array = bench.pool.on(DEFAULT).uninit::<u8>(1 << 20).unwrap();
    bench.write("fill", array.block().block(), DEFAULT);
    array.hand_over_to(side).unwrap();
    array.copy_from_slice(&vec![3; 1 << 20]).unwrap();
    array.free().unwrap();
    bench.assert_no_race();
}

#[test]
fn arrays_are_filled_by_the_device_where_the_value_repeats() {
    let bench = Bench::new();
    let pool = &bench.pool;
    let copies = || bench.machine.calls().of(forebay_hal::Call::Copy);
    let before = copies();
    let zeros = pool.on(DEFAULT).zeros::<f64>(1000).unwrap();
    let mut small = pool.on(DEFAULT).uninit::<u16>(999).unwrap();
    small.fill(0x1234).unwrap();
    let mut halves = pool.on(DEFAULT).uninit::<half::f16>(77).unwrap();
    halves.fill(half::f16::from_f32(1.5)).unwrap();
    let mut pairs = pool.on(DEFAULT).uninit::<[f32; 2]>(50).unwrap();
    pairs.fill([2.5, 2.5]).unwrap();
    assert_eq!(copies(), before, "nothing was copied");
    assert_eq!(zeros.to_vec().unwrap(), [0.0; 1000]);
    assert_eq!(small.to_vec().unwrap(), [0x1234; 999]);
    assert_eq!(halves.to_vec().unwrap(), [half::f16::from_f32(1.5); 77]);
    assert_eq!(pairs.to_vec().unwrap(), [[2.5, 2.5]; 50]);
    // Eight bytes that are no repetition, more than go through the stage at once, and three.
    let mut wide = pool.on(DEFAULT).uninit::<f64>((4 << 20) / 8 + 5).unwrap();
    wide.fill(1.1).unwrap();
    assert!(wide.to_vec().unwrap().iter().all(|&number| number == 1.1));
    let mut odd = pool.on(DEFAULT).from_slice(&[[1_u8, 2, 3]; 9]).unwrap();
    odd.fill([4, 5, 6]).unwrap();
    assert_eq!(odd.to_vec().unwrap(), [[4, 5, 6]; 9]);
    pool.on(DEFAULT).zeros::<u32>(0).unwrap().fill(1).unwrap();
}

#[test]
fn ranges_are_copied_and_checked() {
    let bench = Bench::new();
    let mut array = bench.pool.on(DEFAULT).zeros::<u32>(10).unwrap();
    array.slice_mut(3..6).unwrap().copy_from_slice(&[1, 2, 3]).unwrap();
    assert_eq!(array.slice(4..=7).unwrap().to_vec().unwrap(), [2, 3, 0, 0]);
    assert_eq!(array.slice(2..8).unwrap().slice(1..3).unwrap().to_vec().unwrap(), [1, 2]);
    array.slice_mut(10..).unwrap().copy_from_slice(&[]).unwrap();
    let backwards = core::ops::Range { start: 6, end: 5 };
    for range in [8..11, 11..11, usize::MAX..usize::MAX, backwards] {
        let error = array.slice_mut(range.clone()).unwrap_err();
        assert!(error.to_string().contains("elements 0 to 10"), "{error}");
        assert!(array.slice(range).is_err());
    }
    let error = array.slice_mut(..4).unwrap().copy_from_slice(&[0; 5]).unwrap_err();
    assert!(error.to_string().contains("4 elements"), "{error}");
}

#[test]
fn arrays_are_copied_on_the_device() {
    let bench = Bench::new();
    let (one, two) = (bench.stream(), bench.stream());
    let from = bench.pool.on(one).from_fn(1000, |index| u32::try_from(index).unwrap()).unwrap();
    let mut to = bench.pool.on(two).filled(1000, 7_u32).unwrap();
    let waits = bench.machine.calls().of(Call::SynchronizeStream);
    to.slice_mut(10..20).unwrap().copy_from(from.slice(500..510).unwrap()).unwrap();
    let clone = to.try_clone().unwrap();
    to.copy_from(&from).unwrap();
    assert_eq!(bench.machine.calls().of(Call::SynchronizeStream), waits, "the host does not wait");
    let back = clone.to_vec().unwrap();
    assert_eq!((back[9], back[10], back[19], back[20]), (7, 500, 509, 7));
    assert_eq!(to.to_vec().unwrap(), from.to_vec().unwrap());

    let (mut low, high) = to.slice_mut(..100).unwrap().split_at_mut(60).unwrap();
    assert_eq!((low.len(), high.len()), (60, 40));
    low.slice_mut(..40).unwrap().copy_from(high.as_slice()).unwrap();
    assert_eq!(to.slice(38..42).unwrap().to_vec().unwrap(), [98, 99, 40, 41]);
    assert!(to.slice_mut(..).unwrap().split_at_mut(1001).is_err());

    let error = to.copy_from(from.slice(1..).unwrap()).unwrap_err().to_string();
    assert!(error.contains("999") && error.contains("1000"), "{error}");
    let host = Pool::new(&HostDevice::open().unwrap()).unwrap();
    let far = host.default_stream().zeros::<u32>(1000).unwrap();
    let error = to.copy_from(&far).unwrap_err().to_string();
    assert!(error.contains("copy_between"), "{error}");
    drop((from, to, clone));
    bench.assert_no_race();
}

#[test]
fn later_work_of_the_source_comes_after_a_copy_from_it() {
    for seed in 0..32 {
        let bench = Bench::with(SimMachine::builder().seed(seed), PoolOptions::new());
        let (one, two) = (bench.stream(), bench.stream());
        let mut from = bench.pool.on(one).filled(1000, 1_u8).unwrap();
        let mut to = bench.pool.on(two).uninit(1000).unwrap();
        to.copy_from(&from).unwrap();
        from.fill(2).unwrap();
        assert_eq!(to.to_vec().unwrap(), [1; 1000]);
        assert_eq!(from.to_vec().unwrap(), [2; 1000]);
        bench.assert_no_race();
    }
}

#[test]
fn several_threads_copy_from_one_array() {
    for seed in 0..8 {
        let bench = Bench::with(SimMachine::builder().seed(seed), PoolOptions::new());
        let stream = bench.stream();
        let mut from = bench.pool.on(stream).filled(1000, 1_u8).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut to = bench.pool.on(bench.stream()).uninit(1000).unwrap();
                    for _ in 0..50 {
                        to.copy_from(&from).unwrap();
                        assert_eq!(from.slice(3..5).unwrap().to_vec().unwrap(), [1, 1]);
                    }
                });
            }
        });
        from.fill(2).unwrap();
        bench.assert_no_race();
    }
}

#[test]
fn a_vector_is_dropped_once_it_is_copied() {
    let bench = Bench::new();
    let stream = bench.stream();
    let mut array = bench.pool.on(stream).from_vec(vec![5_u16; 3_000_000]).unwrap();
    array.slice_mut(1..3).unwrap().copy_from_vec(vec![6, 7]).unwrap();
    assert_eq!(array.slice(..4).unwrap().to_vec().unwrap(), [5, 6, 7, 5]);
    assert!(array.copy_from_vec(vec![1; 3]).is_err());
    drop(bench.pool.on(stream).from_vec(vec![(); 10]).unwrap());
    bench.machine.plan(Fault::new(When::Every(Call::Copy), FaultKind::Transient));
    assert!(array.copy_from_vec(vec![1; 3_000_000]).is_err());
    bench.machine.clear_faults();
    assert_eq!(array.slice(..2).unwrap().to_vec().unwrap(), [5, 6], "nothing was copied");
    bench.assert_no_race();
}

#[test]
fn an_array_grows_and_shrinks() {
    let bench = Bench::limited(Bytes::mib(4));
    let mut array = bench.pool.on(bench.stream()).from_slice(&[1_u32, 2, 3]).unwrap();
    let address = array.address();
    array.resize(array.capacity(), 9).unwrap();
    assert_eq!((array.address(), array.len()), (address, 128));
    array.resize(1000, 8).unwrap();
    let back = array.to_vec().unwrap();
    assert_eq!((back[2], back[3], back[127], back[128], back[999]), (3, 9, 9, 8, 8));
    array.resize(2, 0).unwrap();
    assert_eq!(array.to_vec().unwrap(), [1, 2]);
    assert!(matches!(array.resize(2 << 20, 0), Err(Error::OutOfMemory(_))));
    assert!(array.resize(usize::MAX, 0).is_err());
    assert_eq!(array.to_vec().unwrap(), [1, 2], "a failed call changes nothing");
    bench.assert_no_race();
}

#[test]
fn faults_in_copies_on_the_device_leave_nothing_behind() {
    sweep(|bench| {
        let (one, two) = (
            Stream::new(&bench.device, Priority::Normal),
            Stream::new(&bench.device, Priority::Normal),
        );
        let (Ok(one), Ok(two)) = (one, two) else { return };
        let Ok(from) = bench.pool.on(&one).from_vec(vec![1_u8; 5000]) else { return };
        let Ok(mut to) = bench.pool.on(&two).zeros(5000) else { return };
        let _ = to.copy_from(&from);
        let _ = to.resize(9000, 3);
        let _ = from.try_clone();
    });
}
