//! What OpenCL devices do beyond the contract: numbers, limits, sub-buffers, kernels, mapping, several contexts, and
//! that everything is released.
//!
//! PoCL is told to show two devices, so that there are two contexts on every machine that has it.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "what a test needs and does not get fails it"
)]

mod kernels;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    Call, Capabilities, Copy, Device, Error, EventKind, Fill, HostTask, Memory, Pattern,
    PinnedFlags, PinnedMemory, Place, Priority, Progress, StreamHandle, Streams, Transfers,
};
use forebay_opencl::cl3::context::{CL_CONTEXT_REFERENCE_COUNT, get_context_data};
use forebay_opencl::{MapAccess, ObjectCounts, OpenClDevice, OpenClDriver, OpenClOptions};
use libtest_mimic::{Arguments, Completion, Trial};

use kernels::Kernel;

/// How a test ends: done, or why it could not be run here.
type Ending = Result<(), String>;

const KIB: u64 = 1024;

fn driver() -> &'static OpenClDriver {
    OpenClDriver::load().unwrap()
}

fn tested() -> u32 {
    std::env::var("FOREBAY_OPENCL_DEVICE").map_or(0, |number| number.parse().unwrap())
}

fn open() -> Arc<OpenClDevice> {
    OpenClDevice::open(tested()).unwrap()
}

fn allocate(device: &OpenClDevice, size: u64) -> Address {
    device.allocate(Bytes::new(size), Alignment::BLOCK).unwrap()
}

fn free(device: &OpenClDevice, memory: Address) {
    // SAFETY: the test has waited for the work that used it.
    unsafe { device.free(memory) }.unwrap();
}

fn at(memory: Address, offset: u64) -> Address {
    memory.checked_add(Bytes::new(offset)).unwrap()
}

fn span(start: Address, size: u64) -> Span {
    Span::new(start, Bytes::new(size)).unwrap()
}

fn fill(device: &OpenClDevice, memory: Address, size: u64, byte: u8, stream: StreamHandle) {
    let fill = Fill::linear(memory, Bytes::new(size), Pattern::U8(byte)).unwrap();
    // SAFETY: the test keeps the memory until it has waited.
    unsafe { device.fill(&fill, stream) }.unwrap();
}

fn read(device: &OpenClDevice, memory: Address, size: usize, stream: StreamHandle) -> Vec<u8> {
    let mut bytes = vec![0_u8; size];
    let to = Place::Host(Address::of_pointer(bytes.as_mut_ptr()));
    let copy = Copy::linear(to, Place::Device(memory), Bytes::new(size as u64)).unwrap();
    // SAFETY: the bytes are kept until the stream was waited for.
    unsafe { device.copy(&copy, stream) }.unwrap();
    device.synchronize_stream(stream).unwrap();
    bytes
}

/// A task that ends when the sender is dropped.
fn gate() -> (std::sync::mpsc::Sender<()>, HostTask) {
    let (open, closed) = std::sync::mpsc::channel::<()>();
    let task = Box::new(move || {
        let _ = closed.recv_timeout(Duration::from_secs(10));
    });
    (open, task)
}

