//! Drivers that are old, broken, or lack functions: each a fake driver of its own.

mod fake_driver;
mod fixture;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_driver::FakeDriver;
use fixture::Cuda;
use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::Code;
use forebay_hal::conformance::{self, Fixture, Outcome};
use forebay_hal::{
    Access, Advice, Call, Capabilities, Copy, Decompression, Device, Error, EventKind, Fill,
    Lz4Blocks, ManagedMemory, Memory, PageOptions, Pattern, PinnedFlags, PinnedMemory, Place,
    Priority, Result, StreamHandle, Streams, Transfers, VirtualMemory, valid_span,
};

/// Runs every case of the suite, and gives how many passed and were skipped.
fn keeps_the_contract(fake: &FakeDriver) -> (usize, usize) {
    let fixture: Arc<dyn Fixture> = Arc::new(Cuda(fake.driver));
    let (mut passed, mut skipped, mut failed) = (0, 0, Vec::new());
    for case in conformance::cases() {
        match conformance::run(case, &fixture) {
            Outcome::Passed => passed += 1,
            Outcome::Skipped(_) => skipped += 1,
            Outcome::Failed(text) => failed.push(format!("{}: {text}", case.name)),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    (passed, skipped)
}

#[test]
fn a_driver_of_cuda_11_2_keeps_the_contract_with_fewer_capabilities() {
    let fake = FakeDriver::load_with("old", 11_020, 2, &[]).unwrap();
    assert_eq!(fake.driver.version(), (11, 2));
    let table = fake.driver.table();
    assert!(table.mem_prefetch_v1.is_some() && table.mem_prefetch_v2.is_none());
    assert!(table.stream_get_id.is_none() && table.stream_wait_value.is_none());
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let capabilities = device.descriptor().capabilities;
    assert!(!capabilities.contains(Capabilities::HOST_TASKS), "{capabilities}");
    assert!(capabilities.contains(Capabilities::VIRTUAL_MEMORY | Capabilities::MANAGED));
    let refused = device.enqueue_host(Box::new(|| ()), StreamHandle::DEFAULT).unwrap_err();
    assert!(refused.to_string().contains("came with CUDA 11.7"), "{refused}");
    drop(device);
    let (passed, skipped) = keeps_the_contract(&fake);
    assert!(passed >= 150, "{passed} passed, {skipped} skipped");
}

#[test]
fn a_driver_without_pages_pinned_and_managed_memory_keeps_the_contract() {
    let lacks =
        ["cuMemMap", "cuMemHostAlloc", "cuMemAllocManaged", "cuMemcpyPeerAsync", "cuStreamGetId"];
    let fake = FakeDriver::load_with("poor", 13_000, 1, &lacks).unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    let without = Capabilities::VIRTUAL_MEMORY
        | Capabilities::SHARE_BY_FD
        | Capabilities::PINNED
        | Capabilities::MANAGED
        | Capabilities::PEERS;
    let capabilities = device.descriptor().capabilities;
    assert!(!capabilities.intersects(without), "{capabilities}");
    assert!(device.virtual_memory().is_none() && device.pinned_memory().is_none());
    drop(device);
    let (passed, skipped) = keeps_the_contract(&fake);
    assert!(passed >= 60, "{passed} passed, {skipped} skipped");
}

#[test]
fn a_driver_that_takes_no_kernel_says_so_and_takes_it_later() {
    let fake = FakeDriver::load("kernels").unwrap();
    let device = CudaDevice::open_with(fake.driver, 0).unwrap();
    assert!(device.decompression().is_some());
    for code in [Code::ERROR_NO_BINARY_FOR_GPU, Code::ERROR_JIT_COMPILER_NOT_FOUND] {
        fake.fail(Some("cuModuleLoadData"), 0, code);
        let error = tour(&device).unwrap_err();
        assert!(matches!(error, Error::Unsupported { call: Call::Decompress, .. }), "{error}");
    }
    tour(&device).unwrap();
    // It is loaded once.
    fake.fail(Some("cuModuleLoadData"), 0, Code::ERROR_NO_BINARY_FOR_GPU);
    tour(&device).unwrap();
    assert_eq!(fake.clear(), 1);
    let poor = FakeDriver::load_with("no-kernels", 13_000, 1, &["cuLaunchKernel"]).unwrap();
    assert!(CudaDevice::open_with(poor.driver, 0).unwrap().decompression().is_none());
}

#[test]
fn a_driver_without_a_function_it_must_have_is_named() {
    let missing = FakeDriver::load_with("bare", 13_000, 1, &["cuMemAlloc"]).map(drop).unwrap_err();
    assert!(missing.contains("has no cuMemAlloc, which CUDA 3.2 introduced"), "{missing}");
}

#[test]
fn a_driver_without_a_device_says_what_to_look_at() {
    let missing = FakeDriver::load_with("none", 13_000, 0, &[]).map(drop).unwrap_err();
    assert!(missing.contains("CUDA_ERROR_NO_DEVICE (100)"), "{missing}");
    assert!(missing.contains("CUDA_VISIBLE_DEVICES"), "{missing}");
}

#[test]
fn a_device_that_is_not_there_is_refused_with_those_that_are() {
    let fake = FakeDriver::load("count").unwrap();
    let error = CudaDevice::open_with(fake.driver, 2).unwrap_err();
    assert!(matches!(error, Error::Invalid { call: Call::Open, .. }), "{error}");
    assert!(error.to_string().contains("devices 0 to 1"), "{error}");
}

/// One of everything, used and given back.
fn tour(device: &CudaDevice) -> Result<()> {
    let stream = device.create_stream(Priority::High)?;
    let event = device.create_event(EventKind::Order)?;
    let size = Bytes::new(100_000);
    let memory = device.allocate(size, Alignment::BLOCK)?;
    let (from, to) = (vec![7_u8; 100_000], Box::leak(vec![0_u8; 100_000].into_boxed_slice()));
    // The copies may still run where a later call fails: what they touch is never given back.
    let from: &'static [u8] = from.leak();
    let host = |bytes: *const u8| Place::Host(Address::of_pointer(bytes));
    let upload = Copy::linear(Place::Device(memory), host(from.as_ptr()), size)?;
    let download = Copy::linear(host(to.as_ptr()), Place::Device(memory), size)?;
    let fill = Fill::linear(memory, Bytes::new(4), Pattern::U32(9))?;
    // SAFETY: the host's bytes are leaked, and the memory is given back below, or with the device,
    // when the work is done.
    unsafe {
        device.copy(&upload, stream)?;
        device.fill(&fill, stream)?;
        device.copy(&download, stream)?;
    }
    device.record_event(event, stream)?;
    device.wait_event(StreamHandle::DEFAULT, event)?;
    device.enqueue_host(Box::new(|| ()), StreamHandle::DEFAULT)?;
    device.synchronize_device()?;
    let region = device.reserve(Bytes::mib(4), Alignment::ONE)?;
    let pins = device.descriptor().capabilities.contains(Capabilities::PINNED_PAGES);
    for options in
        [PageOptions::default(), PageOptions::pinned()].into_iter().take(1 + usize::from(pins))
    {
        let page = device.create_page(Bytes::mib(4), options)?;
        device.map(region.start(), page)?;
        // SAFETY: nobody uses the region, here and below.
        unsafe { device.set_access(region, Access::ReadWrite, device.descriptor().ordinal) }?;
        // SAFETY: as above.
        unsafe { device.unmap(region) }?;
        device.release_page(page)?;
    }
    // SAFETY: as above.
    unsafe { device.release_region(region.start()) }?;
    let pinned = device.allocate_pinned(Bytes::new(4096), PinnedFlags::MAPPED)?;
    device.device_address(pinned)?;
    let managed = device.allocate_managed(Bytes::new(4096))?;
    let span = forebay_core::Span::new(managed, Bytes::new(4096))
        .map_err(|error| Error::quantity(Call::Advise, "span", &error))?;
    device.advise(span, Advice::ReadMostly)?;
    device.prefetch(span, None, stream)?;
    let at = |offset| Address::new(memory.get() + offset);
    let span = |offset| valid_span(Call::Decompress, "span", at(offset), Bytes::kib(1));
    let blocks = Lz4Blocks::new(span(50_000)?, at(60_000), span(70_000)?, 1024, at(80_000))?;
    // SAFETY: the memory is given back below, when the work is done.
    unsafe { device.decompress(&blocks, stream)? };
    device.synchronize_stream(stream)?;
    // SAFETY: the work is done. For all three.
    unsafe {
        device.free_managed(managed)?;
        device.free_pinned(pinned)?;
        device.free(memory)?;
    }
    device.destroy_event(event)?;
    device.destroy_stream(stream)?;
    device.memory_info()?;
    let right = u32::to_ne_bytes(9);
    assert!(to[..4] == right && to[4..].iter().all(|&byte| byte == 7), "the bytes came back");
    Ok(())
}

/// Waits until the driver has so much alive; what is left over goes in a thread of its own.
fn settles_at(fake: &FakeDriver, alive: u64) {
    let begin = Instant::now();
    while fake.alive() != alive {
        let found = fake.alive();
        assert!(begin.elapsed() < Duration::from_secs(5), "{found} alive, {alive} is right");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn each_call_may_fail_once_and_nothing_is_lost() {
    let fake = FakeDriver::load("faults").unwrap();
    // What is pooled for good is made by the first tours: streams are given out again once their
    // work is done, so two take what there is.
    for _ in 0..3 {
        tour(&CudaDevice::open_with(fake.driver, 0).unwrap()).unwrap();
    }
    let (alive, before) = (fake.alive(), fake.calls());
    tour(&CudaDevice::open_with(fake.driver, 0).unwrap()).unwrap();
    let calls = fake.calls() - before;
    assert!(calls > 60, "a tour makes {calls} calls");
    let mut failures = 0;
    for code in [Code::ERROR_OUT_OF_MEMORY, Code::ERROR_OPERATING_SYSTEM] {
        for after in 0..calls {
            fake.fail(None, after, code);
            let context = fake.driver.current_context();
            let toured = CudaDevice::open_with(fake.driver, 0).and_then(|device| tour(&device));
            fake.clear();
            assert_eq!(fake.driver.current_context(), context, "after call {after}");
            if let Err(error) = toured {
                failures += 1;
                assert!(error.may_pass(), "call {after} failed with {code}: {error}");
            }
            settles_at(&fake, alive);
        }
    }
    // Most calls are the device's, and a failure is told; a few are queries it can do without.
    assert!(failures > calls, "{failures} failures of {} calls", 2 * calls);
    tour(&CudaDevice::open_with(fake.driver, 0).unwrap()).unwrap();
}

#[test]
fn a_lost_device_says_so_and_everything_can_still_be_given_back() {
    let fake = FakeDriver::load("lost").unwrap();
    let device = CudaDevice::open_with(fake.driver, 1).unwrap();
    let memory = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap();
    let page = device.create_page(Bytes::mib(2), PageOptions::default()).unwrap();
    let event = device.create_event(EventKind::Order).unwrap();
    let stream = device.create_stream(Priority::Normal).unwrap();
    fake.lose(1);
    let error = device.allocate(Bytes::mib(2), Alignment::BLOCK).unwrap_err();
    assert!(matches!(error, Error::Lost { call: Call::Allocate, .. }), "{error}");
    assert!(error.to_string().contains("CUDA_ERROR_LAUNCH_FAILED (719)"), "{error}");
    assert!(matches!(device.synchronize_device(), Err(Error::Lost { .. })));
    // Releasing returns, whatever it says.
    let _ = device.release_page(page);
    let _ = device.destroy_stream(stream);
    let _ = device.destroy_event(event);
    // SAFETY: no work uses it.
    let _ = unsafe { device.free(memory) };
    drop(device);
    // The other device of the machine is as it was.
    tour(&CudaDevice::open_with(fake.driver, 0).unwrap()).unwrap();
}
