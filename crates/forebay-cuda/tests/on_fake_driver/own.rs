//! The default stream of each thread, behind one value of the driver's, and the legacy default stream
//! that is tied to it.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fake_driver::{FakeDriver, hold};
use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::{RawContext, RawStream};
use forebay_hal::{
    Call, Capabilities, Copy, Device, Error, Fill, ForeignStreams, Location, Memory, Pattern,
    Priority, Progress, StreamHandle, Streams, Transfers,
};

const OWN: StreamHandle = StreamHandle::PER_THREAD;

fn adopt(device: &CudaDevice) {
    // SAFETY: the value means the stream of whichever thread uses it, which is always there.
    assert_eq!(unsafe { device.adopt_stream(RawStream::PER_THREAD.0) }.unwrap(), OWN);
}

fn fill(device: &CudaDevice, memory: Address, stream: StreamHandle) {
    let fill = Fill::linear(memory, Bytes::new(4096), Pattern::U8(1)).unwrap();
    // SAFETY: the memory outlives the work.
    unsafe { device.fill(&fill, stream) }.unwrap();
}

fn is_done(device: &CudaDevice, stream: StreamHandle) -> bool {
    device.query_stream(stream).unwrap() == Progress::Done
}

/// Whether the stream's work is done within a while that is long beside all that does not wait.
fn ends(device: &CudaDevice, stream: StreamHandle) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        if is_done(device, stream) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

/// Whether the stream's work is not done for a while that is long beside what its work takes.
fn stays(device: &CudaDevice, stream: StreamHandle) -> bool {
    (0..30).all(|_| {
        std::thread::sleep(Duration::from_millis(1));
        !is_done(device, stream)
    })
}

#[test]
fn one_adoption_is_for_all_threads_and_is_counted() {
    let fake = FakeDriver::load("own-count").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    assert!(device.descriptor().capabilities.contains(Capabilities::PER_THREAD_STREAMS));
    let before = device.synchronize_stream(OWN).unwrap_err();
    assert!(matches!(before, Error::Invalid { call: Call::SynchronizeStream, .. }), "{before}");
    adopt(&device);
    adopt(&device);
    assert_eq!(device.raw_stream(OWN), 2);
    assert_eq!(device.raw_stream(StreamHandle::of_this_thread()), 2);
    device.forget_stream(OWN).unwrap();
    std::thread::scope(|scope| {
        let used = scope.spawn(|| device.synchronize_stream(StreamHandle::of_this_thread()));
        used.join().unwrap().unwrap();
    });
    device.forget_stream(StreamHandle::of_this_thread()).unwrap();
    device.synchronize_stream(OWN).unwrap_err();
    let again = device.forget_stream(OWN).unwrap_err();
    assert!(matches!(again, Error::Invalid { call: Call::ForgetStream, .. }), "{again}");
    // The driver's value is nobody's handle.
    device.synchronize_stream(StreamHandle(2)).unwrap_err();
}

#[test]
fn another_threads_stream_is_refused_with_the_reason() {
    let fake = FakeDriver::load("own-refused").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    adopt(&device);
    let theirs = std::thread::spawn(StreamHandle::of_this_thread).join().unwrap();
    let refused = device.synchronize_stream(theirs).unwrap_err();
    assert!(refused.to_string().contains("only its own thread can use"), "{refused}");
}

#[test]
fn the_device_is_not_waited_for_where_the_driver_cannot_wait_for_all_threads() {
    let fake = FakeDriver::load_with("own-lacks", 13_000, 1, &["cuCtxSynchronize"]).unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    assert!(!device.descriptor().capabilities.contains(Capabilities::PER_THREAD_STREAMS));
    device.synchronize_device().unwrap();
    adopt(&device);
    let refused = device.synchronize_device().unwrap_err();
    assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
    assert!(refused.to_string().contains("cuCtxSynchronize"), "{refused}");
    device.forget_stream(OWN).unwrap();
    // Other threads' work may be there for good.
    device.synchronize_device().unwrap_err();
}