fn numbers_name_devices_gpus_first() -> Ending {
    let devices = driver().devices();
    assert_eq!(driver().device_count(), devices.len());
    for (info, ordinal) in devices.iter().zip(0..) {
        assert_eq!(info.ordinal, ordinal);
        assert!(!info.name.is_empty() && !info.platform.is_empty() && !info.version.is_empty());
        assert!(info.to_string().starts_with(&format!("opencl:{ordinal} ")), "{info}");
        let device = OpenClDevice::open(ordinal).unwrap();
        assert_eq!(device.descriptor().ordinal.0, ordinal);
        assert_eq!(device.memory_info().unwrap().total, info.total_memory);
    }
    assert!(devices.is_sorted_by_key(|info| info.device_type), "{devices:?}");
    let beyond = u32::try_from(devices.len()).unwrap();
    match OpenClDevice::open(beyond).unwrap_err() {
        Error::Invalid { call: Call::Open, allowed, .. } => {
            assert!(allowed.contains(&format!("{beyond} devices")), "{allowed}");
        }
        other => panic!("{other}"),
    }
    let (one, two) = (OpenClDevice::shared(0).unwrap(), OpenClDevice::shared(0).unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    Ok(())
}

fn options_are_granted_or_refused() -> Ending {
    for info in driver().devices() {
        let svm = OpenClDevice::open_with(info.ordinal, OpenClOptions::new().svm(true));
        match svm {
            Ok(device) => {
                assert!(info.svm.coarse);
                // A real pointer that kernels understand, at any alignment.
                let memory = device.allocate(Bytes::new(4097), Alignment::DEVICE_PAGE).unwrap();
                assert!(memory.is_aligned_to(Alignment::DEVICE_PAGE));
                fill(&device, memory, 4097, 7, StreamHandle::DEFAULT);
                assert_eq!(read(&device, memory, 4097, StreamHandle::DEFAULT), [7; 4097]);
                free(&device, memory);
            }
            Err(error) => {
                assert!(!info.svm.coarse && matches!(error, Error::Unsupported { .. }), "{error}");
            }
        }
    }
    Ok(())
}

fn a_size_beyond_the_devices_limit_is_refused_with_the_limit() -> Ending {
    let device = open();
    let (most, total) = (device.info().max_allocation.get(), device.info().total_memory.get());
    if most + 4096 > total {
        return Err("the limit is the device's whole memory".to_owned());
    }
    match device.allocate(Bytes::new(most + 4096), Alignment::BLOCK) {
        // Drivers may give more than they promise.
        Ok(memory) => free(&device, memory),
        Err(Error::Invalid { argument: "size", allowed, .. }) => {
            assert!(allowed.contains(&most.to_string()), "{allowed}");
        }
        Err(other) => panic!("{other}"),
    }
    assert_eq!(device.memory_info().unwrap().held, Bytes::ZERO);
    Ok(())
}

fn memory_that_is_not_there_is_refused_when_it_is_allocated() -> Ending {
    let device = open();
    let info = device.memory_info().unwrap();
    let piece = device.info().max_allocation.get().min(info.total.get() / 3);
    let mut taken = Vec::new();
    let error = loop {
        match device.allocate(Bytes::new(piece), Alignment::BLOCK) {
            Ok(memory) => taken.push(memory),
            Err(error) => break error,
        }
        assert!(taken.len() < 100, "more than there is");
    };
    match error {
        Error::OutOfMemory { call: Call::Allocate, requested, free, total } => {
            assert_eq!((requested.get(), total), (piece, info.total));
            assert!(free < info.total, "{free} free with {} pieces taken", taken.len());
        }
        other => panic!("{other}"),
    }
    assert_eq!(device.memory_info().unwrap().held.get(), piece * taken.len() as u64);
    for memory in taken {
        free(&device, memory);
    }
    let again = allocate(&device, piece);
    free(&device, again);
    Ok(())
}

fn bytes_beyond_four_gibibytes_of_one_buffer_are_filled_and_copied() -> Ending {
    const GIB: u64 = 1 << 30;
    let device = open();
    let size = 9 * GIB;
    let Ok(memory) = device.allocate(Bytes::new(size), Alignment::BLOCK) else {
        return Err(format!("the device gives at most {}", device.info().max_allocation));
    };
    let stream = StreamHandle::DEFAULT;
    fill(&device, memory, size, 1, stream);
    let edges = [3 * GIB, 4 * GIB - 1, 4 * GIB, 5 * GIB + 3, 8 * GIB - 2, size - 1];
    for (edge, byte) in edges.into_iter().zip(10..) {
        assert_eq!(read(&device, at(memory, edge), 1, stream), [1], "filled at {edge}");
        fill(&device, at(memory, edge), 1, byte, stream);
    }
    let four = Fill::plane(at(memory, 6 * GIB), Bytes::gib(1), (Bytes::new(8), 2), Pattern::U32(7));
    // SAFETY: the memory is kept until the stream was waited for.
    unsafe { device.fill(&four.unwrap(), stream) }.unwrap();
    for (edge, byte) in edges.into_iter().zip(10..) {
        assert_eq!(read(&device, at(memory, edge), 1, stream), [byte], "at {edge}");
    }
    assert_eq!(read(&device, at(memory, 7 * GIB), 9, stream), [7, 0, 0, 0, 7, 0, 0, 0, 1]);
    let (to, from) = (Place::Device(at(memory, 100)), Place::Device(at(memory, 8 * GIB - 3)));
    // SAFETY: as above.
    unsafe { device.copy(&Copy::linear(to, from, Bytes::new(3)).unwrap(), stream) }.unwrap();
    assert_eq!(read(&device, at(memory, 99), 5, stream), [1, 1, 14, 1, 1]);
    let (to, from) = (Place::Device(at(memory, 9 * GIB / 2)), Place::Device(memory));
    // SAFETY: as above.
    unsafe { device.copy(&Copy::linear(to, from, Bytes::gib(4)).unwrap(), stream) }.unwrap();
    assert_eq!(read(&device, at(memory, 17 * GIB / 2 - 2), 3, stream), [1, 11, 1]);
    free(&device, memory);
    Ok(())
}

fn fills_go_on_where_one_call_does_not_reach() -> Ending {
    // Fills beyond 1 GiB of a buffer are made through parts of it; what is filled crosses that place.
    const EDGE: u64 = 1 << 30;
    let device = open();
    let Ok(memory) = device.allocate(Bytes::new(EDGE + 65_536), Alignment::BLOCK) else {
        return Err(format!("the device gives at most {}", device.info().max_allocation));
    };
    let stream = StreamHandle::DEFAULT;
    fill(&device, at(memory, EDGE - 1000), 2000, 1, stream);
    fill(&device, at(memory, EDGE - 3), 7, 2, stream);
    fill(&device, at(memory, EDGE + 129), 1, 3, stream);
    let rows = (Bytes::new(6), 2);
    let plane = Fill::plane(at(memory, EDGE + 300), Bytes::new(100), rows, Pattern::U16(0x0504));
    // SAFETY: the memory is kept until the stream was waited for.
    unsafe { device.fill(&plane.unwrap(), stream) }.unwrap();
    let mut right = vec![1_u8; 2000];
    right[997..1004].fill(2);
    right[1129] = 3;
    for row in [1300, 1400] {
        right[row..row + 6].copy_from_slice(&[4, 5, 4, 5, 4, 5]);
    }
    assert_eq!(read(&device, at(memory, EDGE - 1000), 2000, stream), right);
    free(&device, memory);
    Ok(())
}

fn a_forked_child_is_refused_and_leaks() -> Ending {
    let device = open();
    let (memory, stream) = (allocate(&device, 4096), StreamHandle::DEFAULT);
    fill(&device, memory, 4096, 1, stream);
    device.synchronize_device().unwrap();
    // SAFETY: the child calls what takes no lock of another thread's, and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let refused = [
            device.allocate(Bytes::new(1), Alignment::ONE).map(drop),
            device.create_stream(Priority::Normal).map(drop),
            device.synchronize_device(),
            device.memory_info().map(drop),
            OpenClDevice::open(0).map(drop),
        ];
        drop(device);
        let good = refused.iter().all(|outcome| matches!(outcome, Err(Error::Forked { .. })));
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: the child's number, and a place of our own.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        assert!(begin.elapsed() < Duration::from_secs(10), "the child waits for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(status, 0, "the child was not refused");
    assert_eq!(read(&device, memory, 4096, stream), [1; 4096]);
    free(&device, memory);
    Ok(())
}

