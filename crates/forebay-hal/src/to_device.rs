//! Devices as arguments.

use std::sync::Arc;

use crate::Device;

/// A shared device, of a concrete type or as a trait object: `Arc<HostDevice>` and `Arc<dyn Device>` alike.
///
/// Functions that keep a device take `&impl ToDevice`, so that callers need not convert.
pub trait ToDevice {
    /// Clones the `Arc`, as a trait object.
    fn to_device(&self) -> Arc<dyn Device>;
}

impl<D: Device + 'static> ToDevice for Arc<D> {
    fn to_device(&self) -> Arc<dyn Device> {
        Self::clone(self)
    }
}

// `D` above is sized, so the two do not overlap.
impl ToDevice for Arc<dyn Device> {
    fn to_device(&self) -> Arc<dyn Device> {
        Self::clone(self)
    }
}
