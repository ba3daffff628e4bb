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

mod code;
mod context;
mod decompression;
mod device;
mod driver;
mod event;
mod info;
mod managed;
mod map;
mod memory;
mod missing;
mod object;
mod options;
mod pinned;
mod space;
mod stream;
mod task;
mod transfer;

/// The functions and types of OpenCL, for kernels on this library's memory.
pub use cl3;
pub use code::Code;
pub use device::OpenClDevice;
pub use driver::{LIBRARY_VARIABLE, OpenClDriver};
pub use info::{OpenClDeviceInfo, OpenClDeviceType, SvmSupport};
pub use map::{MapAccess, MappedMemory};
pub use memory::SubBuffer;
pub use missing::OpenClMissing;
pub use object::ObjectCounts;
pub use options::OpenClOptions;
