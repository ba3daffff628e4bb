//! Libraries that answer nonsense: every call gives a typed error or a harmless value, and none panics.

use core::ffi::{c_int, c_void};
use core::ptr::NonNull;

use crate::rounds::tour;
use forebay_core::{Alignment, Bytes};
use forebay_cuda::sys::Code;
use forebay_cuda::vendor::{Loaded, RowsToHost, Unmaps, Vendor};
use forebay_cuda::{CudaDevice, CudaDriver, DriverMissing};
use forebay_hal::{
    Capabilities, Device, DeviceKind, Error, Memory, PinnedFlags, PinnedMemory, Priority,
    StreamHandle, Streams,
};
use forebay_hip::AMD;
use forebay_hip::sys::HIP;

/// Says yes to everything, and writes nothing.
unsafe extern "C" fn agrees() -> Code {
    Code::SUCCESS
}

/// Says what no version of HIP says.
unsafe extern "C" fn babbles() -> Code {
    Code(12_345)
}

/// Writes a number through the first argument: as a count, one device; as a version, 0.0.
unsafe extern "C" fn one(place: *mut c_int) -> Code {
    // SAFETY: the functions that this stands for are given a place for a number.
    unsafe { place.write(1) };
    Code::SUCCESS
}

/// Writes what is no number of devices.
unsafe extern "C" fn fewer_than_none(place: *mut c_int) -> Code {
    // SAFETY: as above.
    unsafe { place.write(-3) };
    Code::SUCCESS
}

fn address(function: *const ()) -> Option<NonNull<c_void>> {
    NonNull::new(function.cast_mut().cast())
}

/// A vendor whose library has these functions in the place of HIP's. Its file is only there to be loaded.
const fn vendor(load: unsafe fn(&str, forebay_cuda::vendor::Find<'_>) -> Loaded) -> Vendor {
    Vendor {
        kind: DeviceKind::Hip,
        interface: &HIP,
        libraries: &["libc.so.6"],
        variable: "FOREBAY_NO_SUCH_VARIABLE",
        install: "install nothing",
        unnamed: "a device without a name",
        module_version: "/no/such/file",
        unmaps: Unmaps::One,
        rows_to_host: RowsToHost::AtOnce,
        cure: |_| "nothing helps",
        load,
    }
}

fn load(vendor: &'static Vendor) -> Result<&'static CudaDriver, DriverMissing> {
    // SAFETY: the functions give no memory and no handle that anybody would use.
    unsafe { CudaDriver::load_of(vendor) }
}

#[test]
fn a_library_that_agrees_to_everything_is_harmless() {
    static AGREES: Vendor = vendor(|name, _| {
        let find = |export: &str| match export {
            "hipGetDeviceCount" | "hipDriverGetVersion" => address(one as *const ()),
            _ => address(agrees as *const ()),
        };
        // SAFETY: they read no argument, and write at most a number where one is asked for.
        unsafe { (AMD.load)(name, &find) }
    });
    let driver = load(&AGREES).unwrap();
    assert_eq!((driver.version(), driver.device_count().unwrap()), ((0, 0), 1));
    let device = CudaDevice::open_with(driver, 0).unwrap();
    assert_eq!(device.descriptor().name, "a device without a name");
    let capabilities = device.descriptor().capabilities;
    assert!(!capabilities.intersects(Capabilities::VIRTUAL_MEMORY | Capabilities::MANAGED));
    let info = device.memory_info().unwrap();
    assert!(info.free <= info.total, "{info:?}");
    let refused = device.allocate(Bytes::mib(1), Alignment::BLOCK).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
    let refused = device.allocate_pinned(Bytes::mib(1), PinnedFlags::empty()).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
    let refused = device.create_stream(Priority::Normal).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
    // Such a task needs memory that there is none of.
    let refused = device.enqueue_host(Box::new(|| ()), StreamHandle::DEFAULT).unwrap_err();
    assert!(matches!(refused, Error::OutOfMemory { .. }), "{refused}");
}

#[test]
fn a_library_that_babbles_is_a_lost_device() {
    static BABBLES: Vendor = vendor(|name, _| {
        let find = |export: &str| match export {
            "hipInit" | "hipDeviceGet" => address(agrees as *const ()),
            "hipGetDeviceCount" | "hipDriverGetVersion" => address(one as *const ()),
            // It has no name for what it says.
            "hipDrvGetErrorName" => None,
            _ => address(babbles as *const ()),
        };
        // SAFETY: they read no argument, and write at most a number where one is asked for.
        unsafe { (AMD.load)(name, &find) }
    });
    let device = CudaDevice::open_with(load(&BABBLES).unwrap(), 0).unwrap();
    let error = tour(&device).unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
    assert!(error.to_string().contains("said HIP error 12345"), "{error}");
    let error = device.memory_info().unwrap_err();
    assert!(matches!(error, Error::Lost { .. }), "{error}");
}

#[test]
fn a_library_that_babbles_from_the_start_is_no_driver() {
    static STARTS_NOT: Vendor = vendor(|name, _| {
        // SAFETY: they read no argument and write nothing.
        unsafe { (AMD.load)(name, &|_| address(babbles as *const ())) }
    });
    let missing = load(&STARTS_NOT).unwrap_err();
    assert!(matches!(missing, DriverMissing::Start { .. }), "{missing}");
    assert!(missing.to_string().contains("HIP error 12345; rocminfo tells more"), "{missing}");
}

#[test]
fn fewer_devices_than_none_are_none() {
    static NONE: Vendor = vendor(|name, _| {
        let find = |export: &str| match export {
            "hipGetDeviceCount" => address(fewer_than_none as *const ()),
            "hipDriverGetVersion" => address(one as *const ()),
            _ => address(agrees as *const ()),
        };
        // SAFETY: they read no argument, and write at most a number where one is asked for.
        unsafe { (AMD.load)(name, &find) }
    });
    let driver = load(&NONE).unwrap();
    assert_eq!(driver.device_count().unwrap(), 0);
    let error = CudaDevice::open_with(driver, 0).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert!(error.to_string().contains("shows this process no device"), "{error}");
}