fn sub_buffers_are_parts_of_their_memory() -> Ending {
    let device = open();
    let grain = device.info().alignment.get();
    let memory = allocate(&device, 16 * grain);
    let (buffer, offset) = device.buffer_at(at(memory, 3 * grain + 5)).unwrap();
    assert_eq!(offset.get(), 3 * grain + 5);
    let part = span(at(memory, 2 * grain), grain);
    let sub = device.sub_buffer(part).unwrap();
    assert!(sub.raw() != buffer && sub.span() == part);
    let kernel = Kernel::build(&device, kernels::ADD);
    fill(&device, memory, 16 * grain, 1, StreamHandle::DEFAULT);
    kernel.add(&device, sub.raw(), 0, grain, 41, StreamHandle::DEFAULT);
    kernel.add(&device, buffer, 9 * grain, 1, 7, StreamHandle::DEFAULT);
    let mut right = vec![1_u8; usize::try_from(16 * grain).unwrap()];
    let grain = usize::try_from(grain).unwrap();
    right[2 * grain..3 * grain].fill(42);
    right[9 * grain] = 8;
    assert_eq!(read(&device, memory, right.len(), StreamHandle::DEFAULT), right);
    drop(sub);
    for (wrong, words) in [
        (span(at(memory, 1), 8), "multiple of"),
        (span(at(memory, 15 * grain as u64), 2 * grain as u64), "inside one allocation"),
        (span(memory, 0), "1 byte or more"),
    ] {
        match device.sub_buffer(wrong).unwrap_err() {
            Error::Invalid { argument: "span", allowed, .. } => {
                assert!(allowed.contains(words), "{allowed}");
            }
            other => panic!("{other}"),
        }
    }
    free(&device, memory);
    let gone = device.buffer_at(memory).unwrap_err();
    assert!(matches!(gone, Error::Invalid { .. }), "{gone}");
    Ok(())
}

