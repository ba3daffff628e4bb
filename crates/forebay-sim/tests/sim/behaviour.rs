//! What is particular to the simulated device: lateness, phantom memory, modelled time, handles
//! that come back, the checker under many threads.
// A test that cannot go on says so by panicking.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, PageSize, Span};
use forebay_hal::{
    Access, Call, Capabilities, Copy, Device, Error, EventKind, Fill, ForeignStreams, Location,
    Memory, PageOptions, Pattern, PinnedFlags, PinnedMemory, Priority, Progress, StreamHandle,
    Streams, Transfers, VirtualMemory,
};
use forebay_sim::{
    CostModel, Finding, HandleReuse, Kernel, MemoryModel, SimDevice, SimMachine, SimOptions,
};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

fn open(options: SimOptions) -> (SimMachine, Arc<SimDevice>) {
    let machine = options.build().unwrap();
    let device = machine.device(0).unwrap();
    (machine, device)
}

fn launch(device: &SimDevice, kernel: Kernel, stream: StreamHandle) {
    // SAFETY: callers keep the memory until they have synchronised.
    unsafe { device.launch(kernel, stream) }.unwrap();
}

fn fill(device: &SimDevice, at: Address, size: Bytes, value: u8, stream: StreamHandle) {
    let fill = Fill::linear(at, size, Pattern::U8(value)).unwrap();
    // SAFETY: callers keep the memory until they have synchronised.
    unsafe { device.fill(&fill, stream) }.unwrap();
}

#[test]
fn work_is_late_until_somebody_waits() {
    let (machine, device) = open(SimMachine::builder());
    let ran = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&ran);
    device.enqueue_host(Box::new(move || flag.store(true, Ordering::SeqCst)), DEFAULT).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(!ran.load(Ordering::SeqCst), "nobody asked for it yet");
    assert_eq!(machine.census().queued, 1);
    device.synchronize_stream(DEFAULT).unwrap();
    assert!(ran.load(Ordering::SeqCst));
}

#[test]
fn addresses_of_a_region_are_not_registered() {
    let (machine, device) = open(SimMachine::builder());
    let size = device.granularity().minimum.bytes();
    let region = device.reserve(size, Alignment::BLOCK).unwrap();
    // SAFETY: nothing uses the memory; the call is refused.
    let refused = unsafe { device.register(region, PinnedFlags::empty()) };
    assert!(matches!(refused, Err(Error::Invalid { argument: "span", .. })), "{refused:?}");
    assert_eq!((machine.census().blocks, machine.census().regions), (0, 1));
    // SAFETY: nothing uses it.
    unsafe { device.release_region(region.start()) }.unwrap();
}

#[test]
fn queries_alone_bring_work_to_its_end() {
    let (_, device) = open(SimMachine::builder().seed(9));
    let at = device.allocate(Bytes::new(64), Alignment::BLOCK).unwrap();
    for value in 0..40 {
        fill(&device, at, Bytes::new(64), value, DEFAULT);
    }
    let mut pending = 0;
    while device.query_stream(DEFAULT).unwrap() == Progress::Pending {
        pending += 1;
        assert!(pending < 10_000, "queries make no progress");
    }
    assert!(pending > 3, "forty pieces of work were done in {pending} queries: not late");
}

#[test]
fn a_program_that_never_waits_does_not_grow_for_ever() {
    let (machine, device) = open(SimMachine::builder().checked(false));
    let at = device.allocate(Bytes::new(64), Alignment::BLOCK).unwrap();
    for _ in 0..5000 {
        fill(&device, at, Bytes::new(64), 1, DEFAULT);
    }
    assert!(machine.census().queued <= 1025, "{}", machine.census());
}

