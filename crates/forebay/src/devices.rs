//! Devices by name: lists them, picks the best, and opens them.
//!
//! ```
//! // The device that FOREBAY_DEVICE names; without it the first GPU, else the host.
//! let device = forebay::devices::best()?.open()?;
//! println!("{}", device.descriptor());
//!
//! let host = forebay::devices::open("host")?;
//! # Ok::<(), forebay::hal::Error>(())
//! ```

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use forebay_hal::{Call, Device, DeviceKind, Error, Result, invalid};

/// The variable that names the device for programs that ask for the best one.
pub const VARIABLE: &str = "FOREBAY_DEVICE";

/// The allowed names, for messages.
const ALLOWED: &str = "host, sim, or cuda:N, hip:N, opencl:N, metal:N with the number of a device";

/// Kinds of hardware, fastest interface first. One GPU may appear under several.
const HARDWARE: [DeviceKind; 4] =
    [DeviceKind::Cuda, DeviceKind::Hip, DeviceKind::Metal, DeviceKind::OpenCl];

/// The name of a device: a kind, and a number if there can be several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName {
    kind: DeviceKind,
    ordinal: u32,
}

impl DeviceName {
    /// This machine's memory and threads.
    pub const HOST: Self = Self::new(DeviceKind::Host, 0);
    /// A simulated accelerator.
    pub const SIM: Self = Self::new(DeviceKind::Sim, 0);

    /// A device by its kind and number.
    pub const fn new(kind: DeviceKind, ordinal: u32) -> Self {
        Self { kind, ordinal }
    }

    /// An NVIDIA GPU by its number.
    pub const fn cuda(ordinal: u32) -> Self {
        Self::new(DeviceKind::Cuda, ordinal)
    }

    /// Its kind.
    pub const fn kind(self) -> DeviceKind {
        self.kind
    }

    /// Its number among devices of its kind.
    pub const fn ordinal(self) -> u32 {
        self.ordinal
    }

    /// Whether it is accessed through a driver: neither the host nor a simulation.
    pub fn is_hardware(self) -> bool {
        HARDWARE.contains(&self.kind)
    }

    /// Opens it. Hardware is opened once: while the device lives, all calls in the process return the same one.
    pub fn open(self) -> Result<Arc<dyn Device>> {
        match self.kind {
            #[cfg(feature = "host")]
            DeviceKind::Host => Ok(forebay_host::HostDevice::open()?),
            #[cfg(feature = "sim")]
            DeviceKind::Sim => {
                // Without the checker, which records every access to memory: it is for tests, not for programs.
                let machine = forebay_sim::SimMachine::builder().checked(false).build()?;
                let device = machine.device(0).ok_or_else(|| {
                    invalid(Call::Open, "device", self.to_string(), "a machine with a device")
                })?;
                Ok(device)
            }
            #[cfg(feature = "cuda")]
            DeviceKind::Cuda => Ok(forebay_cuda::CudaDevice::shared(self.ordinal)?),
            #[cfg(feature = "hip")]
            DeviceKind::Hip => Ok(forebay_hip::HipDevice::shared(self.ordinal)?),
            #[cfg(feature = "opencl")]
            DeviceKind::OpenCl => Ok(forebay_opencl::OpenClDevice::shared(self.ordinal)?),
            #[cfg(feature = "metal")]
            DeviceKind::Metal => Ok(forebay_metal::shared(self.ordinal)?),
            kind => Err(Error::Unsupported {
                call: Call::Open,
                missing: format!("{self}: this build of forebay is without its feature \"{kind}\"")
                    .into(),
            }),
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_hardware() {
            f.pad(&format!("{}:{}", self.kind, self.ordinal))
        } else {
            f.pad(self.kind.name())
        }
    }
}

/// A name that matches no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no device {0:?}: a device is {ALLOWED}")]
pub struct UnknownDevice(String);

impl From<UnknownDevice> for Error {
    fn from(unknown: UnknownDevice) -> Self {
        invalid(Call::Open, "device", format!("{:?}", unknown.0), ALLOWED)
    }
}

impl FromStr for DeviceName {
    type Err = UnknownDevice;

