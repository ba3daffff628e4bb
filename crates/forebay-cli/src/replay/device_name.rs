//! The devices on which runs are replayed.

use std::sync::Arc;

use forebay::devices::{DeviceName, UnknownDevice};
use forebay_core::{Bytes, TIB};
use forebay_hal::{Device, DeviceKind, Error};
use forebay_host::HostOptions;
use forebay_sim::{MemoryModel, SimMachine};

use crate::output::Fault;

/// The names of devices, for help texts.
pub(crate) const DEVICES: &str = "sim|host|cuda:N|hip:N|opencl:N|metal:N";

/// Parses the name of a device. An empty name, such as that of an empty environment variable, means `default`.
pub(crate) fn device_or(
    default: DeviceName,
) -> impl Fn(&str) -> Result<DeviceName, UnknownDevice> + Clone + Send + Sync {
    move |name| if name.is_empty() { Ok(default) } else { name.parse() }
}

/// The default capacity of a simulated device: more than any real one has, so that a run is limited only if a capacity
/// was given.
const CAPACITY: Bytes = Bytes::new(TIB);

/// A simulated device, and its machine, which prices and counts calls.
pub(crate) fn simulated(
    capacity: Option<Bytes>,
    memory: MemoryModel,
) -> Result<(SimMachine, Arc<dyn Device>), Fault> {
    let capacity = capacity.unwrap_or(CAPACITY);
    let machine = SimMachine::builder().memory(memory).capacity(capacity).checked(false).build()?;
    let device = machine.device(0).ok_or("the simulated machine has no device")?;
    Ok((machine, device))
}

/// Opens a device to replay on. A simulated one has memory behind its addresses only if `backed`; the others always do.
pub fn open_device(
    name: DeviceName,
    capacity: Option<Bytes>,
    backed: bool,
) -> Result<Arc<dyn Device>, String> {
    match (name.kind(), capacity) {
        (DeviceKind::Sim, _) => {
            let memory = if backed { MemoryModel::Backed } else { MemoryModel::Phantom };
            let (_, device) = simulated(capacity, memory).map_err(|error| error.to_string())?;
            Ok(device)
        }
        (DeviceKind::Host, Some(capacity)) => {
            let device = HostOptions::new().memory_limit(capacity).open();
            Ok(device.map_err(|error| error.to_string())?)
        }
        (_, None) => name.open().map_err(|error| {
            let reason = match error {
                // It already says how to fix it.
                Error::Unsupported { missing, .. } => missing.into(),
                error => error.to_string(),
            };
            format!(
                "{name}: {reason}; --device host and --device sim are always there, and \"forebay doctor\" \
                 shows what this machine has"
            )
        }),
        (_, Some(_)) => Err(format!(
            "--capacity cannot change how much memory {name} has; leave it out, and set \
             FOREBAY_MAX_BYTES to limit the pool"
        )),
    }
}
