//! Copies that fail half way: when the call has returned, nothing touches the caller's host memory.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

use std::sync::Arc;
use std::time::Duration;

use crate::fake_driver::{FakeDriver, hold};
use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::Code;
use forebay_hal::{
    Call, Copy, Error, Extent, ForeignStreams, Location, Memory, PinnedFlags, PinnedMemory, Pitch,
    Priority, Progress, StreamHandle, Streams, Transfers,
};

/// Copies in pieces of two megabytes: one that goes through the stream's own stage, and one that is spread over others.
const SIZES: [(usize, u64); 2] = [((3 << 20) + 12_345, 2), ((7 << 20) + 12_345, 4)];

/// What is in memory before, and what the caller puts there once the call has failed.
const BEFORE: u8 = 0x11;
const AFTER: u8 = 0x77;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the host to the device.
    Up,
    /// From the device to the host.
    Down,
}

fn linear(way: Way, memory: Address, host: &mut [u8]) -> Copy {
    let here = Location::Host(Address::of_pointer(host.as_mut_ptr().cast_const()));
    let there = Location::Device(memory);
    let (to, from) = if way == Way::Up { (there, here) } else { (here, there) };
    Copy::linear(to, from, Bytes::new(host.len() as u64)).unwrap()
}

fn copy(device: &CudaDevice, way: Way, memory: Address, host: &mut [u8], stream: StreamHandle) {
    // SAFETY: both sides outlive the copy, which is waited for.
    unsafe { device.copy(&linear(way, memory, host), stream) }.unwrap();
    device.synchronize_stream(stream).unwrap();
}

/// Makes the call number `after` of a function fail in the middle of a copy, and looks who touches the
/// host's memory from then on.
fn fail_in_the_middle(
    fake: &FakeDriver,
    (device, stream, memory): (&CudaDevice, StreamHandle, Address),
    (way, busy, size): (Way, bool, usize),
    (name, after): (&str, u64),
) {
    let what = format!("{way:?}, {size} B, {name} after {after}, held: {busy}");
    let mut host = vec![BEFORE; size];
    copy(device, Way::Up, memory, &mut host, stream);
    let gate = busy.then(|| hold(device, stream));
    fake.fail(Some(name), after, Code::ERROR_OUT_OF_MEMORY);
    // SAFETY: the device's memory outlives the stream's work; the host's is not used by a copy that
    // failed, which is what is tested, and it outlives the work besides.
    let copied = unsafe { device.copy(&linear(way, memory, &mut host), stream) };
    let error = copied.unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { call: Call::Copy, .. }), "{what}: {error}");
    assert_eq!(fake.clear(), 0, "{what}: the fault was due");
    if busy {
        assert_eq!(device.query_stream(stream).unwrap(), Progress::Pending, "{what}: no wait");
        let touched = host.iter().filter(|&&byte| byte != BEFORE).count();
        assert_eq!(touched, 0, "{what}: bytes written before their turn");
    }
    // From here on the memory is the caller's.
    host.fill(AFTER);
    drop(gate);
    device.synchronize_stream(stream).unwrap();
    let written = host.iter().filter(|&&byte| byte != AFTER).count();
    assert_eq!(written, 0, "{what}: bytes written after the call had failed");
    copy(device, Way::Down, memory, &mut host, stream);
    let read = host.iter().filter(|&&byte| byte == AFTER).count();
    assert_eq!(read, 0, "{what}: bytes read after the call had failed");
    // And the next copies are as good as any.
    host.fill(0x5a);
    copy(device, Way::Up, memory, &mut host, stream);
    host.fill(0);
    copy(device, Way::Down, memory, &mut host, stream);
    assert!(host.iter().all(|&byte| byte == 0x5a), "{what}: a later copy");
}

fn fail_everywhere(fake: &FakeDriver, device: &CudaDevice, stream: StreamHandle) {
    for (size, pieces) in SIZES {
        let memory = device.allocate(Bytes::new(size as u64), Alignment::BLOCK).unwrap();
        // The stages, the words and the threads are there before anything is counted.
        copy(device, Way::Up, memory, &mut vec![BEFORE; size], stream);
        let here = (device, stream, memory);
        for name in ["cuMemcpyAsync", "cuLaunchHostFunc", "cuStreamWaitValue32"] {
            for after in 0..pieces {
                for (way, busy) in
                    [(Way::Up, true), (Way::Up, false), (Way::Down, true), (Way::Down, false)]
                {
                    // A task that runs before its wait is refused is waited for, and then the copy
                    // goes on: on a stream that is not held that is a matter of luck.
                    if busy || name != "cuStreamWaitValue32" {
                        fail_in_the_middle(fake, here, (way, busy, size), (name, after));
                    }
                }
            }
        }
        // SAFETY: the work is done.
        unsafe { device.free(memory) }.unwrap();
    }
}