fn kernels_keep_the_order_of_their_stream() -> Ending {
    for options in [OpenClOptions::new(), OpenClOptions::new().out_of_order(true)] {
        let Ok(device) = OpenClDevice::open_with(tested(), options) else { continue };
        let kernel = Kernel::build(&device, kernels::ADD);
        let memory = allocate(&device, 64 * KIB);
        let (buffer, offset) = device.buffer_at(memory).unwrap();
        let [one, two] = [(); 2].map(|()| device.create_stream(Priority::Normal).unwrap());
        let event = device.create_event(EventKind::Order).unwrap();
        fill(&device, memory, 64 * KIB, 0, one);
        let (open, closed) = gate();
        device.enqueue_host(closed, one).unwrap();
        for _ in 0..50 {
            kernel.add(&device, buffer, offset.get(), 64 * KIB, 1, one);
        }
        device.record_event(event, one).unwrap();
        device.wait_event(two, event).unwrap();
        kernel.add(&device, buffer, offset.get(), 64 * KIB, 100, two);
        assert_eq!(device.query_stream(two).unwrap(), Progress::Pending);
        drop(open);
        assert_eq!(read(&device, memory, 64 << 10, two), [150; 64 << 10], "{options:?}");
        device.destroy_event(event).unwrap();
        for stream in [one, two] {
            device.destroy_stream(stream).unwrap();
        }
        free(&device, memory);
    }
    Ok(())
}

fn mapped_memory_is_the_devices() -> Ending {
    let device = open();
    let (stream, size) = (device.create_stream(Priority::Normal).unwrap(), 100_003);
    let memory = allocate(&device, size + 1000);
    fill(&device, memory, size + 1000, 5, stream);
    let part = span(at(memory, 77), size);
    // SAFETY: no work uses the memory while it is mapped.
    let mut mapped = unsafe { device.map(part, MapAccess::ReadWrite, stream) }.unwrap();
    assert!(mapped.bytes().iter().all(|&byte| byte == 5) && mapped.bytes().len() == 100_003);
    mapped.bytes_mut().unwrap().fill(6);
    drop(mapped);
    let found = read(&device, memory, 101_003, stream);
    let inside = |index: usize| (77..77 + 100_003).contains(&index);
    let right = |(index, byte): (usize, &u8)| *byte == if inside(index) { 6 } else { 5 };
    assert!(found.iter().enumerate().all(right));
    // SAFETY: as above.
    let mut mapped = unsafe { device.map(part, MapAccess::Read, stream) }.unwrap();
    assert!(mapped.bytes().iter().all(|&byte| byte == 6));
    assert!(mapped.bytes_mut().is_none());
    drop(mapped);
    // SAFETY: as above.
    let mut mapped = unsafe { device.map(part, MapAccess::Overwrite, stream) }.unwrap();
    mapped.bytes_mut().unwrap().fill(9);
    drop(mapped);
    assert_eq!(read(&device, at(memory, 76), 3, stream), [5, 9, 9]);
    // SAFETY: refused.
    let beyond = unsafe { device.map(span(memory, size + 1001), MapAccess::Read, stream) };
    assert!(matches!(beyond.unwrap_err(), Error::Invalid { call: Call::Map, .. }));
    device.destroy_stream(stream).unwrap();
    free(&device, memory);
    Ok(())
}