    fn from_str(text: &str) -> core::result::Result<Self, UnknownDevice> {
        let numbered = |kind: DeviceKind| {
            let rest = text.strip_prefix(kind.name())?;
            let ordinal = match rest.strip_prefix(':') {
                // Digits alone: `parse` would take a sign.
                Some(number) if !number.starts_with('+') => number.parse().ok()?,
                Some(_) => return None,
                None => rest.is_empty().then_some(0)?,
            };
            Some(Self::new(kind, ordinal))
        };
        let plain = [Self::HOST, Self::SIM].into_iter().find(|name| text == name.kind.name());
        plain
            .or_else(|| HARDWARE.into_iter().find_map(numbered))
            .ok_or_else(|| UnknownDevice(text.to_owned()))
    }
}

impl serde::Serialize for DeviceName {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> core::result::Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Opens a device by name: "host", "sim", "cuda:0", "hip:1", "opencl:0", "metal:0".
pub fn open(name: &str) -> Result<Arc<dyn Device>> {
    name.parse::<DeviceName>()?.open()
}

/// The devices of this machine: the host, and those reported by its drivers. Skips drivers that are missing or fail.
pub fn all() -> Vec<DeviceName> {
    let numbers = |kind| (0..count(kind)).map(move |ordinal| DeviceName::new(kind, ordinal));
    core::iter::once(DeviceName::HOST).chain(HARDWARE.into_iter().flat_map(numbers)).collect()
}

/// The device that [`VARIABLE`] names; else the first of CUDA, HIP, Metal and OpenCL that can be opened; else the host.
/// Skips OpenCL platforms that [run on the host's own processor](forebay_hal::Descriptor::is_processor): the host does
/// that better.
pub fn best() -> Result<DeviceName> {
    match named()? {
        Some(name) => Ok(name),
        None => Ok(first().map_or(DeviceName::HOST, |(name, _)| name)),
    }
}

/// [The best device](best), opened.
pub fn open_best() -> Result<(DeviceName, Arc<dyn Device>)> {
    let first = match named()? {
        Some(name) => return Ok((name, name.open()?)),
        None => first(),
    };
    first.map_or_else(|| Ok((DeviceName::HOST, DeviceName::HOST.open()?)), Ok)
}

/// The device that the variable names. A value that is not text fails like any unknown name.
fn named() -> Result<Option<DeviceName>> {
    let name = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
    Ok(name.map(|name| name.to_string_lossy().parse::<DeviceName>()).transpose()?)
}

/// The first device that can be opened and is not the host's own processor.
fn first() -> Option<(DeviceName, Arc<dyn Device>)> {
    HARDWARE.into_iter().map(|kind| DeviceName::new(kind, 0)).find_map(|name| {
        let device = name.open().ok()?;
        (!device.descriptor().is_processor).then_some((name, device))
    })
}

/// The number of devices that the driver of a kind reports.
fn count(kind: DeviceKind) -> u32 {
    let count = match kind {
        #[cfg(feature = "cuda")]
        DeviceKind::Cuda => {
            forebay_cuda::CudaDriver::load().ok().and_then(|driver| driver.device_count().ok())
        }
        #[cfg(feature = "hip")]
        DeviceKind::Hip => forebay_hip::load().ok().and_then(|driver| driver.device_count().ok()),
        #[cfg(feature = "opencl")]
        DeviceKind::OpenCl => {
            let driver = forebay_opencl::OpenClDriver::load().ok();
            driver.and_then(|driver| u32::try_from(driver.device_count()).ok())
        }
        #[cfg(feature = "metal")]
        DeviceKind::Metal => {
            forebay_metal::device_count().ok().and_then(|count| u32::try_from(count).ok())
        }
        _ => None,
    };
    count.unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let hardware = HARDWARE.map(|kind| DeviceName::new(kind, 7));
        for name in [DeviceName::HOST, DeviceName::SIM].into_iter().chain(hardware) {
            assert_eq!(name.to_string().parse(), Ok(name));
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::cuda(0)));
        for wrong in [
            "", "cuda:", "cuda:x", "cuda:+1", "cuda0", "CUDA:0", "sim:0", "host:0", "vulkan:0",
            "hip:-1",
        ] {
            let said = wrong.parse::<DeviceName>().unwrap_err().to_string();
            assert!(said.contains("opencl:N"), "{wrong}: {said}");
        }
    }

    #[test]
    fn the_best_device_is_not_the_processor_by_a_detour() {
        let (best, device) = open_best().unwrap();
        assert_eq!(best, super::best().unwrap());
        assert_eq!(device.descriptor().kind, best.kind());
        let is_named = std::env::var_os(VARIABLE).is_some_and(|name| !name.is_empty());
        let is_driver = device.descriptor().kind != DeviceKind::Host;
        assert!(is_named || !(is_driver && device.descriptor().is_processor), "{best}");
    }

    #[test]
    fn the_host_is_always_there() {
        assert!(all().contains(&DeviceName::HOST));
        assert_eq!(DeviceName::HOST.open().unwrap().descriptor().kind, DeviceKind::Host);
    }
}