/// Calls by which side streams begin after a stream and end before its later work: where one is refused, a copy has fewer
/// of them or joins them again, and is the same copy.
#[test]
fn a_spread_copy_does_without_calls_that_are_refused() {
    let fake = FakeDriver::load("spread").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let (size, _) = SIZES[1];
    let memory = device.allocate(Bytes::new(size as u64), Alignment::BLOCK).unwrap();
    for name in
        ["cuEventRecord", "cuStreamWaitEvent", "cuStreamCreateWithPriority", "cuStreamQuery"]
    {
        for after in 0..6 {
            let contents: Vec<u8> =
                (0..size).map(|at| (at * 31 + after).to_le_bytes()[0]).collect();
            fake.fail(Some(name), after as u64, Code::ERROR_OUT_OF_MEMORY);
            let (mut up, mut down) = (contents.clone(), vec![0; size]);
            let gate = hold(&device, stream);
            // SAFETY: both sides outlive the copies, which are waited for.
            unsafe {
                device.copy(&linear(Way::Up, memory, &mut up), stream).unwrap();
                device.copy(&linear(Way::Down, memory, &mut down), stream).unwrap();
            }
            assert!(down.iter().all(|&byte| byte == 0), "{name} after {after}: before its turn");
            drop(gate);
            device.synchronize_stream(stream).unwrap();
            assert!(down == contents, "{name} after {after}: other bytes arrived");
            fake.clear();
        }
    }
    let sides = fake.driver.made().streams - 1;
    let processors = std::thread::available_parallelism().unwrap().get();
    assert!(sides > 1 || processors == 1, "{sides} side streams on {processors} processors");
    // SAFETY: the work is done.
    unsafe { device.free(memory) }.unwrap();
}

/// A copy needs one staging buffer, and takes more only where there are more.
#[test]
fn a_spread_copy_does_with_the_memory_that_can_be_pinned() {
    let (size, _) = SIZES[1];
    for stages in 0..3 {
        let fake = FakeDriver::load(&format!("pinned-{stages}")).unwrap();
        let device = CudaDevice::open_with(fake.driver, 0).unwrap();
        let stream = device.create_stream(Priority::Normal).unwrap();
        let memory = device.allocate(Bytes::new(size as u64), Alignment::BLOCK).unwrap();
        // The stream's own buffer, and the words of all streams.
        copy(&device, Way::Up, memory, &mut vec![BEFORE; SIZES[0].0], stream);
        for _ in 0..100 {
            fake.fail(Some("cuMemHostAlloc"), stages, Code::ERROR_OUT_OF_MEMORY);
        }
        copy(&device, Way::Up, memory, &mut vec![0x5a; size], stream);
        let mut down = vec![0; size];
        copy(&device, Way::Down, memory, &mut down, stream);
        assert!(down.iter().all(|&byte| byte == 0x5a), "{stages} more buffers");
        fake.clear();
    }
}

#[test]
fn a_failed_copy_of_ordinary_memory_leaves_it_alone() {
    let fake = FakeDriver::load("staged").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    fail_everywhere(&fake, &device, stream);
}

#[test]
fn a_failed_copy_on_a_threads_default_stream_leaves_memory_alone() {
    let fake = FakeDriver::load("staged-own").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    // SAFETY: the thread's own stream is there as long as the thread.
    let stream = unsafe { device.adopt_stream(2) }.unwrap();
    fail_everywhere(&fake, &device, stream);
    device.forget_stream(stream).unwrap();
}

/// Rows further apart than the driver's copies take, so that each is a call of its own.
const ROW: usize = 4096;
const PITCH: usize = 300_000;
const ROWS: usize = 4;

struct Rows {
    fake: FakeDriver,
    device: Arc<CudaDevice>,
    stream: StreamHandle,
    memory: Address,
    pinned: Address,
}

