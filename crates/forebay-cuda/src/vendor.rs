//! The differences between vendors whose drivers share one interface.
//!
//! HIP copies CUDA's interface almost function by function, so one implementation serves both: `forebay-hip` fills
//! CUDA's [`Symbols`] with HIP's functions, and a [`Vendor`] says how to load them and what errors call things.

use core::ffi::{c_char, c_int, c_void};
use core::fmt;
use core::ptr::NonNull;
use std::ffi::CString;

use forebay_hal::{Call, DeviceKind, Error};

use crate::sys::values::proc_address;
use crate::sys::{CUDA, Code, DriverError, Interface, Symbol, Symbols};

/// The environment variable that names a driver library to use instead of the system's.
pub const DRIVER_VARIABLE: &str = "FOREBAY_CUDA_DRIVER";

/// From this version on `cuGetProcAddress` says why a function is missing.
const ASKS_FOR_FUNCTIONS_FROM: c_int = 12_000;

/// `cuGetProcAddress_v2`.
type GetProcAddress =
    unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> Code;

/// Finds a function that a library exports.
pub type Find<'a> = &'a dyn Fn(&str) -> Option<NonNull<c_void>>;

/// The result of loading a library: the table, and the interface version as `cuDriverGetVersion` counts.
pub type Loaded = Result<(Symbols, c_int), DriverMissing>;

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
        table: &Symbols,
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

/// Vendors are statics, so they are compared by address.
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
    variable: DRIVER_VARIABLE,
    install: "install NVIDIA's driver",
    unnamed: "an NVIDIA device",
    module_version: "/proc/driver/nvidia/version",
    unmaps: Unmaps::All,
    rows_to_host: RowsToHost::AtOnce,
    cure,
    load: load_cuda,
};

/// The remedy when `cuInit` fails with a code.
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

/// Fills the table from a CUDA driver's library and starts the driver.
///
/// # Safety
///
/// * As for [`Vendor::load`].
unsafe fn load_cuda(name: &str, find: Find<'_>) -> Loaded {
    let by_name = |symbol: &'static Symbol| find(symbol.export);
    let absent = |symbol| DriverMissing::Function { library: name.to_owned(), symbol };
    // SAFETY: the exported name of each symbol is that of the version declared, so the signatures
    // agree; the library is never unloaded.
    let exported = unsafe { Symbols::load(by_name) }.map_err(absent)?;
    let version = NVIDIA.start(name, &exported)?;
    let asks = find("cuGetProcAddress_v2").filter(|_| version >= ASKS_FOR_FUNCTIONS_FROM).map(
        |function| {
            // SAFETY: this name is exported with this signature alone.
            unsafe { core::mem::transmute::<NonNull<c_void>, GetProcAddress>(function) }
        },
    );
    let known = |symbol: &'static Symbol| {
        // A newer function by an old name may be exported for other reasons than being there.
        if symbol.version > version {
            return None;
        }
        match asks {
            Some(ask) => ask_for(ask, symbol),
            None => find(symbol.export),
        }
    };
    // SAFETY: the driver gives for a name and a version the function with the signature it had in that
    // version, which is the one declared; and as above.
    let table = unsafe { Symbols::load(known) }.map_err(absent)?;
    Ok((table, version))
}

/// A function as `cuGetProcAddress` knows it.
fn ask_for(ask: GetProcAddress, symbol: &'static Symbol) -> Option<NonNull<c_void>> {
    let name = CString::new(symbol.name).ok()?;
    let (mut function, mut status) = (core::ptr::null_mut(), 0_u32);
    // SAFETY: the name ends with a zero, and the two places are our own.
    let code = unsafe {
        ask(
            name.as_ptr(),
            &raw mut function,
            symbol.version,
            proc_address::LEGACY_STREAM,
            &raw mut status,
        )
    };
    if code == Code::SUCCESS { NonNull::new(function) } else { None }
}

/// Why no driver can be used. A value, never a panic: most machines have no driver.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverMissing {
    /// None of the libraries could be loaded.
    Library {
        /// The vendor of the driver.
        vendor: &'static Vendor,
        /// The libraries tried, each with the system's error.
        tried: Vec<(String, String)>,
    },
    /// A library was loaded but lacks a required function.
    Function {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static Symbol,
    },
    /// The driver failed to start.
    Start {
        /// The vendor of the driver.
        vendor: &'static Vendor,
        /// The library.
        library: String,
        /// The failed call and its error code.
        refusal: DriverError,
    },
    /// The process has reached the limit of loaded libraries of this kind.
    TooMany {
        /// The vendor of the drivers.
        vendor: &'static Vendor,
        /// The limit.
        limit: usize,
    },
}

impl fmt::Display for DriverMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interface = match self {
            Self::Function { symbol, .. } => symbol.interface,
            Self::Library { vendor, .. }
            | Self::Start { vendor, .. }
            | Self::TooMany { vendor, .. } => vendor.interface,
        };
        write!(f, "no {} driver: ", interface.name)?;
        match self {
            Self::Library { vendor, tried } => {
                for (index, (library, reason)) in tried.iter().enumerate() {
                    let comma = if index == 0 { "tried " } else { ", " };
                    write!(f, "{comma}{library} ({reason})")?;
                }
                let Vendor { install, variable, .. } = vendor;
                write!(f, "; {install}, or name its library in {variable}, or use another device")
            }
            Self::Function { library, symbol } => write!(
                f,
                "{library} has no {}, which {} introduced; install a newer driver",
                symbol.name,
                symbol.since()
            ),
            Self::Start { vendor, library, refusal } => {
                let said = vendor.interface.describe(refusal.code);
                write!(f, "{library} does not start: {said}; {}", (vendor.cure)(refusal.code))
            }
            Self::TooMany { limit, .. } => {
                write!(f, "the process has loaded {limit} libraries, the most it can; name one")
            }
        }
    }
}

impl core::error::Error for DriverMissing {}

impl From<DriverMissing> for Error {
    fn from(missing: DriverMissing) -> Self {
        Self::Unsupported { call: Call::Open, missing: missing.to_string().into() }
    }
}
