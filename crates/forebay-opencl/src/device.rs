//! The device itself.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay_core::DeviceOrdinal;
use forebay_hal::{Capabilities, Descriptor, DeviceKind, Result};
use forebay_sync::fork::PerProcess;

use crate::{OpenClDeviceInfo, OpenClDriver, OpenClOptions};

/// A device behind OpenCL.
#[derive(Debug)]
pub struct OpenClDevice {
    pub(crate) info: &'static OpenClDeviceInfo,
    pub(crate) descriptor: Descriptor,
}

impl OpenClDevice {
    /// Opens a device by its number; see [`OpenClDriver::load`] for the order.
    pub fn open(ordinal: u32) -> Result<Arc<Self>> {
        Self::open_with(ordinal, OpenClOptions::new())
    }

    /// The device of that number for the whole process: the same object for everybody who asks here, as
    /// long as anyone has it.
    pub fn shared(ordinal: u32) -> Result<Arc<Self>> {
        static SHARED: PerProcess<BTreeMap<u32, Weak<OpenClDevice>>> = PerProcess::new();
        // Held while it is opened: two who ask at once get the same.
        let mut shared = SHARED.lock();
        if let Some(device) = shared.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(device);
        }
        let device = Self::open(ordinal)?;
        shared.insert(ordinal, Arc::downgrade(&device));
        Ok(device)
    }

    /// Opens a device by its number, with options.
    pub fn open_with(ordinal: u32, options: OpenClOptions) -> Result<Arc<Self>> {
        let (info, _id) = OpenClDriver::load()?.device(ordinal)?;
        let _ = options;
        let descriptor = Descriptor::new(DeviceKind::OpenCl, DeviceOrdinal(ordinal), &*info.name)
            .driver(format!("{} {}", info.platform, info.driver_version))
            .capabilities(Capabilities::DATA)
            .alignment(info.alignment);
        Ok(Arc::new(Self { info, descriptor }))
    }

    /// What OpenCL tells of the device.
    pub fn info(&self) -> &'static OpenClDeviceInfo {
        self.info
    }
}