#[test]
fn phantom_memory_holds_any_amount() {
    let (machine, device) =
        open(SimMachine::builder().memory(MemoryModel::Phantom).capacity(Bytes::gib(100_000)));
    assert!(!device.descriptor().capabilities.contains(Capabilities::DATA));
    assert!(device.managed_memory().is_none() && device.sharing().is_none());
    let page = device.create_page(Bytes::gib(512), PageOptions::default()).unwrap();
    let region = device.reserve(Bytes::gib(4096), Alignment::DEVICE_PAGE).unwrap();
    device.map(region.start(), page).unwrap();
    let span = Span::new(region.start(), Bytes::gib(512)).unwrap();
    // SAFETY: access is granted, and none taken away.
    unsafe { device.set_access(span, Access::ReadWrite, DeviceOrdinal(0)) }.unwrap();
    fill(&device, span.start(), span.size(), 1, DEFAULT);
    device.synchronize_device().unwrap();
    // 512 GiB written at the measured bandwidth of the card takes a quarter of a second.
    assert!((0.2..0.4).contains(&machine.host_time().as_secs_f64()), "{:?}", machine.host_time());
    let error = device.create_page(Bytes::gib(99_999), PageOptions::default()).unwrap_err();
    assert!(
        matches!(error, Error::OutOfMemory { free, .. } if free == Bytes::gib(100_000 - 512)),
        "{error}"
    );
}

#[test]
fn phantom_addresses_are_the_same_in_every_run() {
    let addresses = || -> Vec<Address> {
        let (_, device) = open(SimMachine::builder().memory(MemoryModel::Phantom));
        (1..50)
            .map(|size| device.allocate(Bytes::new(size * 700), Alignment::BLOCK).unwrap())
            .collect()
    };
    assert_eq!(addresses(), addresses());
}

#[test]
fn calls_and_copies_take_their_measured_time() {
    let (machine, device) = open(SimMachine::builder());
    let before = machine.driver_time();
    let size = Bytes::mib(64);
    let at = device.allocate(size, Alignment::BLOCK).unwrap();
    assert_eq!(machine.driver_time() - before, Duration::from_micros(81));
    let pinned = device.allocate_pinned(size, PinnedFlags::empty()).unwrap();

    let [start, end] = [(); 2].map(|()| device.create_event(EventKind::Timed).unwrap());
    device.record_event(start, DEFAULT).unwrap();
    let copy = Copy::linear(Location::Device(at), Location::Host(pinned), size).unwrap();
    // SAFETY: both live until the device was synchronised.
    unsafe { device.copy(&copy, DEFAULT) }.unwrap();
    device.record_event(end, DEFAULT).unwrap();
    assert!(matches!(device.elapsed(start, end), Err(Error::Busy { .. })));
    device.synchronize_event(end).unwrap();
    let bandwidth = size.get() as f64 / device.elapsed(start, end).unwrap().as_secs_f64() / 1e9;
    assert!((bandwidth - 55.1).abs() < 0.1, "{bandwidth} GB/s");

    let (machine, device) = open(SimMachine::builder().costs(CostModel::Free));
    device.allocate(size, Alignment::BLOCK).unwrap();
    assert_eq!(machine.driver_time(), Duration::ZERO);
    assert_eq!(machine.calls().of(Call::Allocate), 1);
}

#[test]
fn two_streams_overlap_on_the_clock_and_a_wait_makes_them_queue() {
    let second = Duration::from_secs(1);
    let time = |wait: bool| {
        let (machine, device) = open(SimMachine::builder().costs(CostModel::Free));
        let other = device.create_stream(Priority::Normal).unwrap();
        launch(&device, Kernel::new("one").duration(second), DEFAULT);
        if wait {
            let event = device.create_event(EventKind::Order).unwrap();
            device.record_event(event, DEFAULT).unwrap();
            device.wait_event(other, event).unwrap();
        }
        launch(&device, Kernel::new("two").duration(second), other);
        device.synchronize_device().unwrap();
        machine.host_time()
    };
    assert_eq!(time(false), second);
    assert_eq!(time(true), second * 2);
}

