//! HIP over the fake CUDA driver, and what can be set of both.

#![allow(clippy::unwrap_used, reason = "a test's own tool fails the test")]

use std::ffi::{CString, c_char};

use forebay_cuda::CudaDriver;
use libloading::{Library, Symbol};

use super::fake_driver::{CopyFile, FakeDriver, built, prepare, symbol};

/// The file cargo builds the bridge as.
const FILE: &str = "libforebay_hip_bridge.so";

/// HIP 5.7, 6.3 and 7.1: each the last or first with structures or rules of its own.
#[allow(dead_code, reason = "not every test asks for each")]
pub(crate) const VERSIONS: [i32; 3] = [50_731_921, 60_342_134, 70_152_802];

/// HIP of a version, with so many devices, whose library lacks these functions.
pub(crate) fn load_with(
    name: &str,
    version: i32,
    devices: u32,
    lacks: &[&str],
) -> Result<(FakeDriver, &'static CudaDriver), String> {
    let (cuda, library) = prepare(&format!("{name}-cuda"), 13_000, devices, &[])?;
    let file = bridge(name, lacks)?;
    // SAFETY: the library has no start-up code but the language's own.
    let bridge = unsafe { Library::new(&file.0) }.map_err(|error| error.to_string())?;
    // It is loaded for good, as any driver.
    let bridge: &'static Library = Box::leak(Box::new(bridge));
    let path = CString::new(cuda.path()).map_err(|error| error.to_string())?;
    // SAFETY: the signature is the one it is exported with, and the string outlives the call.
    unsafe {
        let configure: Symbol<'_, unsafe extern "C" fn(i32, *const c_char)> =
            symbol(bridge, "forebay_bridge_configure")?;
        configure(version, path.as_ptr());
    }
    let hip = forebay_hip::load_from(&file.path()).map_err(|missing| missing.to_string())?;
    Ok((FakeDriver { driver: hip, library }, hip))
}

/// HIP 6.3 with two devices.
pub(crate) fn load(name: &str) -> Result<(FakeDriver, &'static CudaDriver), String> {
    load_with(name, VERSIONS[1], 2, &[])
}

/// A copy of the bridge. The names of functions it is to lack are overwritten, so that the system does not find them.
fn bridge(name: &str, lacks: &[&str]) -> Result<CopyFile, String> {
    let mut bytes = std::fs::read(built(FILE)?).map_err(|error| error.to_string())?;
    let mut missing: Vec<&str> = lacks.to_vec();
    let (mut places, mut at) = (Vec::new(), 0);
    for text in bytes.split(|&byte| byte == 0) {
        if lacks.iter().any(|lack| lack.as_bytes() == text) {
            missing.retain(|lack| lack.as_bytes() != text);
            places.push(at);
        }
        at += text.len() + 1;
    }
    if let Some(name) = missing.first() {
        return Err(format!("{FILE} has no {name}"));
    }
    places.into_iter().for_each(|at| bytes[at] = b'_');
    CopyFile::new(name, &bytes)
}
