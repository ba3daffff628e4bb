//! Metal as a forebay device: Apple GPUs, on macOS 13 and later.
//!
//! **Not yet tested on hardware.** It is type-checked and linted for `aarch64-apple-darwin`, and its portable logic has
//! tests that run everywhere. To run the conformance suite of the device contract on a Mac: `cargo test -p
//! forebay-metal`.
//!
//! On other systems the crate has no device, only [`MetalMissing`]:
//!
//! ```
//! match forebay_metal::open(0) {
//!     Ok(device) => assert_eq!(device.descriptor().kind.name(), "metal"),
//!     Err(missing) => assert!(!missing.to_string().is_empty()), // "Metal needs macOS, and this is linux"
//! }
//! ```
//!
//! # How the contract maps to Metal
//!
//! | contract | Metal |
//! |---|---|
//! | plain memory | a placement heap with private storage and one buffer in it; its address is the GPU's own (`gpuAddress`) |
//! | pinned memory | a buffer with shared storage: the host's address is `contents`, the device's is `gpuAddress` |
//! | registered memory | a buffer without a copy over the pages that the memory lies in |
//! | stream | a command queue, and a shared event whose value counts what was enqueued there |
//! | event | a value of a stream's shared event |
//! | copy, fill | a blit where all is a multiple of 4 bytes, else a kernel; memory that is not pinned goes through a staging buffer |
//! | host function | a block that the shared event calls |
//!
//! Command buffers of one queue may overlap. Each one enqueued here waits for the value that the previous one signals,
//! so the work of a stream runs in order whatever memory it uses, and needs no hazard tracking.
//!
//! For your own kernels, `MetalDevice::encode` provides a command buffer in stream order, and `MetalDevice::buffer_at`
//! the buffer and offset of an address.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod missing;
#[cfg(any(target_os = "macos", test))]
mod space;
#[cfg(any(target_os = "macos", test))]
mod stage;

#[cfg(target_os = "macos")]
mod buffer;
#[cfg(target_os = "macos")]
mod device;
#[cfg(target_os = "macos")]
mod event;
#[cfg(target_os = "macos")]
mod kernel;
#[cfg(target_os = "macos")]
mod memory;
#[cfg(target_os = "macos")]
mod stream;
#[cfg(target_os = "macos")]
mod transfer;

use std::sync::Arc;

use forebay_hal::Device;

#[cfg(target_os = "macos")]
pub use device::MetalDevice;
pub use missing::MetalMissing;

/// Opens a device by its number; the first is 0.
pub fn open(ordinal: u32) -> Result<Arc<dyn Device>, MetalMissing> {
    #[cfg(target_os = "macos")]
    return Ok(MetalDevice::open(ordinal)?);
    #[cfg(not(target_os = "macos"))]
    {
        let _ = ordinal;
        Err(MetalMissing::System { system: std::env::consts::OS })
    }
}

/// Returns the process-wide device with that number: every caller gets the same object while any of them holds it.
pub fn shared(ordinal: u32) -> Result<Arc<dyn Device>, MetalMissing> {
    #[cfg(target_os = "macos")]
    return Ok(MetalDevice::shared(ordinal)?);
    #[cfg(not(target_os = "macos"))]
    open(ordinal)
}

/// The number of devices visible to this process.
pub fn device_count() -> Result<usize, MetalMissing> {
    #[cfg(target_os = "macos")]
    return Ok(device::all().count());
    #[cfg(not(target_os = "macos"))]
    Err(MetalMissing::System { system: std::env::consts::OS })
}

#[cfg(all(test, not(target_os = "macos")))]
mod tests {
    use super::*;

    #[test]
    fn other_systems_say_what_is_missing() {
        let missing = MetalMissing::System { system: std::env::consts::OS };
        assert_eq!(open(0).err(), Some(missing.clone()));
        assert_eq!(shared(0).err(), Some(missing.clone()));
        assert_eq!(device_count(), Err(missing.clone()));
        let error = forebay_hal::Error::from(missing);
        assert!(error.to_string().contains("Metal needs macOS"), "{error}");
        assert_eq!(error.call(), forebay_hal::Call::Open);
    }
}
