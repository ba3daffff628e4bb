//! The devices that this version supports: opens, queries, tries and closes them.

use core::fmt::Display;
use std::sync::Arc;

use forebay::devices::DeviceName;
use forebay::transfer::Calibration;
use forebay_hal::{Device, DeviceKind, Result};
use forebay_host::system::System;

use super::trial::trial;
use crate::doctor::report::{DeviceRow, MemorySection, Status, TransferSection};

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
    tried(kind, "", || DeviceName::HOST.open())
}

/// The simulation, with the machine it stands for by default.
pub(super) fn sim() -> DeviceRow {
    tried(DeviceKind::Sim, "always there, no hardware: ", || DeviceName::SIM.open())
}

/// Opens a device, tries it, and says how it stands with it.
pub(super) fn tried(
    kind: DeviceKind,
    remark: &str,
    open: impl FnOnce() -> Result<Arc<dyn Device>>,
) -> DeviceRow {
    let device = match open() {
        Ok(device) => device,
        Err(error) => return broken(kind, &format!("cannot be opened: {error}")),
    };
    match trial(&device).and_then(|()| device.memory_info()) {
        Ok(memory) => DeviceRow {
            total_bytes: Some(memory.total.get()),
            free_bytes: Some(memory.free.get()),
            transfers: has_wire(kind).then(|| transfers(&device)).flatten(),
            ..described(&*device, remark)
        },
        Err(error) => broken(kind, &format!("opened, but does not work: {error}")),
    }
}

/// Whether data gets to a device of this kind over a wire.
fn has_wire(kind: DeviceKind) -> bool {
    !matches!(kind, DeviceKind::Host | DeviceKind::Sim)
}

/// What a short measurement finds. Nothing if it fails, for want of memory for example: the device works all the same.
fn transfers(device: &Arc<dyn Device>) -> Option<TransferSection> {
    let found = Calibration::of(device).ok()?;
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // whole bytes will do
    let whole = |bandwidth: f64| bandwidth as u64;
    Some(TransferSection {
        upload_limit_bytes_per_s: whole(found.upload_limit),
        download_limit_bytes_per_s: whole(found.download_limit),
        upload_bytes_per_s: whole(found.upload),
        download_bytes_per_s: whole(found.download),
        threads: found.threads,
        chunk_bytes: found.chunk.get(),
        past_caches: found.past_caches,
        took_ms: u64::try_from(found.took.as_millis()).unwrap_or(u64::MAX),
    })
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