#[test]
fn a_destroyed_streams_handle_comes_back_where_asked_but_not_its_identity() {
    for (reuse, same) in [(HandleReuse::AtOnce, true), (HandleReuse::Never, false)] {
        let (_, device) = open(SimMachine::builder().handles(reuse));
        let first = device.create_stream(Priority::Normal).unwrap();
        let first_id = device.stream_id(first).unwrap();
        device.destroy_stream(first).unwrap();
        let second = device.create_stream(Priority::Normal).unwrap();
        assert_eq!(first == second, same);
        assert_ne!(first_id, device.stream_id(second).unwrap());
    }
}

/// The trap that caches keyed by handle fall into: the value lives on, the stream behind it is
/// another.
#[test]
fn a_foreign_streams_value_can_come_back_as_another_stream() {
    let (_, device) = open(SimMachine::builder().handles(HandleReuse::AtOnce));
    let raw = device.make_foreign_stream();
    // SAFETY: not kept, on purpose: the stream goes while it is adopted.
    let handle = unsafe { device.adopt_stream(raw) }.unwrap();
    let first = device.stream_id(handle).unwrap();
    assert!(device.destroy_foreign_stream(raw));
    assert!(device.stream_id(handle).is_err());
    assert_eq!(device.make_foreign_stream(), raw);
    assert_ne!(device.stream_id(handle).unwrap(), first);
    assert!(!device.destroy_foreign_stream(raw + 1));
}

#[test]
fn capabilities_can_be_left_out_and_take_their_groups_along() {
    let without = Capabilities::VIRTUAL_MEMORY | Capabilities::PINNED | Capabilities::HOST_TASKS;
    let (_, device) = open(SimMachine::builder().without(without));
    assert!(device.virtual_memory().is_none() && device.pinned_memory().is_none());
    assert!(device.sharing().is_none(), "no pages, nothing to share");
    let refused = device.enqueue_host(Box::new(|| {}), DEFAULT);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}

#[test]
fn one_page_at_two_places_races_with_itself() {
    let (machine, device) = open(SimMachine::builder().granularity(PageSize::HOST));
    let size = PageSize::HOST.bytes();
    let region = device.reserve(Bytes::new(8192), PageSize::HOST.alignment()).unwrap();
    let page = device.create_page(size, PageOptions::default()).unwrap();
    let second = region.start().checked_add(size).unwrap();
    device.map(region.start(), page).unwrap();
    device.map(second, page).unwrap();
    // SAFETY: access is granted, and none taken away.
    unsafe { device.set_access(region, Access::ReadWrite, DeviceOrdinal(0)) }.unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    fill(&device, region.start(), size, 1, DEFAULT);
    fill(&device, second, size, 2, other);
    assert!(matches!(machine.findings().as_slice(), [Finding::Race { .. }]));
    machine.clear_findings();
    device.synchronize_device().unwrap();

    let [to, from] = [Location::Device(second), Location::Device(region.start())];
    let copy = Copy::linear(to, from, Bytes::new(64)).unwrap();
    // SAFETY: the page lives until the device was synchronised.
    unsafe { device.copy(&copy, DEFAULT) }.unwrap();
    assert!(matches!(machine.findings().as_slice(), [Finding::Overlap { .. }]));
    device.synchronize_device().unwrap();
}

#[test]
fn host_memory_is_watched_too() {
    let (machine, device) = open(SimMachine::builder());
    let other = device.create_stream(Priority::Normal).unwrap();
    let at = device.allocate(Bytes::new(64), Alignment::BLOCK).unwrap();
    let mut buffer = [0_u8; 64];
    let host = Location::Host(Address::of_pointer(buffer.as_mut_ptr()));
    let down = Copy::linear(host, Location::Device(at), Bytes::new(64)).unwrap();
    for stream in [DEFAULT, other] {
        // SAFETY: buffer and memory live until the device was synchronised.
        unsafe { device.copy(&down, stream) }.unwrap();
    }
    device.synchronize_device().unwrap();
    let findings = machine.findings();
    assert!(matches!(findings.as_slice(), [Finding::Race { .. }]), "{findings:?}");
    // Seen to be over: the same again is no race.
    machine.clear_findings();
    // SAFETY: as above.
    unsafe { device.copy(&down, other) }.unwrap();
    device.synchronize_device().unwrap();
    assert_eq!(machine.findings(), []);
}

