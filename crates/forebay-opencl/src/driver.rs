//! The library, its platforms and their devices.

use std::sync::OnceLock;

use cl3::device::{CL_DEVICE_TYPE_ALL, get_device_ids};
use cl3::error_codes::{CL_DEVICE_NOT_FOUND, CL_PLATFORM_NOT_FOUND_KHR};
use cl3::platform::get_platform_ids;
use cl3::types::{cl_device_id, cl_platform_id};
use forebay_hal::{Call, Error, Result, invalid};
use forebay_sync::fork::{ForkGeneration, ForkSafeMutex};

use crate::OpenClMissing;
use crate::code::Code;
use crate::info::{self, OpenClDeviceInfo};

/// The environment variable that names libraries, separated by `;`, to try before the default one.
pub const LIBRARY_VARIABLE: &str = "OPENCL_DYLIB_PATH";

/// What is loaded where the variable names nothing that loads.
const LIBRARY: &str = if cfg!(target_os = "windows") {
    "OpenCL.dll"
} else if cfg!(target_os = "macos") {
    "/System/Library/Frameworks/OpenCL.framework/OpenCL"
} else {
    "libOpenCL.so.1"
};

/// A platform and one of its devices, as OpenCL names them. Neither ever goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeviceId {
    pub(crate) platform: cl_platform_id,
    pub(crate) device: cl_device_id,
}

// SAFETY: names of things that live as long as the process, which every thread may use.
unsafe impl Send for DeviceId {}
// SAFETY: as above.
unsafe impl Sync for DeviceId {}

/// OpenCL on this machine: the loaded library and the devices of all its platforms.
#[derive(Debug)]
pub struct OpenClDriver {
    platforms: Vec<String>,
    devices: Vec<OpenClDeviceInfo>,
    ids: Vec<DeviceId>,
}

impl OpenClDriver {
    /// Loads the library and lists the devices, once for the process.
    ///
    /// Devices are numbered across all platforms: all GPUs first, then accelerators, then processors, then others.
    /// Devices of a type are in the library's order of platforms, and in each platform's own order. So number 0 is a
    /// GPU if there is one, and the numbers are stable as long as the installed drivers are.
    pub fn load() -> core::result::Result<&'static Self, OpenClMissing> {
        /// The process that loads it. A child must not wait for its parent's thread to do so.
        static LOADED_BY: ForkSafeMutex<Option<ForkGeneration>> = ForkSafeMutex::new(None);
        static DRIVER: OnceLock<core::result::Result<OpenClDriver, OpenClMissing>> =
            OnceLock::new();
        let fork_generation = *LOADED_BY.lock().get_or_insert_with(ForkGeneration::here);
        fork_generation.check().map_err(|_| OpenClMissing::Forked)?;
        DRIVER.get_or_init(Self::begin).as_ref().map_err(Clone::clone)
    }

    fn begin() -> core::result::Result<Self, OpenClMissing> {
        if let Err(error) = cl3::load_library() {
            let (library, reason) = (LIBRARY.to_owned(), error.to_string());
            return Err(OpenClMissing::Library { library, reason });
        }
        let platforms = match get_platform_ids() {
            Ok(platforms) if !platforms.is_empty() => platforms,
            Ok(_) | Err(CL_PLATFORM_NOT_FOUND_KHR) => return Err(OpenClMissing::Platform),
            Err(code) => return Err(OpenClMissing::Start { code: Code(code) }),
        };
        let names = platforms.iter().map(|&platform| info::platform_name(platform)).collect();
        let mut found: Vec<(OpenClDeviceInfo, DeviceId)> = Vec::new();
        for &platform in &platforms {
            // A platform that does not answer hides its own devices, not those of others.
            let devices = match get_device_ids(platform, CL_DEVICE_TYPE_ALL) {
                // A device without a name is none.
                Ok(devices) => devices.into_iter().filter(|device| !device.is_null()).collect(),
                Err(CL_DEVICE_NOT_FOUND) | Err(_) => Vec::new(),
            };
            let name = info::platform_name(platform);
            found.extend(
                devices
                    .into_iter()
                    .map(|device| (info::describe(device, &name), DeviceId { platform, device })),
            );
        }
        // Stable: the order of the platforms stays among devices of a type.
        found.sort_by_key(|(info, _)| info.device_type);
        for ((info, _), ordinal) in found.iter_mut().zip(0..) {
            info.ordinal = ordinal;
        }
        let (devices, ids) = found.into_iter().unzip();
        Ok(Self { platforms: names, devices, ids })
    }

    /// The names of the platforms, in the order of the library.
    pub fn platforms(&self) -> &[String] {
        &self.platforms
    }

    /// The devices of all platforms, in the order of their numbers.
    pub fn devices(&self) -> &[OpenClDeviceInfo] {
        &self.devices
    }

    /// The number of devices.
    pub fn device_count(&self) -> usize {
        self.devices.len()
    }

    /// What a device is, and its names; or which numbers there are.
    pub(crate) fn device(&self, ordinal: u32) -> Result<(&OpenClDeviceInfo, DeviceId)> {
        let index = usize::try_from(ordinal).unwrap_or(usize::MAX);
        match (self.devices.get(index), self.ids.get(index), self.device_count()) {
            (Some(info), Some(&id), _) => Ok((info, id)),
            (_, _, 0) => {
                let missing = OpenClMissing::Device { platforms: self.platforms.clone() };
                Err(Error::from(missing))
            }
            (_, _, count) => {
                let allowed = format!("0 to {}: OpenCL has {count} devices", count - 1);
                Err(invalid(Call::Open, "ordinal", ordinal, allowed))
            }
        }
    }
}
