//! The devices this version drives: opened, asked what they are, tried, and closed again.

use core::fmt::Display;
use std::sync::Arc;

use forebay_hal::{Device, DeviceKind};
use forebay_host::HostDevice;
use forebay_host::system::System;
use forebay_sim::SimMachine;

use super::trial::trial;
use crate::doctor::report::{DeviceRow, MemorySection, Status};

/// The host.
pub(super) fn host(system: &System, memory: &MemorySection) -> DeviceRow {
    let kind = DeviceKind::Host;
    if !system.is_here() {
        let root = system.root().display();
        let summary = format!("not opened: the files below {root} are another machine's");
        return DeviceRow::new(kind, Status::NotHere, summary);
    }
    if memory.usable_total_bytes.is_none() {
        let reason = memory.unknown.first().map(ToString::to_string).unwrap_or_default();
        return broken(kind, &format!("the amount of memory is unknown ({reason})"));
    }
    tried(kind, "", HostDevice::open)
}

/// The simulation, with the machine it stands for by default.
pub(super) fn sim() -> DeviceRow {
    tried(DeviceKind::Sim, "always there, no hardware: ", || {
        let machine = SimMachine::builder().build().map_err(|error| error.to_string())?;
        machine.device(0).ok_or_else(|| "the simulated machine has no device 0".to_owned())
    })
}

/// Opens a device, tries it, and says how it stands with it.
pub(super) fn tried<D: Device + 'static, E: Display>(
    kind: DeviceKind,
    remark: &str,
    open: impl FnOnce() -> Result<Arc<D>, E>,
) -> DeviceRow {
    let device: Arc<dyn Device> = match open() {
        Ok(device) => device,
        Err(error) => return broken(kind, &format!("cannot be opened: {error}")),
    };
    match trial(&device).and_then(|()| device.memory_info()) {
        Ok(memory) => DeviceRow {
            total_bytes: Some(memory.total.get()),
            free_bytes: Some(memory.free.get()),
            ..described(&*device, remark)
        },
        Err(error) => broken(kind, &format!("opened, but does not work: {error}")),
    }
}

pub(super) fn broken(kind: DeviceKind, reason: &dyn Display) -> DeviceRow {
    DeviceRow::new(kind, Status::Broken, reason.to_string())
}

/// What a device says of itself.
fn described(device: &dyn Device, remark: &str) -> DeviceRow {
    let descriptor = device.descriptor();
    let driver = match descriptor.driver.as_str() {
        "" => String::new(),
        driver => format!(", {driver}"),
    };
    let summary = format!("{remark}{descriptor}{driver}");
    let names = descriptor.capabilities.iter_names();
    DeviceRow {
        capabilities: names.map(|(name, _)| name.to_ascii_lowercase()).collect(),
        ..DeviceRow::new(descriptor.kind, Status::Ready, summary)
    }
}
