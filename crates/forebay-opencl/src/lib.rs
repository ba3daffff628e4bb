//! OpenCL as a forebay device.
//!
//! The library is found at run time: nothing of OpenCL is needed to build a program, and a machine
//! without it gives a value that says what to install, never a panic.
//!
//! ```
//! use forebay_opencl::OpenClDriver;
//!
//! match OpenClDriver::load() {
//!     Ok(driver) => driver.devices().iter().for_each(|device| println!("{device}")),
//!     // "no OpenCL: libOpenCL.so.1 could not be loaded (...); install ..."
//!     Err(missing) => println!("{missing}"),
//! }
//! ```

#![allow(dead_code, reason = "memory and streams come next")]

mod code;
mod device;
mod driver;
mod info;
mod missing;
mod options;

pub use code::Code;
pub use device::OpenClDevice;
pub use driver::{LIBRARY_VARIABLE, OpenClDriver};
pub use info::{OpenClDeviceInfo, OpenClDeviceType, SvmSupport};
pub use missing::OpenClMissing;
pub use options::OpenClOptions;
