//! Devices of drivers whose own errors say what is missing and what to install: HIP, OpenCL and Metal.

use core::fmt::Display;

use forebay::devices::DeviceName;
use forebay::metal::MetalMissing;
use forebay::opencl::OpenClDriver;
use forebay_hal::DeviceKind;
use forebay_host::system::System;

use super::device::{broken, tried};
use crate::doctor::report::{DeviceRow, Status};

/// A row for each device; of a kind that has none, one that says why.
pub(super) fn others(system: &System) -> Vec<DeviceRow> {
    if !system.is_here() {
        let root = system.root().display();
        let summary = format!("not looked for: the files below {root} are another machine's");
        let row = |kind| DeviceRow::new(kind, Status::NotHere, summary.clone());
        return [DeviceKind::Hip, DeviceKind::OpenCl, DeviceKind::Metal].map(row).into();
    }
    let mut rows = hip();
    rows.extend(opencl());
    rows.extend(metal());
    rows
}

fn hip() -> Vec<DeviceRow> {
    match forebay::hip::load().map(|driver| driver.device_count()) {
        Ok(Ok(count)) => opened(DeviceKind::Hip, count),
        Ok(Err(error)) => vec![broken(DeviceKind::Hip, &error)],
        Err(missing) => vec![lacking(DeviceKind::Hip, &missing)],
    }
}

fn opencl() -> Vec<DeviceRow> {
    match OpenClDriver::load() {
        Ok(driver) => opened(DeviceKind::OpenCl, to_u32(driver.device_count())),
        Err(missing) => vec![lacking(DeviceKind::OpenCl, &missing)],
    }
}

fn metal() -> Vec<DeviceRow> {
    match forebay::metal::device_count() {
        Ok(count) => opened(DeviceKind::Metal, to_u32(count)),
        Err(missing @ MetalMissing::System { .. }) => {
            vec![DeviceRow::new(DeviceKind::Metal, Status::NotHere, missing.to_string())]
        }
        Err(missing) => vec![lacking(DeviceKind::Metal, &missing)],
    }
}

fn to_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

fn lacking(kind: DeviceKind, missing: &dyn Display) -> DeviceRow {
    DeviceRow::new(kind, Status::Missing, missing.to_string())
}

/// Each device, opened and tried.
fn opened(kind: DeviceKind, count: u32) -> Vec<DeviceRow> {
    if count == 0 {
        return vec![lacking(kind, &"its driver shows this process no device")];
    }
    let row = |ordinal| {
        let row = tried(kind, "", || DeviceName::new(kind, ordinal).open());
        DeviceRow { ordinal: Some(ordinal), ..row }
    };
    (0..count).map(row).collect()
}
