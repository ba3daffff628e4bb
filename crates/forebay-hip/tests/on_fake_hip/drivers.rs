//! HIP libraries of every version, some of them broken or without functions: each is a copy of the bridge over a fake CUDA
//! driver of its own.

use std::time::{Duration, Instant};

use crate::fake_driver::hold;
use crate::fake_hip::{VERSIONS, load, load_with};
use crate::gpu::hip;
use crate::rounds::{each_call_may_fail, keeps_the_contract, tour};
use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::Code;
use forebay_hal::conformance::Fixture;
use forebay_hal::{
    Call, Capabilities, Copy, Device, DeviceKind, Error, EventKind, Extent, Fill, Location, Memory,
    PageOptions, Pattern, PinnedFlags, PinnedMemory, Pitch, Priority, Progress, StreamHandle,
    Streams, Transfers, VirtualMemory,
};
use forebay_hip::{HipDevice, current_device};

#[test]
fn a_device_says_what_it_is() {
    let (_fake, driver) = load("name").unwrap();
    assert_eq!(driver.version(), (6, 3));
    assert_eq!(driver.device_count().unwrap(), 2);
    let device = HipDevice::open_with(driver, 1).unwrap();
    let descriptor = device.descriptor();
    assert_eq!((descriptor.kind, descriptor.ordinal.0), (DeviceKind::Hip, 1));
    assert!(descriptor.to_string().starts_with("hip:1 "), "{descriptor}");
    assert!(descriptor.driver.starts_with("HIP 6.3"), "{}", descriptor.driver);
    // What HIP has of all that a CUDA device has.
    let capabilities = descriptor.capabilities;
    let has = Capabilities::VIRTUAL_MEMORY
        | Capabilities::SHARE_BY_FD
        | Capabilities::PINNED_MAPPED
        | Capabilities::REGISTER
        | Capabilities::MANAGED
        | Capabilities::PEERS
        | Capabilities::PRIORITIES
        | Capabilities::HOST_TASKS
        | Capabilities::PER_THREAD_STREAMS
        | Capabilities::TIMED_EVENTS;
    assert!(capabilities.contains(has), "{capabilities}");
    assert!(!capabilities.intersects(Capabilities::DECOMPRESSION | Capabilities::PINNED_PAGES));
}

#[test]
fn older_and_newer_versions_keep_the_contract() {
    // The one between has a test program of its own.
    for version in [VERSIONS[0], VERSIONS[2]] {
        let (_fake, driver) = load_with(&format!("version-{version}"), version, 2, &[]).unwrap();
        assert_eq!(driver.version().0, version / 10_000_000);
        let (passed, skipped) = keeps_the_contract(hip(driver));
        assert!(passed >= 240, "HIP {version}: {passed} passed, {skipped} skipped");
    }
}

#[test]
fn what_debians_hip_5_2_lacks_is_done_without() {
    let lacks = [
        "hipDrvGetErrorName",
        "hipLaunchHostFunc",
        "hipStreamGetDevice",
        "hipStreamGetId",
        "hipMemPrefetchAsync_v2",
        "hipMemAdvise_v2",
        "hipMemcpyBatchAsync",
        "hipMemsetD2D16Async",
        "hipMemsetD2D32Async",
    ];
    let (_fake, driver) = load_with("debian", 50_221_153, 2, &lacks).unwrap();
    let device = HipDevice::open_with(driver, 0).unwrap();
    let capabilities = device.descriptor().capabilities;
    assert!(!capabilities.contains(Capabilities::HOST_TASKS), "{capabilities}");
    assert!(capabilities.contains(Capabilities::VIRTUAL_MEMORY | Capabilities::MANAGED));
    drop(device);
    let (passed, skipped) = keeps_the_contract(hip(driver));
    assert!(passed >= 150, "{passed} passed, {skipped} skipped");
}

#[test]
fn a_library_without_pages_pinned_and_managed_memory_keeps_the_contract() {
    let lacks = ["hipMemMap", "hipHostMalloc", "hipMallocManaged", "hipMemcpyPeerAsync"];
    let (_fake, driver) = load_with("poor", VERSIONS[1], 1, &lacks).unwrap();
    let device = HipDevice::open_with(driver, 0).unwrap();
    let without = Capabilities::VIRTUAL_MEMORY
        | Capabilities::SHARE_BY_FD
        | Capabilities::PINNED
        | Capabilities::MANAGED
        | Capabilities::PEERS;
    let capabilities = device.descriptor().capabilities;
    assert!(!capabilities.intersects(without), "{capabilities}");
    assert!(device.virtual_memory().is_none() && device.pinned_memory().is_none());
    let refused = device.enqueue_host(Box::new(|| ()), StreamHandle::DEFAULT).unwrap_err();
    assert!(refused.to_string().contains("need hipStreamWaitValue32"), "{refused}");
    drop(device);
    let (passed, skipped) = keeps_the_contract(hip(driver));
    assert!(passed >= 60, "{passed} passed, {skipped} skipped");
}