fn an_event_of_one_device_orders_work_of_another() -> Ending {
    if driver().device_count() < 2 {
        return Err("there is one device".to_owned());
    }
    for (one, two) in [(0, 1), (1, 0)] {
        let (one, two) = (OpenClDevice::open(one).unwrap(), OpenClDevice::open(two).unwrap());
        assert_ne!(one.raw_context(), two.raw_context());
        let (here, there) = (allocate(&one, 4096), allocate(&two, 4096));
        let stream = StreamHandle::DEFAULT;
        for round in 1..20_u8 {
            let mut passing = vec![0_u8; 4096];
            let host = Place::Host(Address::of_pointer(passing.as_mut_ptr()));
            let [out, into] = [Place::Device(here), Place::Device(there)];
            let event = one.create_event(EventKind::Order).unwrap();
            let (open, closed) = gate();
            one.enqueue_host(closed, stream).unwrap();
            fill(&one, here, 4096, round, stream);
            // SAFETY: all memory is kept until both streams were waited for.
            unsafe { one.copy(&Copy::linear(host, out, Bytes::new(4096)).unwrap(), stream) }
                .unwrap();
            one.record_event(event, stream).unwrap();
            two.wait_event(stream, event).unwrap();
            // SAFETY: as above.
            unsafe { two.copy(&Copy::linear(into, host, Bytes::new(4096)).unwrap(), stream) }
                .unwrap();
            assert_eq!(two.query_stream(stream).unwrap(), Progress::Pending);
            assert_eq!(two.query_event(event).unwrap(), Progress::Pending);
            assert!(two.destroy_event(event).is_err(), "not its own");
            one.destroy_event(event).unwrap();
            drop(open);
            assert_eq!(read(&two, there, 4096, stream), [round; 4096]);
            one.synchronize_device().unwrap();
        }
        assert!(two.classify(here).unwrap().is_none());
        let timed = [&one, &two].map(|device| {
            let event = device.create_event(EventKind::Timed).unwrap();
            device.record_event(event, stream).unwrap();
            device.synchronize_event(event).unwrap();
            event
        });
        let clocks = one.elapsed(timed[0], timed[1]).unwrap_err();
        assert!(clocks.to_string().contains("of another device"), "{clocks}");
        free(&one, here);
        free(&two, there);
    }
    Ok(())
}

/// How many references the context has: each object in it has one on some platforms.
fn context_references(device: &OpenClDevice) -> Vec<u8> {
    get_context_data(device.raw_context(), CL_CONTEXT_REFERENCE_COUNT).unwrap()
}

fn use_everything(device: &OpenClDevice) {
    let streams: Vec<_> = (0..4).map(|_| device.create_stream(Priority::Normal).unwrap()).collect();
    let memory = allocate(device, 64 * KIB);
    let pinned = device.allocate_pinned(Bytes::new(64 * KIB), PinnedFlags::empty()).unwrap();
    let sub = device.sub_buffer(span(memory, 4096)).unwrap();
    for &stream in &streams {
        let event = device.create_event(EventKind::Timed).unwrap();
        fill(device, memory, 64 * KIB, 3, stream);
        device.record_event(event, stream).unwrap();
        device.enqueue_host(Box::new(|| ()), stream).unwrap();
        device.wait_event(StreamHandle::DEFAULT, event).unwrap();
        let copy =
            Copy::linear(Place::Host(pinned), Place::Device(memory), Bytes::new(64 * KIB)).unwrap();
        // SAFETY: both are kept until the device was waited for.
        unsafe { device.copy(&copy, stream) }.unwrap();
        device.destroy_event(event).unwrap();
    }
    device.synchronize_device().unwrap();
    drop(sub);
    for stream in streams {
        device.destroy_stream(stream).unwrap();
    }
    free(device, memory);
    // SAFETY: the work was waited for.
    unsafe { device.free_pinned(pinned) }.unwrap();
}

