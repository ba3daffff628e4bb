//! Large pinned memory: pages of this process, registered with the driver, and nothing left of them afterwards.

#![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

mod fake_driver;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fake_driver::FakeDriver;
use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::Code;
use forebay_hal::{
    Copy, Device, Error, Location, Memory, PinnedFlags, PinnedMemory, PointerKind, StreamHandle,
    Streams, Transfers,
};

const LARGE: Bytes = Bytes::mib(64);
const FLAGS: PinnedFlags = PinnedFlags::MAPPED;

/// The tests count what the whole process has mapped, so each has it for itself.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn open(name: &str) -> (FakeDriver, Arc<CudaDevice>) {
    with_device(FakeDriver::load(name))
}

fn with_device(fake: Result<FakeDriver, String>) -> (FakeDriver, Arc<CudaDevice>) {
    let fake = fake.unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    (fake, device)
}

/// How many bytes of the process a forked child does not get: the pages that are made to be pinned.
fn own_pages() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut size = 0;
    let mut sum = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("Size:") {
            size = rest.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|flag| flag == "dc")
        {
            sum += size;
        }
    }
    sum
}

fn allocate(device: &CudaDevice, size: Bytes) -> Result<Address, Error> {
    device.allocate_pinned(size, FLAGS)
}

fn free(device: &CudaDevice, memory: Address) -> Result<(), Error> {
    // SAFETY: allocated by the tests, which have waited for the work that uses it.
    unsafe { device.free_pinned(memory) }
}

fn bytes<'a>(memory: Address, size: Bytes) -> &'a mut [u8] {
    let start = core::ptr::with_exposed_provenance_mut(usize::try_from(memory.get()).unwrap());
    // SAFETY: pinned memory of so many bytes that is one test's alone, until it is freed.
    unsafe { core::slice::from_raw_parts_mut(start, size.to_usize().unwrap()) }
}

#[test]
fn large_memory_is_pinned_in_pages_of_the_process_and_goes_completely() {
    let _alone = alone();
    let (fake, device) = open("pinned_large");
    let before = (own_pages(), fake.alive());
    for size in [LARGE, Bytes::new((5 << 20) + 12_345)] {
        // Would fail the driver's own call.
        fake.fail(Some("cuMemHostAlloc"), 0, Code::ERROR_OUT_OF_MEMORY);
        let memory = allocate(&device, size).unwrap();
        assert_eq!(fake.clear(), 1, "cuMemHostAlloc was not called");
        let whole = size.checked_align_up(Alignment::HOST_PAGE).unwrap().get();
        assert_eq!(own_pages(), before.0 + whole, "a forked child gets none of it");
        let span = Span::new(memory, size).unwrap();
        let found = device.classify(memory).unwrap().unwrap();
        assert_eq!((found.kind, found.span), (PointerKind::Pinned, span));
        assert!(device.is_pinned(span) && device.driver_pointer(memory).is_some());
        assert_eq!(device.device_address(memory).unwrap(), memory);
        assert!(bytes(memory, size).iter().all(|&byte| byte == 0));

        let there = device.allocate(size, Alignment::BLOCK).unwrap();
        for (index, byte) in bytes(memory, size).iter_mut().enumerate() {
            *byte = u8::try_from(index % 251).unwrap();
        }
        let (host, gpu) = (Location::Host(memory), Location::Device(there));
        // SAFETY: both sides outlive the copies, which are waited for.
        unsafe { device.copy(&Copy::linear(gpu, host, size).unwrap(), StreamHandle::DEFAULT) }
            .unwrap();
        device.synchronize_stream(StreamHandle::DEFAULT).unwrap();
        bytes(memory, size).fill(0);
        // SAFETY: likewise.
        unsafe { device.copy(&Copy::linear(host, gpu, size).unwrap(), StreamHandle::DEFAULT) }
            .unwrap();
        device.synchronize_stream(StreamHandle::DEFAULT).unwrap();
        let wrong = bytes(memory, size)
            .iter()
            .enumerate()
            .filter(|(index, byte)| index % 251 != usize::from(**byte));
        assert_eq!(wrong.count(), 0);
        // SAFETY: the copies are done.
        unsafe { device.free(there) }.unwrap();

        free(&device, memory).unwrap();
        assert_eq!((own_pages(), fake.alive()), before, "nothing is mapped or registered");
        assert_eq!(device.classify(memory).unwrap(), None);
        assert_eq!(device.driver_pointer(memory), None);
        assert!(free(&device, memory).is_err(), "freed once");
    }
}

