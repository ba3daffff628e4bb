//! Corners of the ordering checker and of lost devices: each a mistake that was once missed, or one
//! that was once reported and was none.

// A test that cannot go on says so by panicking.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::fd::AsFd;
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, PageSize, Span};
use forebay_hal::{
    Access, Call, Copy, Device, Error, Event, EventKind, Fill, Location, Memory, PageHandle,
    PageOptions, Pattern, Priority, Progress, Sharing, Stream, StreamHandle, Streams, Transfers,
    VirtualMemory,
};
use forebay_sim::{Finding, Kernel, SimDevice, SimMachine};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;
const PAGE: Bytes = PageSize::HOST.bytes();
const SIZE: Bytes = Bytes::new(4096);

fn machine(devices: u32) -> (SimMachine, Arc<SimDevice>) {
    let options = SimMachine::builder().seed(4).devices(devices).granularity(PageSize::HOST);
    let machine = options.build().unwrap();
    let device = machine.device(0).unwrap();
    (machine, device)
}

fn fill(device: &SimDevice, at: Address, stream: StreamHandle) {
    let fill = Fill::linear(at, SIZE, Pattern::U8(1)).unwrap();
    // SAFETY: memory taken away too early is what these tests are about; the simulation holds it.
    unsafe { device.fill(&fill, stream) }.unwrap();
}

fn place(device: &SimDevice, region: Span, number: u64, page: PageHandle) -> Span {
    let start = region.start().checked_add(PAGE.checked_mul(number).unwrap()).unwrap();
    let span = Span::new(start, PAGE).unwrap();
    device.map(start, page).unwrap();
    // SAFETY: access is granted, and none taken away.
    unsafe { device.set_access(span, Access::ReadWrite, DeviceOrdinal(0)) }.unwrap();
    span
}

fn region(device: &SimDevice) -> Span {
    device.reserve(PAGE.checked_mul(8).unwrap(), PageSize::HOST.alignment()).unwrap()
}

#[test]
fn an_imported_twin_that_goes_takes_no_memory_of_the_past_along() {
    let (machine, device) = machine(1);
    let region = region(&device);
    let page = device.create_page(PAGE, PageOptions::shareable()).unwrap();
    let span = place(&device, region, 0, page);
    let other = device.create_stream(Priority::Normal).unwrap();
    fill(&device, span.start(), DEFAULT);
    let sent = device.export_page(page).unwrap();
    let twin = device.import_page(sent.as_fd(), PAGE).unwrap();
    device.release_page(twin).unwrap();
    fill(&device, span.start(), other);
    assert!(matches!(machine.findings().as_slice(), [Finding::Race { .. }]));
}

#[test]
fn a_page_that_was_released_is_known_again_by_its_descriptor() {
    let (machine, device) = machine(1);
    let region = region(&device);
    let page = device.create_page(PAGE, PageOptions::shareable()).unwrap();
    let span = place(&device, region, 0, page);
    let sent = device.export_page(page).unwrap();
    device.release_page(page).unwrap();
    let twin = device.import_page(sent.as_fd(), PAGE).unwrap();
    let second = place(&device, region, 1, twin);
    let other = device.create_stream(Priority::Normal).unwrap();
    fill(&device, span.start(), DEFAULT);
    fill(&device, second.start(), other);
    assert!(matches!(machine.findings().as_slice(), [Finding::Race { .. }]));
}

#[test]
fn losing_a_device_does_not_end_the_work_of_another() {
    let (machine, here) = machine(2);
    let there = machine.device(1).unwrap();
    let memory = there.allocate(SIZE, Alignment::BLOCK).unwrap();
    let event = there.create_event(EventKind::Order).unwrap();
    fill(&there, memory, DEFAULT);
    there.record_event(event, DEFAULT).unwrap();
    here.wait_event(DEFAULT, event).unwrap();
    machine.lose(0);
    // SAFETY: not kept, on purpose: the fill is still to come.
    unsafe { there.free(memory) }.unwrap();
    assert!(matches!(machine.findings().as_slice(), [Finding::TakenInUse { .. }]));
    there.synchronize_device().unwrap();
}