#[test]
fn a_library_without_a_function_it_must_have_is_named() {
    let missing = load_with("unfit", VERSIONS[1], 1, &["hipMalloc"]).map(drop).unwrap_err();
    assert!(missing.contains("has no hipMalloc, which HIP 4.2 introduced"), "{missing}");
}

#[test]
fn a_library_without_a_device_says_what_to_look_at() {
    let missing = load_with("none", VERSIONS[1], 0, &[]).map(drop).unwrap_err();
    assert!(missing.contains("hipErrorNoDevice (100)"), "{missing}");
    assert!(missing.contains("HIP_VISIBLE_DEVICES"), "{missing}");
}

#[test]
fn refusals_name_hips_functions_and_codes() {
    let (fake, driver) = load("words").unwrap();
    let device = HipDevice::open_with(driver, 0).unwrap();
    for (function, code, words) in [
        ("cuMemAlloc", Code::ERROR_NOT_SUPPORTED, "hipMalloc said hipErrorNotSupported (801)"),
        ("cuMemAlloc", Code::ERROR_LAUNCH_FAILED, "hipMalloc said hipErrorLaunchFailure (719)"),
        // One that HIP does not know: the library is asked for its name.
        (
            "cuMemAlloc",
            Code::ERROR_DEVICE_UNAVAILABLE,
            "hipMalloc said CUDA_ERROR_OF_THE_FAKE_DRIVER (46)",
        ),
    ] {
        fake.fail(Some(function), 0, code);
        let error = device.allocate(Bytes::mib(1), Alignment::BLOCK).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    fake.fail(Some("cuEventCreate"), 0, Code::ERROR_INVALID_VALUE);
    let error = device.create_event(EventKind::Order).unwrap_err().to_string();
    assert!(error.contains("hipEventCreateWithFlags said hipErrorInvalidValue (1)"), "{error}");
}

#[test]
fn each_call_may_fail_and_nothing_is_lost() {
    let (fake, _driver) = load("faults").unwrap();
    let (failures, calls) = each_call_may_fail(&fake);
    // The bridge makes three calls around each, one of which it can do without.
    assert!(failures > calls / 2, "{failures} failures of {} calls", 2 * calls);
}

#[test]
fn a_lost_device_says_so_and_the_other_works_on() {
    let (fake, driver) = load("lost").unwrap();
    let device = HipDevice::open_with(driver, 1).unwrap();
    let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    fake.lose(1);
    let error = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap_err();
    assert!(matches!(error, Error::Lost { call: Call::Allocate, .. }), "{error}");
    assert!(error.to_string().contains("hipErrorLaunchFailure (719)"), "{error}");
    assert!(matches!(device.synchronize_device(), Err(Error::Lost { .. })));
    // SAFETY: no work uses it. It returns, whatever it says.
    let _ = unsafe { device.free(memory) };
    drop(device);
    tour(&CudaDevice::open_with(fake.driver, 0).unwrap()).unwrap();
}

#[test]
fn the_callers_device_is_the_same_after_every_call() {
    let (_fake, driver) = load("current").unwrap();
    let (first, second) =
        (HipDevice::open_with(driver, 0).unwrap(), HipDevice::open_with(driver, 1).unwrap());
    // A thread begins with the first device.
    assert_eq!(current_device(driver), Some(0));
    let memory = second.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    let stream = second.create_stream(Priority::Normal).unwrap();
    second.enqueue_host(Box::new(|| ()), stream).unwrap();
    second.synchronize_stream(stream).unwrap();
    assert_eq!(current_device(driver), Some(0));
    // Whichever the caller has made current.
    let table = driver.table();
    // SAFETY: a device that there is.
    unsafe { table.context_push(forebay_cuda::sys::RawContext(2)) }.unwrap();
    assert_eq!(current_device(driver), Some(1));
    let other = first.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    assert_eq!(first.driver_pointer(other).unwrap().device.0, 0);
    assert_eq!(second.driver_pointer(memory).unwrap().device.0, 1);
    assert_eq!(current_device(driver), Some(1));
    let mut popped = forebay_cuda::sys::RawContext::NULL;
    // SAFETY: a place of our own.
    unsafe { table.context_pop(&raw mut popped) }.unwrap();
    assert_eq!((popped.0, current_device(driver)), (2, Some(0)));
    // SAFETY: a place of our own. There is nothing to pop any more.
    let refused = unsafe { table.context_pop(&raw mut popped) }.unwrap_err();
    assert_eq!(refused.code, Code::ERROR_INVALID_CONTEXT);
    // SAFETY: no work uses them. For both.
    unsafe {
        first.free(other).unwrap();
        second.free(memory).unwrap();
    }
}

/// A stream that is held until the sender goes does not hold a caller, and many rows take few calls.
#[test]
fn a_copy_of_rows_to_the_host_does_not_wait() {
    let (fake, driver) = load("rows").unwrap();
    let device = CudaDevice::open_with(driver, 0).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    let pinned = device.allocate_pinned(Bytes::mib(2), PinnedFlags::empty()).unwrap();
    let mut ordinary = vec![0_u8; 500 * 64];
    let fill = Fill::linear(memory, Bytes::mib(2), Pattern::U8(7)).unwrap();
    let (near, far) = (Bytes::new(64), Bytes::new(4096));
    let pitch = |row: Bytes| Pitch { row, slice: Bytes::new(row.get() * 16) };
    let shape = |rows, slices| Extent { width: Bytes::new(64), rows, slices };
    let (to, from) = (Location::Host(pinned), Location::Device(memory));
    let plane = Copy::volumes(to, pitch(near), from, pitch(far), shape(16, 1)).unwrap();
    let volume = Copy::volumes(to, pitch(far), from, pitch(near), shape(16, 3)).unwrap();
    let few = Copy::volumes(to, pitch(near), from, pitch(far), shape(4, 1)).unwrap();
    let to = Location::Host(Address::of_pointer(ordinary.as_mut_ptr()));
    let many = Copy::planes(to, near, from, far, (near, 500)).unwrap();
    let begin = Instant::now();
    let open = hold(&device, stream);
    let calls = || {
        (
            fake.calls_of("cuMemcpyAsync"),
            fake.calls_of("cuMemcpy2DAsync"),
            fake.calls_of("cuMemcpy3DAsync"),
        )
    };
    // SAFETY: the memory is given back below, when the work is done.
    unsafe {
        device.fill(&fill, stream).unwrap();
        device.copy(&plane, stream).unwrap();
        device.copy(&volume, stream).unwrap();
        device.copy(&many, stream).unwrap();
    }
    assert!(begin.elapsed() < Duration::from_secs(10), "a copy waited for the stream");
    assert_eq!(calls(), (5, 5, 0), "rows are gathered, and each of five slices goes in one piece");
    drop(open);
    device.synchronize_stream(stream).unwrap();
    let byte = |at: u64| {
        let place = usize::try_from(pinned.get() + at).unwrap();
        // SAFETY: pinned memory of the host, and no work uses it.
        unsafe { core::ptr::with_exposed_provenance::<u8>(place).read() }
    };
    assert!((0..1024).all(|at| byte(at) == 7), "the rows of the plane");
    let (last, gap) = (47 * 4096, 46 * 4096 + 64);
    assert!((0..64).all(|at| byte(last + at) == 7), "the last row of the volume");
    assert_eq!(byte(gap), 0, "nothing between the rows");
    assert!(ordinary.iter().all(|&byte| byte == 7), "the rows in ordinary memory");
    // Few rows go one by one. Where one is refused after others, these are done when the copy returns.
    fake.fail(Some("cuMemcpyAsync"), 3, Code::ERROR_NOT_SUPPORTED);
    // SAFETY: as above.
    let refused = unsafe { device.copy(&few, stream) }.unwrap_err();
    assert!(refused.to_string().contains("hipMemcpyParam2DAsync said"), "{refused}");
    assert_eq!(device.query_stream(stream).unwrap(), Progress::Done);
    // SAFETY: no work uses them. For both.
    unsafe {
        device.free_pinned(pinned).unwrap();
        device.free(memory).unwrap();
    }
}

/// A device that is full has nowhere to gather rows: they go one by one.
#[test]
fn rows_of_a_full_device_reach_the_host() {
    let (fake, driver) = load("rows-full").unwrap();
    let device = CudaDevice::open_with(driver, 0).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    let fill = Fill::linear(memory, Bytes::mib(2), Pattern::U8(9)).unwrap();
    let mut ordinary = vec![0_u8; 100 * 64];
    let (near, far) = (Bytes::new(64), Bytes::new(4096));
    let to = Location::Host(Address::of_pointer(ordinary.as_mut_ptr()));
    let copy = Copy::planes(to, near, Location::Device(memory), far, (near, 100)).unwrap();
    fake.fail(Some("cuMemAlloc"), 0, Code::ERROR_OUT_OF_MEMORY);
    // SAFETY: the memory is given back below, when the work is done.
    unsafe {
        device.fill(&fill, stream).unwrap();
        device.copy(&copy, stream).unwrap();
    }
    assert_eq!(fake.clear(), 0, "the device was asked for memory");
    device.synchronize_stream(stream).unwrap();
    assert!(ordinary.iter().all(|&byte| byte == 9));
    assert_eq!(fake.calls_of("cuMemcpyAsync"), 100);
    // SAFETY: no work uses it.
    unsafe { device.free(memory).unwrap() };
}

#[test]
fn several_mappings_are_unmapped_one_by_one() {
    let (fake, driver) = load("mappings").unwrap();
    let device = CudaDevice::open_with(driver, 0).unwrap();
    let page_size = device.granularity().minimum.bytes();
    let whole = Bytes::new(page_size.get() * 3);
    let map = || {
        let region = device.reserve(whole, Alignment::ONE).unwrap();
        for index in 0..3 {
            let page = device.create_page(page_size, PageOptions::default()).unwrap();
            let at = Address::new(region.start().get() + index * page_size.get());
            device.map(at, page).unwrap();
            device.release_page(page).unwrap();
        }
        region
    };
    // A failure that passes is made good: nothing could put back what is unmapped already.
    let region = map();
    fake.fail(Some("cuMemUnmap"), 1, Code::ERROR_OPERATING_SYSTEM);
    // SAFETY: nobody uses it, here and below.
    unsafe { device.unmap(region).unwrap() };
    // SAFETY: as above.
    unsafe { device.release_region(region.start()).unwrap() };
    // At the first nothing has changed.
    let region = map();
    fake.fail(Some("cuMemUnmap"), 0, Code::ERROR_OPERATING_SYSTEM);
    // SAFETY: as above.
    let refused = unsafe { device.unmap(region) }.unwrap_err();
    assert!(matches!(refused, Error::Transient { call: Call::Unmap, .. }), "{refused}");
    // One that stays is told for what it is.
    for _ in 0..3 {
        fake.fail(Some("cuMemUnmap"), 1, Code::ERROR_OPERATING_SYSTEM);
    }
    // SAFETY: as above.
    let lost = unsafe { device.unmap(region) }.unwrap_err();
    assert!(matches!(lost, Error::Lost { call: Call::Unmap, .. }), "{lost}");
    assert!(lost.to_string().contains("after 1 of 3 mappings"), "{lost}");
    fake.clear();
}

#[test]
fn a_stream_that_another_library_destroyed_is_no_lost_device() {
    let (fake, driver) = load("gone").unwrap();
    let device = HipDevice::open_with(driver, 0).unwrap();
    let (_, raw) = hip(driver).foreign_stream().unwrap().unwrap();
    // SAFETY: a live stream, which is destroyed below without a word: that is what is tested.
    let stream = unsafe { device.foreign_streams().unwrap().adopt_stream(raw) }.unwrap();
    fake.destroy_stream(raw);
    let error = device.query_stream(stream).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("hipErrorContextIsDestroyed (709)"), "{error}");
    device.synchronize_device().unwrap();
}

