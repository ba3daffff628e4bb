//! The differences between vendors whose drivers share one interface.
//!
//! HIP copies CUDA's interface almost function by function, so one implementation serves both: `forebay-hip` fills
//! CUDA's [`Table`] with HIP's functions, and a [`Vendor`] says how to load them and what errors call things.

use core::ffi::{c_int, c_void};
use core::fmt;
use core::ptr::NonNull;

use forebay_hal::DeviceKind;

use crate::DriverMissing;
use crate::sys::{CUDA, Code, Interface, Table};

/// Finds a function that a library exports.
pub type Find<'a> = &'a dyn Fn(&str) -> Option<NonNull<c_void>>;

/// The result of loading a library: the table, and the interface version as `cuDriverGetVersion` counts.
pub type Loaded = Result<(Table, c_int), DriverMissing>;

/// A vendor's driver: how to find and load it, and the words for its errors.
pub struct Vendor {
    /// The kind of its devices.
    pub kind: DeviceKind,
    /// Its interface.
    pub interface: &'static Interface,
    /// Names of its library, in the order to try.
    pub libraries: &'static [&'static str],
    /// The environment variable that names another library.
    pub variable: &'static str,
    /// What to do if the library is missing, as in "install NVIDIA's driver".
    pub install: &'static str,
    /// The name for a device without one.
    pub unnamed: &'static str,
    /// The file with the version of the kernel module.
    pub module_version: &'static str,
    /// The number of mappings that one call unmaps.
    pub unmaps: Unmaps,
    /// How rows are copied to host memory.
    pub rows_to_host: RowsToHost,
    /// The remedy when the driver fails to start with a code.
    pub cure: fn(Code) -> &'static str,
    /// Fills the table from the library of this name and starts the driver.
    ///
    /// The caller promises that each address that `find` returns is that of the vendor's function with this name, for
    /// the rest of the process.
    pub load: unsafe fn(&str, Find<'_>) -> Loaded,
}

/// How many mappings one call of the driver unmaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmaps {
    /// All adjacent mappings.
    All,
    /// One whole mapping.
    One,
}

/// How rows are copied from device to host memory without making the caller wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowsToHost {
    /// With one driver call for all rows.
    AtOnce,
    /// With one call for each row, because the driver makes the caller of a call for all rows wait for the stream. Many
    /// rows are therefore gathered on the device first, and copied to the host in one piece.
    OneByOne,
}

impl Vendor {
    /// Starts the driver in a library, and gives the version of the interface it speaks.
    pub(crate) fn start(
        &'static self,
        library: &str,
        table: &Table,
    ) -> Result<c_int, DriverMissing> {
        let stopped = |refusal| {
            let library = library.to_owned();
            DriverMissing::Start { vendor: self, library, refusal }
        };
        // SAFETY: no argument but flags, which must be 0.
        unsafe { table.init(0) }.map_err(stopped)?;
        let mut version = 0;
        // SAFETY: the version is written to a place of our own.
        unsafe { table.driver_get_version(&raw mut version) }.map_err(stopped)?;
        Ok(version)
    }
}

/// Each is one value of the program.
impl PartialEq for Vendor {
    fn eq(&self, other: &Self) -> bool {
        core::ptr::eq(self, other)
    }
}

impl Eq for Vendor {}

impl fmt::Debug for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.interface.fmt(f)
    }
}

/// NVIDIA's driver.
pub static NVIDIA: Vendor = Vendor {
    kind: DeviceKind::Cuda,
    interface: &CUDA,
    // By the driver's packages, then where only the plain name was linked.
    libraries: &["libcuda.so.1", "libcuda.so"],
    variable: crate::DRIVER_VARIABLE,
    install: "install NVIDIA's driver",
    unnamed: "an NVIDIA device",
    module_version: "/proc/driver/nvidia/version",
    unmaps: Unmaps::All,
    rows_to_host: RowsToHost::AtOnce,
    cure,
    load: crate::driver::load_cuda,
};

/// What helps where `cuInit` answered so.
fn cure(code: Code) -> &'static str {
    match code {
        Code::ERROR_NO_DEVICE => {
            "there is no NVIDIA device this process may see: look at CUDA_VISIBLE_DEVICES and, in a \
             container, at what devices it was given"
        }
        Code::ERROR_SYSTEM_DRIVER_MISMATCH => {
            "the library and the kernel's module are of different versions: restart the machine, or \
             install both anew"
        }
        Code::ERROR_STUB_LIBRARY => {
            "this is the toolkit's stub, for linking: take its folder out of LD_LIBRARY_PATH"
        }
        Code::ERROR_NOT_INITIALIZED => {
            "the process was forked after its parent had begun with CUDA: fork before that, or start \
             the child by exec"
        }
        Code::ERROR_SYSTEM_NOT_READY => "the machine's fabric is not up yet: wait, or start it",
        _ => "nvidia-smi tells more",
    }
}