#[test]
fn what_was_lost_is_not_reported_as_done() {
    let (machine, here) = machine(2);
    let there = machine.device(1).unwrap();
    let memory = here.allocate(SIZE, Alignment::BLOCK).unwrap();
    let [early, late] = [(); 2].map(|()| here.create_event(EventKind::Timed).unwrap());
    here.record_event(early, DEFAULT).unwrap();
    here.synchronize_event(early).unwrap();
    fill(&here, memory, DEFAULT);
    here.record_event(late, DEFAULT).unwrap();
    machine.lose(0);
    assert!(matches!(there.synchronize_event(late), Err(Error::Lost { .. })));
    assert!(matches!(there.query_event(late), Err(Error::Lost { .. })));
    assert!(matches!(there.elapsed(early, late), Err(Error::Lost { .. })));
    assert_eq!(there.query_event(early).unwrap(), Progress::Done);
    // Another device's stream that waits for it goes on, so that nothing hangs.
    there.wait_event(DEFAULT, late).unwrap();
    there.synchronize_device().unwrap();
}

/// A stream that is gone leaves its place in the clocks to another only once the host has seen the
/// end of its work; else the newcomer would seem to come after it.
#[test]
fn a_new_stream_does_not_come_after_one_that_is_gone() {
    let (machine, device) = machine(1);
    let memory = device.allocate(SIZE, Alignment::BLOCK).unwrap();
    let old = device.create_stream(Priority::Normal).unwrap();
    fill(&device, memory, old);
    device.destroy_stream(old).unwrap();
    while machine.census().queued > 0 {
        // The default stream has nothing to do; asking for it lets the others run.
        let _ = device.query_stream(DEFAULT).unwrap();
    }
    let new = device.create_stream(Priority::Normal).unwrap();
    fill(&device, memory, new);
    assert!(matches!(machine.findings().as_slice(), [Finding::Race { .. }]));
    // Seen to be over, the place is free, and streams can come and go for ever.
    machine.clear_findings();
    for _ in 0..100 {
        device.synchronize_device().unwrap();
        let stream = device.create_stream(Priority::Normal).unwrap();
        fill(&device, memory, stream);
        device.destroy_stream(stream).unwrap();
    }
    assert_eq!(machine.findings(), []);
}

/// Synchronising one device lets the checker forget what is past, and nothing else.
#[test]
fn what_is_still_to_come_is_not_forgotten() {
    let (machine, here) = machine(2);
    let there = machine.device(1).unwrap();
    let memory = there.allocate(SIZE, Alignment::BLOCK).unwrap();
    let mut host = [0_u8; 4096];
    let target = Location::Host(Address::of_pointer(host.as_mut_ptr()));
    let down = Copy::linear(target, Location::Device(memory), SIZE).unwrap();
    let other = there.create_stream(Priority::Normal).unwrap();
    // SAFETY: the buffer outlives the work, which is synchronised below.
    unsafe { there.copy(&down, DEFAULT) }.unwrap();
    here.synchronize_device().unwrap();
    // SAFETY: as above.
    unsafe { there.copy(&down, other) }.unwrap();
    fill(&there, memory, other);
    let findings = machine.findings();
    assert_eq!(findings.len(), 2, "the host's bytes and the device's: {findings:?}");
    there.synchronize_device().unwrap();
}

/// However many places of host memory are in use, none that is still in use is forgotten.
#[test]
fn much_host_memory_is_remembered_while_it_is_in_use() {
    let (machine, device) = machine(1);
    let memory = device.allocate(SIZE, Alignment::BLOCK).unwrap();
    let other = device.create_stream(Priority::Normal).unwrap();
    let mut host = vec![0_u8; 20_000];
    let base = Address::of_pointer(host.as_mut_ptr());
    let up = |offset: u64| {
        let from = Location::Host(base.checked_add(Bytes::new(offset)).unwrap());
        Copy::linear(Location::Device(memory), from, Bytes::new(1)).unwrap()
    };
    for offset in (0..20_000).step_by(2) {
        // SAFETY: the buffer outlives the work, which is synchronised below.
        unsafe { device.copy(&up(offset), DEFAULT) }.unwrap();
    }
    assert_eq!(machine.findings(), []);
    let back = Copy::linear(Location::Host(base), Location::Device(memory), Bytes::new(1)).unwrap();
    // SAFETY: as above.
    unsafe { device.copy(&back, other) }.unwrap();
    assert_eq!(machine.finding_count(), 2, "{:?}", machine.findings());
    device.synchronize_device().unwrap();
}