#[test]
fn memory_taken_too_early_is_a_finding_and_not_a_crash() {
    let (machine, device) = open(SimMachine::builder());
    let size = Bytes::mib(4);
    let at = device.allocate(size, Alignment::BLOCK).unwrap();
    fill(&device, at, size, 1, DEFAULT);
    // SAFETY: not kept, on purpose: the fill is still to come, and the simulation holds its memory.
    unsafe { device.free(at) }.unwrap();
    let findings = machine.findings();
    assert!(matches!(findings.as_slice(), [Finding::TakenInUse { call: Call::Free, .. }]));
    device.synchronize_device().unwrap();
}

#[test]
fn a_kernel_reads_and_writes_what_it_declared_and_nothing_else() {
    let (_, device) = open(SimMachine::builder());
    let size = Bytes::new(512);
    let [read, write, other] = [(); 3]
        .map(|()| Span::new(device.allocate(size, Alignment::BLOCK).unwrap(), size).unwrap());
    fill(&device, read.start(), size, 5, DEFAULT);
    let (sender, receiver) = std::sync::mpsc::channel();
    let kernel = Kernel::new("k").reads(read).writes(write).body(move |memory| {
        let bytes = memory.read(read).unwrap();
        let written = memory.write(write, &bytes);
        let beyond = memory.read(other).is_some() || memory.write(other, &bytes);
        sender.send((bytes, written, beyond, memory.write(write, &[0; 513]))).unwrap();
    });
    launch(&device, kernel, DEFAULT);
    let panics = Kernel::new("panics").body(|_| panic!("a kernel's own affair"));
    launch(&device, panics, DEFAULT);
    device.synchronize_device().unwrap();
    assert_eq!(receiver.recv().unwrap(), (vec![5; 512], true, false, false));
    assert_eq!(device.query_stream(DEFAULT).unwrap(), Progress::Done);
}

#[test]
fn many_threads_on_their_own_streams_are_clean_and_sharing_one_memory_is_not() {
    let (machine, device) = open(SimMachine::builder().seed(11));
    let shared = device.allocate(Bytes::new(4096), Alignment::BLOCK).unwrap();
    let work = |shared: Option<Address>| {
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                let device = &device;
                scope.spawn(move || {
                    let stream = device.create_stream(Priority::Normal).unwrap();
                    let own = device.allocate(Bytes::new(4096), Alignment::BLOCK).unwrap();
                    for round in 0..20 {
                        fill(device, shared.unwrap_or(own), Bytes::new(4096), thread, stream);
                        if round % 5 == 0 && shared.is_none() {
                            device.synchronize_stream(stream).unwrap();
                        }
                    }
                    device.synchronize_stream(stream).unwrap();
                    // SAFETY: the stream that used it was synchronised.
                    unsafe { device.free(own) }.unwrap();
                    device.destroy_stream(stream).unwrap();
                });
            }
        });
    };
    work(None);
    assert_eq!(machine.findings(), []);
    // All eight fill one memory, and none waits for another until the end. Threads that happen to
    // run one after the other are ordered by their synchronising; two that meet are not.
    let other = device.create_stream(Priority::Normal).unwrap();
    fill(&device, shared, Bytes::new(4096), 9, other);
    work(Some(shared));
    assert!(machine.finding_count() > 0);
}