#[test]
fn a_dropped_devices_memory_waits_for_every_threads_stream() {
    let fake = FakeDriver::load("own-drop").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let warm = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    // The words and stages that stay are there before anything is counted.
    adopt(&device);
    drop(hold(&device, OWN));
    device.synchronize_device().unwrap();
    // SAFETY: the work is done.
    unsafe { device.free(warm) }.unwrap();
    let before = fake.alive();
    let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    let theirs = Arc::clone(&device);
    let worker = std::thread::spawn(move || {
        let gate = hold(&theirs, OWN);
        fill(&theirs, memory, OWN);
        gate
    });
    let gate = worker.join().unwrap();
    let begin = Instant::now();
    drop(device);
    assert!(begin.elapsed() < Duration::from_secs(2), "dropping waits for nothing");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(fake.alive(), before + 1, "memory was given back under running work");
    drop(gate);
    let begin = Instant::now();
    while fake.alive() != before {
        assert!(begin.elapsed() < Duration::from_secs(5), "{} alive", fake.alive());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn pinned_memory_does_not_grow_with_the_threads_that_copied() {
    let fake = FakeDriver::load("own-pinned").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    adopt(&device);
    let size = Bytes::mib(2);
    let memory = device.allocate(size, Alignment::BLOCK).unwrap();
    let before = fake.alive();
    for round in 0..200_u8 {
        let device = Arc::clone(&device);
        let worker = std::thread::spawn(move || {
            let host = vec![round; 2 << 20];
            let place = Location::Host(Address::of_pointer(host.as_ptr()));
            let copy = Copy::linear(Location::Device(memory), place, size).unwrap();
            // SAFETY: the bytes outlive the copy, which is waited for.
            unsafe { device.copy(&copy, OWN) }.unwrap();
            device.synchronize_stream(OWN).unwrap();
        });
        worker.join().unwrap();
    }
    let more = fake.alive() - before;
    // A stage and a page of words, and as much again for what was not yet seen to be done.
    assert!(more <= 4, "{more} pieces of pinned memory for 200 threads, one after another");
    // Copies at once take a stage each, and the next ones the same.
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let host = vec![7_u8; 2 << 20];
                    let place = Location::Host(Address::of_pointer(host.as_ptr()));
                    let copy = Copy::linear(Location::Device(memory), place, size).unwrap();
                    for _ in 0..4 {
                        // SAFETY: as above.
                        unsafe { device.copy(&copy, OWN) }.unwrap();
                        device.synchronize_stream(OWN).unwrap();
                    }
                });
            }
        });
    }
    let more = fake.alive() - before;
    assert!(more <= 20, "{more} pieces of pinned memory for eight threads at once");
}

/// Which streams the driver ties together, and that it does so to none that is made here.
#[test]
fn the_legacy_stream_waits_for_blocking_streams_and_ours_for_neither() {
    let fake = FakeDriver::load("own-ties").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    adopt(&device);
    let memory = device.allocate(Bytes::new(3 * 4096), Alignment::BLOCK).unwrap();
    let [first, second, third] =
        [0, 4096, 8192].map(|offset| memory.checked_add(Bytes::new(offset)).unwrap());
    let ours = device.create_stream(Priority::Normal).unwrap();
    let mut theirs = RawStream::NULL;
    // SAFETY: the context is live, and the places are our own.
    unsafe {
        let (table, mut popped) = (fake.driver.table(), RawContext::NULL);
        table.context_push(RawContext(device.raw_context())).unwrap();
        table.stream_create(&raw mut theirs, 0, 0).unwrap();
        table.context_pop(&raw mut popped).unwrap();
    }
    // SAFETY: the stream lives as long as the fake driver.
    let theirs = unsafe { device.adopt_stream(theirs.0) }.unwrap();
    for blocking in [OWN, theirs] {
        // Earlier work of a blocking stream holds the legacy stream, and neither holds ours.
        let gate = hold(&device, blocking);
        fill(&device, first, StreamHandle::DEFAULT);
        fill(&device, second, ours);
        assert!(ends(&device, ours), "a stream of ours waits for {blocking}");
        assert!(stays(&device, StreamHandle::DEFAULT), "the legacy stream overtook {blocking}");
        // And what comes on a blocking stream afterwards waits for the legacy stream.
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                fill(&device, third, OWN);
                stays(&device, OWN)
            });
            assert!(other.join().unwrap(), "another thread's stream overtook the legacy stream");
        });
        drop(gate);
        device.synchronize_device().unwrap();
        let gate = hold(&device, StreamHandle::DEFAULT);
        fill(&device, first, blocking);
        fill(&device, second, ours);
        assert!(ends(&device, ours), "a stream of ours waits for the legacy stream");
        assert!(stays(&device, blocking), "{blocking} overtook the legacy stream");
        drop(gate);
        assert!(ends(&device, blocking));
    }
    device.forget_stream(theirs).unwrap();
}