#[test]
fn an_update_in_place_is_no_mistake() {
    let (machine, device) = machine(1);
    let memory = device.allocate(SIZE, Alignment::BLOCK).unwrap();
    let part = |size| Span::new(memory, Bytes::new(size)).unwrap();
    let kernel = Kernel::new("update").reads(part(100)).writes(part(50));
    // SAFETY: the memory lives until the device was synchronised.
    unsafe { device.launch(kernel, DEFAULT) }.unwrap();
    assert_eq!(machine.findings(), []);
    device.synchronize_device().unwrap();
}

#[test]
fn taking_away_writing_is_no_matter_to_readers() {
    let (machine, device) = machine(1);
    let region = region(&device);
    let page = device.create_page(PAGE, PageOptions::default()).unwrap();
    let span = place(&device, region, 0, page);
    let read = Kernel::new("read").reads(span);
    // SAFETY: the page lives until the device was synchronised.
    unsafe { device.launch(read, DEFAULT) }.unwrap();
    let only_reading = || {
        // SAFETY: not kept the second time, on purpose: a fill is still to come.
        unsafe { device.set_access(span, Access::Read, DeviceOrdinal(0)) }.unwrap();
    };
    only_reading();
    assert_eq!(machine.findings(), []);
    // SAFETY: access is granted, and none taken away.
    unsafe { device.set_access(span, Access::ReadWrite, DeviceOrdinal(0)) }.unwrap();
    fill(&device, span.start(), DEFAULT);
    only_reading();
    let findings = machine.findings();
    assert!(
        matches!(findings.as_slice(), [Finding::TakenInUse { call: Call::SetAccess, .. }]),
        "{findings:?}"
    );
    device.synchronize_device().unwrap();
}

/// What a kernel's body owns may call the device when it goes: a stream destroys itself.
#[test]
fn a_kernel_may_own_what_calls_the_device() {
    let (machine, device) = machine(1);
    let shared: Arc<dyn Device> = device.clone();
    for lose in [false, true] {
        let stream = Stream::new(&shared, Priority::Normal).unwrap();
        let kernel = Kernel::new("owner").body(move |_| drop(stream));
        // SAFETY: it touches no memory.
        unsafe { device.launch(kernel, DEFAULT) }.unwrap();
        if lose {
            machine.lose(0);
        } else {
            device.synchronize_device().unwrap();
        }
    }
}

#[test]
fn streams_and_events_of_other_machines_are_refused() {
    let devices: Vec<Arc<dyn Device>> = (0..2).map(|_| machine(1).1 as Arc<dyn Device>).collect();
    let stream = Stream::new(&devices[0], Priority::Normal).unwrap();
    let event = Event::new(&devices[1], EventKind::Order).unwrap();
    assert!(matches!(event.record(&stream), Err(Error::Invalid { .. })));
    assert!(matches!(stream.wait(&event), Err(Error::Invalid { .. })), "handles never collide");
    let own = Event::new(&devices[0], EventKind::Order).unwrap();
    own.record(&stream).unwrap();
    stream.wait(&own).unwrap();
    stream.synchronize().unwrap();
}

#[test]
fn a_billion_rows_are_refused_and_not_noted_one_by_one() {
    let (_, device) = machine(1);
    let memory = device.allocate(Bytes::mib(8), Alignment::BLOCK).unwrap();
    let rows = (Bytes::new(1), 1 << 30);
    let fill = Fill::plane(memory, Bytes::new(2), rows, Pattern::U8(1)).unwrap();
    // SAFETY: not memory of the device from end to end, and refused before that matters.
    let refused = unsafe { device.fill(&fill, DEFAULT) };
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
}
