//! The host as a device.

pub mod mapping;
pub mod system;