#[test]
fn a_copy_too_large_for_hip_5s_structure_is_refused() {
    let (fake, driver) = load_with("narrow", VERSIONS[0], 1, &[]).unwrap();
    fake.max_pitch(i32::MAX);
    let device = HipDevice::open_with(driver, 0).unwrap();
    let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    let place = |at: u64| Location::Device(Address::new(memory.get() + at));
    // Two slices of one byte, five times 2^32 rows of one byte apart: nothing HIP 5 has a number for.
    let far = Pitch { row: Bytes::new(1), slice: Bytes::new(5 << 32) };
    let near = Pitch { row: Bytes::new(1), slice: Bytes::new(1) };
    let extent = Extent { width: Bytes::new(1), rows: 1, slices: 2 };
    let copy = Copy::volumes(place(0), near, place(1024), far, extent).unwrap();
    // SAFETY: it is refused before anything is read.
    let refused = unsafe { device.copy(&copy, StreamHandle::DEFAULT) }.unwrap_err();
    assert!(matches!(refused, Error::Invalid { call: Call::Copy, .. }), "{refused}");
    // SAFETY: no work uses it.
    unsafe { device.free(memory).unwrap() };
}

#[test]
fn a_library_that_is_not_there_is_a_value_that_says_so() {
    let missing = forebay_hip::load_from("libforebay-no-such-hip.so.7").unwrap_err();
    let text = missing.to_string();
    assert!(text.starts_with("no HIP driver: tried libforebay-no-such-hip.so.7 ("), "{text}");
    assert!(text.contains("install AMD's ROCm"), "{text}");
    assert!(text.contains(forebay_hip::HIP_DRIVER_VARIABLE), "{text}");
    let error = Error::from(missing);
    assert!(matches!(error, Error::Unsupported { call: Call::Open, .. }), "{error}");
    // The C library is everywhere, and no HIP.
    let missing = forebay_hip::load_from("libc.so.6").unwrap_err().to_string();
    assert!(missing.contains("libc.so.6 has no hipInit"), "{missing}");
}
