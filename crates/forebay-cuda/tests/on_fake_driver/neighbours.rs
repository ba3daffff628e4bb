//! Other users of the driver in the same process: their contexts, streams and memory.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

use std::sync::Arc;

use crate::fake_driver::FakeDriver;
use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::sys::{RawContext, RawStream, values};
use forebay_cuda::{CudaDevice, CudaDriver};
use forebay_hal::{
    Call, Copy, Device, Error, ForeignStreams, HostTask, Location, Memory, Priority, Progress,
    StreamHandle, Streams, Transfers,
};

/// Makes a context current for this thread.
fn push(driver: &CudaDriver, context: u64) {
    // SAFETY: a live context.
    unsafe { driver.table().context_push(RawContext(context)) }.unwrap();
}

/// Undoes that, and gives what it was.
fn pop(driver: &CudaDriver) -> u64 {
    let mut popped = RawContext::NULL;
    // SAFETY: a place of our own.
    unsafe { driver.table().context_pop(&raw mut popped) }.unwrap();
    popped.0
}

/// A stream of the current context.
fn make_stream(driver: &CudaDriver) -> u64 {
    let mut stream = RawStream::NULL;
    let flags = values::stream::NON_BLOCKING;
    // SAFETY: a place of our own.
    unsafe { driver.table().stream_create(&raw mut stream, flags, 0) }.unwrap();
    stream.0
}

/// Bytes up and down again by way of `memory`, on `stream`.
fn there_and_back(device: &CudaDevice, memory: Address, stream: StreamHandle, bytes: &[u8]) {
    let size = Bytes::new(bytes.len() as u64);
    let mut back = vec![0_u8; bytes.len()];
    let there = Location::Device(memory);
    let host = |bytes: *const u8| Location::Host(Address::of_pointer(bytes));
    let upload = Copy::linear(there, host(bytes.as_ptr()), size).unwrap();
    let download = Copy::linear(host(back.as_mut_ptr()), there, size).unwrap();
    // SAFETY: all of it outlives the work, which is waited for.
    unsafe {
        device.copy(&upload, stream).unwrap();
        device.copy(&download, stream).unwrap();
    }
    device.synchronize_stream(stream).unwrap();
    assert!(back == bytes, "what came back is not what was sent");
}

#[test]
fn the_callers_context_is_the_same_after_every_call() {
    let fake = FakeDriver::load("contexts").unwrap();
    let (driver, other) = (fake.driver, fake.make_context(1));
    let device = CudaDevice::open_with(driver, 0).unwrap();
    for context in [0, other, device.raw_context()] {
        if context != 0 {
            push(driver, context);
        }
        let same = |what: &str| assert_eq!(driver.current_context(), context, "after {what}");
        let memory = device.allocate(Bytes::new(5000), Alignment::BLOCK).unwrap();
        same("allocate");
        let stream = device.create_stream(Priority::Low).unwrap();
        same("create_stream");
        there_and_back(&device, memory, stream, &[3; 5000]);
        same("copies");
        device.enqueue_host(Box::new(|| ()), stream).unwrap();
        same("enqueue_host");
        device.allocate(Bytes::new(1 << 60), Alignment::BLOCK).unwrap_err();
        same("a refusal");
        device.synchronize_device().unwrap();
        // SAFETY: the work is done.
        unsafe { device.free(memory) }.unwrap();
        device.destroy_stream(stream).unwrap();
        drop(CudaDevice::open_with(driver, 1).unwrap());
        same("opening another device");
        if context != 0 {
            assert_eq!(pop(driver), context);
        }
    }
}

#[test]
fn a_device_can_be_opened_in_anothers_context() {
    let fake = FakeDriver::load("foreign").unwrap();
    let (driver, context) = (fake.driver, fake.make_context(1));
    push(driver, context);
    let theirs = make_stream(driver);
    pop(driver);
    // SAFETY: the context lives as long as the fake driver.
    let device = unsafe { CudaDevice::open_in(driver, context) }.unwrap();
    assert_eq!(device.raw_context(), context);
    assert_eq!(device.descriptor().ordinal.0, 1);
    // SAFETY: the stream lives as long as the fake driver.
    let stream = unsafe { device.adopt_stream(theirs) }.unwrap();
    let memory = device.allocate(Bytes::new(4096), Alignment::BLOCK).unwrap();
    there_and_back(&device, memory, stream, &[9; 4096]);
    // A device in the primary context cannot order its work with that stream, and says so.
    let primary = CudaDevice::open_with(driver, 1).unwrap();
    // SAFETY: as above.
    let refused = unsafe { primary.adopt_stream(theirs) }.unwrap_err();
    assert!(matches!(refused, Error::Invalid { call: Call::AdoptStream, .. }), "{refused}");
    assert!(refused.to_string().contains("open a device in theirs"), "{refused}");
}

