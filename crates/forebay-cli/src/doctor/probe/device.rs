//! The devices this version drives: opened, asked what they are, and closed again.

use core::fmt::Display;

use forebay_hal::{Device, DeviceKind, Result};
use forebay_host::HostDevice;
use forebay_host::system::System;
use forebay_sim::SimMachine;

use crate::doctor::report::{DeviceRow, Status};

/// The host.
pub(super) fn host(system: &System) -> DeviceRow {
    if !system.is_here() {
        let root = system.root().display();
        let summary = format!("not opened: the files below {root} are another machine's");
        return DeviceRow::new(DeviceKind::Host, Status::NotHere, summary);
    }
    let opened = HostDevice::open().and_then(|device| row(&*device, ""));
    opened.unwrap_or_else(|error| broken(DeviceKind::Host, &error))
}

/// The simulation, with the machine it stands for by default.
pub(super) fn sim() -> DeviceRow {
    let kind = DeviceKind::Sim;
    let machine = match SimMachine::builder().build() {
        Ok(machine) => machine,
        Err(error) => return broken(kind, &error),
    };
    let Some(device) = machine.device(0) else {
        return broken(kind, &"the simulated machine has no device 0");
    };
    row(&*device, "always there, no hardware: ").unwrap_or_else(|error| broken(kind, &error))
}

fn broken(kind: DeviceKind, error: &dyn Display) -> DeviceRow {
    DeviceRow::new(kind, Status::Broken, error.to_string())
}

/// What an open device says of itself.
fn row(device: &dyn Device, remark: &str) -> Result<DeviceRow> {
    let memory = device.memory_info()?;
    let descriptor = device.descriptor();
    let driver = match descriptor.driver.as_str() {
        "" => String::new(),
        driver => format!(", {driver}"),
    };
    let row =
        DeviceRow::new(descriptor.kind, Status::Ready, format!("{remark}{descriptor}{driver}"));
    let names = descriptor.capabilities.iter_names();
    Ok(DeviceRow {
        capabilities: names.map(|(name, _)| name.to_ascii_lowercase()).collect(),
        total_bytes: Some(memory.total.get()),
        free_bytes: Some(memory.free.get()),
        ..row
    })
}
