use forebay_core::Alignment;
use forebay_host::HostDevice;

use super::*;

#[test]
fn what_is_copied_in_comes_out() {
    let bench = Bench::new();
    let stream = bench.stream();
    // More than the stage holds at once, and no multiple of it.
    for length in [0_usize, 1, 1000, 3_000_001] {
        let data: Vec<u32> =
            (0..length).map(|index| u32::try_from(index).unwrap() ^ 0xa5).collect();
        let mut array = bench.pool.array::<u32>(length, stream).unwrap();
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
    let mut array = pool.array::<[f64; 3]>(100_000, DEFAULT).unwrap();
    let data = vec![[1.0, -2.0, 0.5]; 100_000];
    array.copy_from_slice(&data).unwrap();
    let mut back = vec![[0.0; 3]; 100_000];
    array.copy_to_slice(&mut back).unwrap();
    assert!(back == data);
}

#[test]
fn lengths_must_agree() {
    let bench = Bench::new();
    let mut array = bench.pool.array::<i16>(10, DEFAULT).unwrap();
    let error = array.copy_from_slice(&[1; 9]).unwrap_err().to_string();
    assert!(error.contains("9 elements") && error.contains("10 elements"), "{error}");
    assert!(array.copy_to_slice(&mut [0; 11]).is_err());
    assert_eq!(bench.machine.calls().of(Call::Copy), 0);
}

#[test]
fn lengths_that_do_not_fit_are_refused_with_figures() {
    let bench = Bench::new();
    let error = bench.pool.array::<u64>(usize::MAX, DEFAULT).unwrap_err().to_string();
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
        let mut array = pool.array(2, DEFAULT).unwrap();
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
    let mut array = bench.pool.array::<[u64; 0]>(1 << 40, DEFAULT).unwrap();
    assert_eq!((array.len(), array.address()), (1 << 40, Address::NULL));
    assert!(array.copy_from_slice(&[]).is_err());
    let mut few = bench.pool.array::<[u64; 0]>(3, DEFAULT).unwrap();
    few.copy_from_slice(&[[]; 3]).unwrap();
    // As many as can be: copies that took them in turn would never end.
    let mut most = bench.pool.array::<()>(usize::MAX, DEFAULT).unwrap();
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
    let array = bench.pool.array::<[u16; 3]>(10, DEFAULT).unwrap();
    let start = array.address();
    assert_eq!(array.address_of(0), Some(start));
    assert_eq!(array.address_of(9).unwrap().offset_from(start), Some(Bytes::new(54)));
    assert_eq!(array.address_of(10), None);
}

#[test]
fn a_block_becomes_an_array_only_if_it_holds_one() {
    let bench = Bench::new();
    let block = bench.pool.owned(Bytes::new(1024), DEFAULT).unwrap();
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
    let array = bench.pool.array::<u8>(4, DEFAULT).unwrap();
    let mut here = [1, 2, 3, 4];
    array.copy_to_slice(&mut here).unwrap();
    assert_eq!(here, [1, 2, 3, 4]);
}

#[test]
fn copies_that_fail_say_so_and_can_be_made_again() {
    for call in [Call::Copy, Call::SynchronizeStream] {
        let bench = Bench::new();
        let mut array = bench.pool.array::<u32>(1000, DEFAULT).unwrap();
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
    let mut array = bench.pool.array::<u32>(1000, DEFAULT).unwrap();
    let number = bench.machine.calls().of(Call::SynchronizeStream) + 1;
    let when = When::Kind(Call::SynchronizeStream, number);
    bench.machine.plan(Fault::new(when, FaultKind::Transient));
    array.copy_from_slice(&[7; 1000]).unwrap();
}

#[test]
fn a_lost_device_is_told() {
    let turn = counting_lost();
    let bench = Bench::new();
    let mut array = bench.pool.array::<u32>(1000, DEFAULT).unwrap();
    bench.machine.lose(0);
    let error = array.copy_from_slice(&[7; 1000]).unwrap_err();
    assert!(matches!(error, Error::Device(forebay_hal::Error::Lost { .. })), "{error}");
    drop((array, turn));
}

#[test]
fn an_array_handed_over_is_copied_in_its_new_order() {
    let bench = Bench::new();
    let side = bench.stream();
    let mut array = bench.pool.array::<u8>(1 << 20, DEFAULT).unwrap();
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
    let zeros = pool.zeros::<f64>(1000, DEFAULT).unwrap();
    let mut small = pool.array::<u16>(999, DEFAULT).unwrap();
    small.fill(0x1234).unwrap();
    let mut halves = pool.array::<half::f16>(77, DEFAULT).unwrap();
    halves.fill(half::f16::from_f32(1.5)).unwrap();
    let mut pairs = pool.array::<[f32; 2]>(50, DEFAULT).unwrap();
    pairs.fill([2.5, 2.5]).unwrap();
    assert_eq!(copies(), before, "nothing was copied");
    assert_eq!(zeros.to_vec().unwrap(), [0.0; 1000]);
    assert_eq!(small.to_vec().unwrap(), [0x1234; 999]);
    assert_eq!(halves.to_vec().unwrap(), [half::f16::from_f32(1.5); 77]);
    assert_eq!(pairs.to_vec().unwrap(), [[2.5, 2.5]; 50]);
    // Eight bytes that are no repetition, more than go through the stage at once, and three.
    let mut wide = pool.array::<f64>((4 << 20) / 8 + 5, DEFAULT).unwrap();
    wide.fill(1.1).unwrap();
    assert!(wide.to_vec().unwrap().iter().all(|&number| number == 1.1));
    let mut odd = pool.array_from(&[[1_u8, 2, 3]; 9], DEFAULT).unwrap();
    odd.fill([4, 5, 6]).unwrap();
    assert_eq!(odd.to_vec().unwrap(), [[4, 5, 6]; 9]);
    pool.zeros::<u32>(0, DEFAULT).unwrap().fill(1).unwrap();
}

#[test]
fn ranges_are_copied_and_checked() {
    let bench = Bench::new();
    let mut array = bench.pool.zeros::<u32>(10, DEFAULT).unwrap();
    array.write(3, &[1, 2, 3]).unwrap();
    let mut part = [9; 4];
    array.read(4, &mut part).unwrap();
    assert_eq!(part, [2, 3, 0, 0]);
    array.write(10, &[]).unwrap();
    for (first, count) in [(8, 3), (11, 0), (usize::MAX, 2)] {
        let error = array.write(first, &vec![0; count]).unwrap_err();
        assert!(error.to_string().contains("10 elements"), "{error}");
        let room = format!("at most {} from there on", 10_usize.saturating_sub(first));
        assert!(error.to_string().contains(&room), "{error}");
        assert!(array.read(first, &mut vec![0; count]).is_err());
    }
}