#[test]
fn both_names_of_the_legacy_stream_are_the_default() {
    let fake = FakeDriver::load("legacy").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    for name in [RawStream::NULL, RawStream::LEGACY] {
        // SAFETY: the default stream is there as long as the device.
        let stream = unsafe { device.adopt_stream(name.0) }.unwrap();
        assert_eq!(stream, StreamHandle::DEFAULT);
        device.forget_stream(stream).unwrap();
    }
}

#[test]
fn each_thread_has_its_own_default_stream() {
    let fake = FakeDriver::load("threads").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    // SAFETY: the handle means a stream of whichever thread uses it, which is always there.
    let stream = unsafe { device.adopt_stream(RawStream::PER_THREAD.0) }.unwrap();
    let mut ids = vec![device.stream_id(stream).unwrap()];
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..5_u8)
            .map(|number| {
                let device: &Arc<CudaDevice> = &device;
                scope.spawn(move || {
                    let memory = device.allocate(Bytes::new(300_000), Alignment::BLOCK).unwrap();
                    for round in 0..10 {
                        // Large enough for tasks in threads of their own, and for the stage.
                        there_and_back(device, memory, stream, &vec![number * 16 + round; 300_000]);
                    }
                    device.stream_id(stream).unwrap()
                })
            })
            .collect();
        ids.extend(threads.into_iter().map(|thread| thread.join().unwrap()));
    });
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 5, "five threads have five streams behind one handle");
    device.forget_stream(stream).unwrap();
}

#[test]
fn another_librarys_memory_is_good_for_copies_and_is_not_ours() {
    let fake = FakeDriver::load("memory").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let mut theirs = 0;
    push(fake.driver, device.raw_context());
    // SAFETY: a place of our own.
    unsafe { fake.driver.table().mem_alloc(&raw mut theirs, 8192) }.unwrap();
    pop(fake.driver);
    let theirs = Address::new(theirs);
    there_and_back(&device, theirs, StreamHandle::DEFAULT, &[5; 8192]);
    assert_eq!(device.classify(theirs).unwrap(), None);
    // SAFETY: nobody uses it; the call must be refused.
    let freed = unsafe { device.free(theirs) };
    assert!(matches!(freed, Err(Error::Invalid { call: Call::Free, .. })));
    let known = device.driver_pointer(theirs).unwrap();
    assert_eq!((known.span.start(), known.on_host, known.managed), (theirs, false, false));
    // One byte past its end is nobody's.
    let host = vec![0_u8; 8193];
    let place = Location::Host(Address::of_pointer(host.as_ptr()));
    let copy = Copy::linear(Location::Device(theirs), place, Bytes::new(8193)).unwrap();
    // SAFETY: the driver knows where its memory ends, so the call is refused.
    let refused = unsafe { device.copy(&copy, StreamHandle::DEFAULT) }.unwrap_err();
    assert!(matches!(refused, Error::Invalid { call: Call::Copy, .. }), "{refused}");
}

#[test]
fn a_destroyed_stream_is_given_out_again_when_its_work_is_done_and_not_before() {
    let fake = FakeDriver::load("used-pool").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let first = device.create_stream(Priority::Normal).unwrap();
    let id = device.stream_id(first).unwrap();
    let (open, gate) = std::sync::mpsc::channel::<()>();
    let task: HostTask = Box::new(move || {
        let _ = gate.recv_timeout(std::time::Duration::from_secs(5));
    });
    device.enqueue_host(task, first).unwrap();
    device.destroy_stream(first).unwrap();
    let second = device.create_stream(Priority::Normal).unwrap();
    assert_ne!(second, first, "a stream with work was given out");
    assert_eq!(device.query_stream(second).unwrap(), Progress::Done);
    open.send(()).unwrap();
    device.synchronize_device().unwrap();
    let third = device.create_stream(Priority::Normal).unwrap();
    assert_eq!(third, first, "the handle of a stream whose work is done");
    assert_ne!(device.stream_id(third).unwrap(), id, "and an identity of its own");
}
