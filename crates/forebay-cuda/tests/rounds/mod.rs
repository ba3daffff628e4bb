//! Rounds that drivers of every vendor make: the whole suite, and one of everything with each call failing.

#![allow(clippy::unwrap_used, reason = "a test's own tool fails the test")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{Address, Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::Code;
use forebay_hal::conformance::{self, Fixture, Outcome};
use forebay_hal::{
    Access, Advice, Call, Capabilities, Copy, Device, Error, EventKind, Fill, Location, Lz4Blocks,
    ManagedMemory, Memory, PageOptions, Pattern, PinnedFlags, PinnedMemory, Priority, Result,
    StreamHandle, Streams, Transfers, VirtualMemory, valid_span,
};

use super::fake_driver::FakeDriver;

/// Runs every case of the suite on the devices of a fixture, and gives how many passed and were skipped.
pub(crate) fn keeps_the_contract(fixture: impl Fixture) -> (usize, usize) {
    let fixture: Arc<dyn Fixture> = Arc::new(fixture);
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

/// One of everything, used and given back.
pub(crate) fn tour(device: &CudaDevice) -> Result<()> {
    let stream = device.create_stream(Priority::High)?;
    let event = device.create_event(EventKind::Order)?;
    let size = Bytes::new(100_000);
    let memory = device.allocate(size, Alignment::BLOCK)?;
    let (from, to) = (vec![7_u8; 100_000], Box::leak(vec![0_u8; 100_000].into_boxed_slice()));
    // The copies may still run where a later call fails: what they touch is never given back.
    let from: &'static [u8] = from.leak();
    let host = |bytes: *const u8| Location::Host(Address::of_pointer(bytes));
    let upload = Copy::linear(Location::Device(memory), host(from.as_ptr()), size)?;
    let download = Copy::linear(host(to.as_ptr()), Location::Device(memory), size)?;
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
    if let Some(decompression) = device.decompression() {
        let at = |offset| Address::new(memory.get() + offset);
        let span = |offset| valid_span(Call::Decompress, "span", at(offset), Bytes::kib(1));
        let blocks = Lz4Blocks::new(span(50_000)?, at(60_000), span(70_000)?, 1024, at(80_000))?;
        // SAFETY: the memory is given back below, when the work is done.
        unsafe { decompression.decompress(&blocks, stream)? };
    }
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

/// Makes the tour with each of its calls failing twice, and gives how many failures were told and how many calls a tour is.
pub(crate) fn each_call_may_fail(fake: &FakeDriver) -> (u64, u64) {
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
            settles_at(fake, alive);
        }
    }
    tour(&CudaDevice::open_with(fake.driver, 0).unwrap()).unwrap();
    (failures, calls)
}
