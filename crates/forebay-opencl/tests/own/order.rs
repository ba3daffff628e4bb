//! Order: of kernels, between contexts, and in forked children.

use std::time::{Duration, Instant};

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{
    Copy, Device, Error, EventKind, Location, Memory, PinnedFlags, PinnedMemory, Priority,
    Progress, StreamHandle, Streams, Transfers,
};
use forebay_opencl::{HostCopies, MapAccess, ObjectCounts, OpenClDevice, OpenClOptions};

use crate::kernels::{self, Kernel};
use crate::{Ending, KIB, allocate, driver, fill, free, gate, open, read, span, tested};

pub(crate) fn kernels_keep_the_order_of_their_stream() -> Ending {
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

pub(crate) fn an_event_of_one_device_orders_work_of_another() -> Ending {
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
            let host = Location::Host(Address::of_pointer(passing.as_mut_ptr()));
            let [out, into] = [Location::Device(here), Location::Device(there)];
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

pub(crate) fn a_stream_waits_for_every_copy_of_a_call() -> Ending {
    let options = OpenClOptions::new().out_of_order(true);
    let Ok(device) = OpenClDevice::open_with(tested(), options) else {
        return Err("there are no queues out of order".to_owned());
    };
    let (size, memory) = (64 << 20, allocate(&device, 2 * KIB));
    let (mut from, mut to) = (vec![7_u8; size], vec![0_u8; size]);
    let there = memory.checked_add(Bytes::new(KIB)).unwrap();
    let host = |bytes: &mut [u8]| Location::Host(Address::of_pointer(bytes.as_mut_ptr()));
    let short =
        Copy::linear(Location::Device(there), Location::Device(memory), Bytes::new(KIB)).unwrap();
    // A thread makes this one, after the driver has made the first.
    let long = Copy::linear(host(&mut to), host(&mut from), Bytes::new(size as u64)).unwrap();
    for copies in [[short, long], [long, short]] {
        to.fill(0);
        // SAFETY: all memory is kept until the device was waited for.
        unsafe { device.copy_all(&copies, StreamHandle::DEFAULT) }.unwrap();
        device.synchronize_stream(StreamHandle::DEFAULT).unwrap();
        assert!(to == from, "the stream was done before the copies");
    }
    free(&device, memory);
    Ok(())
}

pub(crate) fn host_memory_of_a_device_that_went_is_released_after_its_work() -> Ending {
    let options = OpenClOptions::new().host_copies(HostCopies::Driver);
    let device = OpenClDevice::open_with(tested(), options).unwrap();
    let before = ObjectCounts::now().buffers;
    let size = Bytes::new(64 * KIB);
    let memory = allocate(&device, 64 * KIB);
    let pinned = device.allocate_pinned(size, PinnedFlags::empty()).unwrap();
    let host = core::ptr::with_exposed_provenance_mut::<u8>(usize::try_from(pinned.get()).unwrap());
    // SAFETY: pinned memory of that size, which no work uses yet.
    unsafe { host.write_bytes(0x77, 64 << 10) };
    let (open_gate, closed) = gate();
    device.enqueue_host(closed, StreamHandle::DEFAULT).unwrap();
    for (to, from) in [
        (Location::Device(memory), Location::Host(pinned)),
        (Location::Host(pinned), Location::Device(memory)),
    ] {
        // SAFETY: the device keeps both for work that is under way.
        unsafe { device.copy(&Copy::linear(to, from, size).unwrap(), StreamHandle::DEFAULT) }
            .unwrap();
    }
    drop(device);
    drop(open());
    assert!(ObjectCounts::now().buffers > before, "the work is still to come");
    drop(open_gate);
    let begin = Instant::now();
    loop {
        drop(open());
        let buffers = ObjectCounts::now().buffers;
        if buffers == before {
            return Ok(());
        }
        assert!(
            begin.elapsed() < Duration::from_secs(5),
            "{before} buffers before, {buffers} after"
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub(crate) fn a_forked_child_is_refused_and_leaks() -> Ending {
    let device = open();
    let (memory, stream) = (allocate(&device, 4096), StreamHandle::DEFAULT);
    fill(&device, memory, 4096, 1, stream);
    device.synchronize_device().unwrap();
    let part = device.sub_buffer(span(memory, 4096)).unwrap();
    // SAFETY: no work uses the memory.
    let mapped = unsafe { device.map(span(memory, 4096), MapAccess::Read, stream) }.unwrap();
    let counts = ObjectCounts::now();
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
        drop((mapped, part, device));
        let leaked = ObjectCounts::now() == counts;
        let good =
            leaked && refused.iter().all(|outcome| matches!(outcome, Err(Error::Forked { .. })));
        // SAFETY: nothing of the parent's is run.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let begin = Instant::now();
    let mut status = 0;
    // SAFETY: the child's number, and a place of our own.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if begin.elapsed() > Duration::from_secs(10) {
            // SAFETY: the child's number.
            unsafe { libc::kill(child, libc::SIGKILL) };
            panic!("the child waits for ever");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(status, 0, "the child was not refused, or released what is the parent's");
    drop((mapped, part));
    assert_eq!(read(&device, memory, 4096, stream), [1; 4096]);
    free(&device, memory);
    Ok(())
}