impl Rows {
    fn new(name: &str) -> Self {
        let fake = FakeDriver::load(name).unwrap();
        fake.max_pitch(262_144);
        let device = CudaDevice::open_with(fake.driver, 0).unwrap();
        let stream = device.create_stream(Priority::Normal).unwrap();
        let size = Bytes::new((ROWS * PITCH) as u64);
        let memory = device.allocate(size, Alignment::BLOCK).unwrap();
        let pinned = device.allocate_pinned(size, PinnedFlags::empty()).unwrap();
        Self { fake, device, stream, memory, pinned }
    }

    fn copy(&self, way: Way) -> Copy {
        let (there, here) = (Location::Device(self.memory), Location::Host(self.pinned));
        let (to, from) = if way == Way::Up { (there, here) } else { (here, there) };
        let (pitch, extent) = (
            Pitch::rows(Bytes::new(PITCH as u64)),
            Extent::plane(Bytes::new(ROW as u64), ROWS as u64),
        );
        Copy::volumes(to, pitch, from, pitch, extent).unwrap()
    }

    fn pointer(&self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.pinned.get().try_into().unwrap())
    }

    /// Fills the host's side, which no copy uses meanwhile.
    fn fill(&self, byte: u8) {
        // SAFETY: pinned memory of that size.
        unsafe { self.pointer().write_bytes(byte, ROWS * PITCH) };
    }

    /// What is on the host's side, which no copy uses meanwhile.
    fn host(&self) -> Vec<u8> {
        // SAFETY: as above, and filled before anything else was done with it.
        unsafe { core::slice::from_raw_parts(self.pointer(), ROWS * PITCH) }.to_vec()
    }

    fn try_copy(&self, way: Way) -> Result<(), Error> {
        // SAFETY: both sides live as long as the fake driver.
        unsafe { self.device.copy(&self.copy(way), self.stream) }
    }
}

#[test]
fn a_failed_copy_of_pinned_memory_has_ended_when_it_returns() {
    let rows = Rows::new("pinned");
    let (device, stream) = (&rows.device, rows.stream);
    for way in [Way::Up, Way::Down] {
        for after in 0..ROWS {
            let what = format!("{way:?}, row {after}");
            rows.fill(BEFORE);
            rows.try_copy(Way::Up).unwrap();
            device.synchronize_stream(stream).unwrap();
            // Where nothing comes to be enqueued nothing is waited for, so the stream may be held.
            let gate = (after == 0).then(|| hold(device, stream));
            let task = || std::thread::sleep(Duration::from_millis(100));
            device.enqueue_host(Box::new(task), stream).unwrap();
            rows.fake.fail(Some("cuMemcpyAsync"), after as u64, Code::ERROR_OUT_OF_MEMORY);
            let error = rows.try_copy(way).unwrap_err();
            assert!(
                matches!(error, Error::OutOfMemory { call: Call::Copy, .. }),
                "{what}: {error}"
            );
            let ended = device.query_stream(stream).unwrap();
            let right = if after == 0 { Progress::Pending } else { Progress::Done };
            assert_eq!(ended, right, "{what}");
            rows.fill(AFTER);
            drop(gate);
            device.synchronize_stream(stream).unwrap();
            assert!(rows.host().iter().all(|&byte| byte == AFTER), "{what}: written late");
            rows.try_copy(Way::Down).unwrap();
            device.synchronize_stream(stream).unwrap();
            let mut lines = rows.host();
            for row in lines.chunks_mut(PITCH) {
                row[ROW..].fill(BEFORE);
            }
            assert!(lines.iter().all(|&byte| byte == BEFORE), "{what}: read late");
        }
    }
}

#[test]
fn a_failed_copy_that_cannot_be_waited_for_is_a_lost_device() {
    let rows = Rows::new("unwaited");
    rows.fill(BEFORE);
    rows.fake.fail(Some("cuMemcpyAsync"), 1, Code::ERROR_OUT_OF_MEMORY);
    for _ in 0..3 {
        rows.fake.fail(Some("cuStreamSynchronize"), 0, Code::ERROR_OPERATING_SYSTEM);
    }
    let error = rows.try_copy(Way::Down).unwrap_err();
    assert!(matches!(error, Error::Lost { call: Call::Copy, .. }), "{error}");
    assert!(error.to_string().contains("cannot be waited for"), "{error}");
    assert_eq!(rows.fake.clear(), 0);
    // One that passes is not the end.
    rows.fake.fail(Some("cuMemcpyAsync"), 1, Code::ERROR_OUT_OF_MEMORY);
    rows.fake.fail(Some("cuStreamSynchronize"), 0, Code::ERROR_OPERATING_SYSTEM);
    let error = rows.try_copy(Way::Down).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}