#[test]
fn impossible_machines_are_refused_with_figures() {
    let error = SimMachine::builder().devices(0).build().unwrap_err().to_string();
    assert!(error.contains("invalid devices: 0; expected 1 to 64"), "{error}");
    assert!(SimMachine::builder().devices(65).build().is_err());
    let tiny = PageSize::new(512).unwrap();
    assert!(SimMachine::builder().granularity(tiny).build().is_err());
    assert!(SimMachine::builder().build().unwrap().device(1).is_none());
}

/// Two streams that copy the same way share the wire, and two ways are two wires.
#[test]
fn copies_in_one_direction_share_the_wire() {
    let (machine, device) = open(SimMachine::builder());
    let size = Bytes::mib(64);
    let other = device.create_stream(Priority::Normal).unwrap();
    let [at, more] = [(); 2].map(|()| device.allocate(size, Alignment::BLOCK).unwrap());
    let [one, two] = [(); 2].map(|()| device.allocate_pinned(size, PinnedFlags::empty()).unwrap());
    let time = |copies: &[(Location, Location, StreamHandle)]| {
        let before = machine.host_time();
        for &(to, from, stream) in copies {
            let copy = Copy::linear(to, from, size).unwrap();
            // SAFETY: all of it lives until the device was synchronised.
            unsafe { device.copy(&copy, stream) }.unwrap();
        }
        device.synchronize_device().unwrap();
        (machine.host_time() - before).as_secs_f64()
    };
    let up = |to, from, stream| (Location::Device(to), Location::Host(from), stream);
    let alone = time(&[up(at, one, DEFAULT)]);
    let together = time(&[up(at, one, DEFAULT), up(more, two, other)]);
    assert!((together / alone - 2.0).abs() < 0.01, "{together} s for two, {alone} s for one");
    let down = (Location::Host(two), Location::Device(more), other);
    let both_ways = time(&[up(at, one, DEFAULT), down]);
    assert!(both_ways < alone * 1.1, "{both_ways} s both ways, {alone} s one way");
}

/// As measured: a free while a 20 ms kernel runs took 20 ms.
#[test]
fn a_free_waits_for_the_device_on_the_models_clock() {
    let (machine, device) = open(SimMachine::builder());
    let at = device.allocate(Bytes::mib(1), Alignment::BLOCK).unwrap();
    launch(&device, Kernel::new("long").duration(Duration::from_millis(20)), DEFAULT);
    let before = machine.driver_time();
    // SAFETY: the kernel does not use it.
    unsafe { device.free(at) }.unwrap();
    let took = machine.driver_time() - before;
    assert!((20..21).contains(&took.as_millis()), "{took:?}");
    device.synchronize_device().unwrap();
}

/// What a piece of work and a free cost with so many streams, the best of three.
fn cost_with(streams: u32) -> Duration {
    let once = || {
        let options = SimMachine::builder().memory(MemoryModel::Phantom).checked(false);
        let (_machine, device) = open(options);
        let streams: Vec<_> =
            (0..streams).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
        let event = device.create_event(EventKind::Order).unwrap();
        // Each waits for the one before, so that only one can run at a time.
        for &stream in &streams {
            device.wait_event(stream, event).unwrap();
            device.record_event(event, stream).unwrap();
        }
        let began = std::time::Instant::now();
        device.synchronize_event(event).unwrap();
        for _ in &streams {
            let at = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
            // SAFETY: no work uses it.
            unsafe { device.free(at) }.unwrap();
        }
        began.elapsed() / u32::try_from(streams.len()).unwrap()
    };
    (0..3).map(|_| once()).min().unwrap()
}

#[test]
fn work_costs_no_more_with_thousands_of_streams() {
    let (few, many) = (cost_with(64), cost_with(6400));
    println!("{few:?} with 64 streams, {many:?} with 6400");
    assert!(many < few * 12, "{few:?} with 64 streams, {many:?} with 6400");
}