#[test]
fn what_the_driver_makes_alone_stays_with_it() {
    let _alone = alone();
    let (fake, device) = open("pinned_driver");
    let before = own_pages();
    for (size, flags) in [(Bytes::mib(1), FLAGS), (LARGE, PinnedFlags::WRITE_COMBINED)] {
        fake.fail(Some("cuMemHostRegister"), 0, Code::ERROR_OUT_OF_MEMORY);
        let memory = device.allocate_pinned(size, flags).unwrap();
        assert_eq!(fake.clear(), 1, "cuMemHostRegister was not called");
        assert_eq!(own_pages(), before);
        free(&device, memory).unwrap();
    }
    let (_, old) =
        with_device(FakeDriver::load_with("pinned_old", 13_000, 2, &["cuMemHostRegister"]));
    let memory = allocate(&old, LARGE).unwrap();
    assert_eq!(own_pages(), before);
    free(&old, memory).unwrap();
}

#[test]
fn a_refusal_falls_back_to_the_driver_and_leaves_nothing_behind() {
    let _alone = alone();
    let (fake, device) = open("pinned_refusals");
    let before = (own_pages(), fake.alive());
    for code in [Code::ERROR_OUT_OF_MEMORY, Code::ERROR_INVALID_VALUE, Code::ERROR_NOT_SUPPORTED] {
        fake.fail(Some("cuMemHostRegister"), 0, code);
        let memory = allocate(&device, LARGE).unwrap();
        assert_eq!((own_pages(), fake.clear()), (before.0, 0), "{code:?}");
        assert!(device.is_pinned(Span::new(memory, LARGE).unwrap()));
        bytes(memory, LARGE).fill(7);
        free(&device, memory).unwrap();
        assert_eq!((own_pages(), fake.alive()), before, "{code:?}");
    }
    for name in ["cuMemHostRegister", "cuMemHostAlloc"] {
        fake.fail(Some(name), 0, Code::ERROR_OUT_OF_MEMORY);
    }
    let error = allocate(&device, LARGE).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { requested: LARGE, .. }), "{error}");
    assert_eq!((own_pages(), fake.alive()), before);
    // More than the machine has is not touched, and left to the driver; this one has addresses alone.
    let huge = allocate(&device, Bytes::new(1 << 46));
    assert_eq!(own_pages(), before.0);
    if let Ok(memory) = huge {
        free(&device, memory).unwrap();
    }
    assert_eq!((own_pages(), fake.alive()), before);

    // Memory that the driver does not take back stays as it is.
    let memory = allocate(&device, LARGE).unwrap();
    fake.fail(Some("cuMemHostUnregister"), 0, Code::ERROR_INVALID_VALUE);
    assert!(free(&device, memory).is_err());
    bytes(memory, LARGE).fill(9);
    free(&device, memory).unwrap();
    assert_eq!((own_pages(), fake.alive()), before);
}

/// Any call of the driver may fail, and whatever came of it, nothing is left.
#[test]
fn any_call_may_fail_and_nothing_is_left() {
    let _alone = alone();
    let (fake, device) = open("pinned_any");
    let size = Bytes::mib(6);
    let before = (own_pages(), fake.alive());
    for after in 0.. {
        fake.fail(None, after, Code::ERROR_OUT_OF_MEMORY);
        if let Ok(memory) = allocate(&device, size)
            && free(&device, memory).is_err()
        {
            fake.clear();
            free(&device, memory).unwrap();
        }
        assert_eq!((own_pages(), fake.alive()), before, "call {after}");
        if fake.clear() == 1 {
            assert!(after > 3, "{after} calls");
            break;
        }
    }
}

#[test]
fn many_threads_pin_and_release_at_once() {
    let _alone = alone();
    let (fake, device) = open("pinned_threads");
    let before = (own_pages(), fake.alive());
    std::thread::scope(|scope| {
        for thread in 0..6_u8 {
            let device = &device;
            scope.spawn(move || {
                for round in 0..12 {
                    let size = Bytes::mib(3 + u64::from(thread) + round % 4);
                    let memory = allocate(device, size).unwrap();
                    bytes(memory, size).fill(thread);
                    std::thread::yield_now();
                    assert!(bytes(memory, size).iter().all(|&byte| byte == thread));
                    free(device, memory).unwrap();
                }
            });
        }
    });
    assert_eq!((own_pages(), fake.alive()), before);
}

#[test]
fn pages_of_a_dropped_device_go_after_its_work() {
    let _alone = alone();
    let (fake, device) = open("pinned_dropped");
    let before = own_pages();
    let memory = allocate(&device, LARGE).unwrap();
    bytes(memory, LARGE).fill(1);
    assert_eq!(own_pages(), before + LARGE.get());
    drop(device);
    let begun = Instant::now();
    while own_pages() != before && begun.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!((own_pages(), fake.alive()), (before, 0));
}
