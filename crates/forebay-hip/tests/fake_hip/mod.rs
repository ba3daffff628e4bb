//! HIP over the fake CUDA driver, and what can be set of both.

#![allow(clippy::unwrap_used, reason = "a test's own tool fails the test")]

use std::ffi::{CString, c_char};

use forebay_hip::HipDriver;
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
) -> Result<(FakeDriver, HipDriver), String> {
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
    let hip = HipDriver::load_from(&file.path()).map_err(|missing| missing.to_string())?;
    Ok((FakeDriver { driver: hip.as_cuda(), library }, hip))
}

/// HIP 6.3 with two devices.
pub(crate) fn load(name: &str) -> Result<(FakeDriver, HipDriver), String> {
    load_with(name, VERSIONS[1], 2, &[])
}

/// A copy of the bridge. The names of functions it is to lack are overwritten, so that the system does not find them.
fn bridge(name: &str, lacks: &[&str]) -> Result<CopyFile, String> {
    let mut bytes = std::fs::read(built(FILE)?).map_err(|error| error.to_string())?;
    for lack in lacks {
        let text = format!("\0{lack}\0").into_bytes();
        let places: Vec<usize> =
            (0..bytes.len() - text.len()).filter(|&at| bytes[at..].starts_with(&text)).collect();
        if places.is_empty() {
            return Err(format!("{FILE} has no {lack}"));
        }
        places.into_iter().for_each(|at| bytes[at + 1] = b'_');
    }
    CopyFile::new(name, &bytes)
}