fn everything_is_released() -> Ending {
    // What is kept for the process is made first.
    use_everything(&open());
    let device = open();
    use_everything(&device);
    drop(device);
    let device = open();
    let before = (ObjectCounts::now(), context_references(&device));
    drop(device);
    for _ in 0..20 {
        use_everything(&open());
    }
    let device = open();
    // The last commands' references may take a moment to go.
    let begin = Instant::now();
    loop {
        let after = (ObjectCounts::now(), context_references(&device));
        if after.0.buffers == before.0.buffers
            && after.0.queues <= before.0.queues
            && after.0.events <= before.0.events
            && after.1 <= before.1
        {
            return Ok(());
        }
        assert!(begin.elapsed() < Duration::from_secs(5), "before {before:?}, after {after:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn devices_in_many_threads_keep_apart() -> Ending {
    std::thread::scope(|scope| {
        for number in 0..8_u8 {
            scope.spawn(move || {
                for round in 0..10 {
                    let device = open();
                    let stream = device.create_stream(Priority::Normal).unwrap();
                    let memory = allocate(&device, 33 * KIB);
                    let byte = number * 16 + round;
                    fill(&device, memory, 33 * KIB, byte, stream);
                    assert_eq!(read(&device, memory, 33 << 10, stream), [byte; 33 << 10]);
                    // Half of the devices go with everything alive, and work under way.
                    if round % 2 == 0 {
                        free(&device, memory);
                    } else {
                        fill(&device, memory, 33 * KIB, 0, stream);
                    }
                }
            });
        }
    });
    Ok(())
}

fn freeing_does_not_wait_for_a_kernel_where_that_is_promised() -> Ending {
    let device = open();
    let kernel = Kernel::build(&device, kernels::SPIN);
    let memory = allocate(&device, 4096);
    let (buffer, _) = device.buffer_at(memory).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    // How long a turn takes.
    kernel.spin(&device, buffer, 1_000_000, stream);
    device.synchronize_stream(stream).unwrap();
    let begin = Instant::now();
    kernel.spin(&device, buffer, 20_000_000, stream);
    device.synchronize_stream(stream).unwrap();
    // Turns that take 0.4 s.
    let turns = 20_000_000 * 400_000 / u64::try_from(begin.elapsed().as_micros()).unwrap().max(1);
    let other = allocate(&device, 16 << 20);
    fill(&device, other, 16 << 20, 1, StreamHandle::DEFAULT);
    device.synchronize_device().unwrap();
    kernel.spin(&device, buffer, turns, stream);
    std::thread::sleep(Duration::from_millis(20));
    let (begin, spinning) = (Instant::now(), device.query_stream(stream).unwrap());
    let more = allocate(&device, 16 << 20);
    let allocated = begin.elapsed();
    free(&device, other);
    let freed = begin.elapsed();
    free(&device, more);
    device.synchronize_stream(stream).unwrap();
    let whole = begin.elapsed();
    assert_eq!(spinning, Progress::Pending);
    let prompt = device.descriptor().capabilities.contains(Capabilities::PROMPT_FREE);
    assert!(!prompt || freed < whole / 2, "{freed:?} of {whole:?}");
    free(&device, memory);
    if prompt {
        Ok(())
    } else {
        Err(format!("not promised; beside a kernel of {whole:?} it took {:?}", freed - allocated))
    }
}

/// Tests with their names.
macro_rules! tests {
    ($($name:ident,)+) => { [$((stringify!($name), $name as fn() -> Ending)),+] };
}

fn main() -> ExitCode {
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("POCL_DEVICES", "pthread pthread") };
    let tests = tests![
        numbers_name_devices_gpus_first,
        options_are_granted_or_refused,
        a_size_beyond_the_devices_limit_is_refused_with_the_limit,
        memory_that_is_not_there_is_refused_when_it_is_allocated,
        fills_go_on_where_one_call_does_not_reach,
        a_forked_child_is_refused_and_leaks,
        sub_buffers_are_parts_of_their_memory,
        kernels_keep_the_order_of_their_stream,
        mapped_memory_is_the_devices,
        an_event_of_one_device_orders_work_of_another,
        everything_is_released,
        devices_in_many_threads_keep_apart,
        freeing_does_not_wait_for_a_kernel_where_that_is_promised,
        bytes_beyond_four_gibibytes_of_one_buffer_are_filled_and_copied,
    ];
    let missing = OpenClDriver::load().map(|driver| driver.device_count());
    let trials = tests.map(|(name, test)| {
        let missing = missing.clone();
        Trial::ignorable_test(name, move || match missing {
            Ok(0) => Ok(Completion::ignored_with("skipped: OpenCL shows no device")),
            Ok(_) => match test() {
                Ok(()) => Ok(Completion::Completed),
                Err(reason) => Ok(Completion::ignored_with(format!("skipped: {reason}"))),
            },
            Err(missing) => Ok(Completion::ignored_with(format!("skipped: {missing}"))),
        })
    });
    let mut arguments = Arguments::from_args();
    // They compare counts of the whole process, and take all memory.
    arguments.test_threads = arguments.test_threads.or(Some(1));
    libtest_mimic::run(&arguments, trials.into()).exit_code()
}
