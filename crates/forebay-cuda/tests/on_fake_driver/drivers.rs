//! Drivers that are old, broken, or lack functions: each a fake driver of its own.

use crate::fake_driver::FakeDriver;
use crate::fixture::cuda;
use crate::rounds::{each_call_may_fail, keeps_the_contract, tour};
use forebay_core::{Alignment, Bytes};
use forebay_cuda::CudaDevice;
use forebay_cuda::sys::Code;
use forebay_hal::{
    Call, Capabilities, Device, Error, EventKind, Memory, PageOptions, Priority, StreamHandle,
    Streams, VirtualMemory,
};

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
    let (passed, skipped) = keeps_the_contract(cuda(fake.driver));
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
    let (passed, skipped) = keeps_the_contract(cuda(fake.driver));
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

#[test]
fn each_call_may_fail_and_nothing_is_lost() {
    let (failures, calls) = each_call_may_fail(&FakeDriver::load("faults").unwrap());
    // Most calls are the device's, and a failure is told; a few are queries it can do without.
    assert!(failures > calls, "{failures} failures of {} calls", 2 * calls);
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
