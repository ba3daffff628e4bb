//! AMD's vendor description: how to find and load its library, and the words for its errors.

use forebay_cuda::DriverMissing;
use forebay_cuda::sys::{Code, Symbol};
use forebay_cuda::vendor::{Find, Loaded, RowsToHost, Unmaps, Vendor};
use forebay_hal::DeviceKind;

use crate::runtime::{MAX_LIBRARIES, Runtime, table_of};
use crate::sys::{self, HIP, values};

/// The environment variable that names a HIP library to use instead of the system's.
pub const HIP_DRIVER_VARIABLE: &str = "FOREBAY_HIP_DRIVER";

/// AMD's HIP runtime.
pub static AMD: Vendor = Vendor {
    kind: DeviceKind::Hip,
    interface: &HIP,
    libraries: &["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"],
    variable: HIP_DRIVER_VARIABLE,
    install: "install AMD's ROCm (its HIP runtime, libamdhip64)",
    unnamed: "an AMD device",
    module_version: "/sys/module/amdgpu/version",
    unmaps: Unmaps::One,
    rows_to_host: RowsToHost::OneByOne,
    cure,
    load,
};

/// What helps where `hipInit` answered so.
fn cure(code: Code) -> &'static str {
    match code {
        // ROCm 5.2 answers the second.
        Code::ERROR_NO_DEVICE | Code::ERROR_INVALID_DEVICE => {
            "there is no AMD device this process may see: load the module amdgpu, join the groups \
             render and video, and look at HIP_VISIBLE_DEVICES; a container needs /dev/kfd and \
             /dev/dri"
        }
        Code::HIP_INSUFFICIENT_DRIVER => {
            "the kernel's module is older than the library: install a newer amdgpu"
        }
        _ => "rocminfo tells more",
    }
}

/// Fills CUDA's table from HIP's library and starts the runtime.
///
/// # Safety
///
/// * As for [`Vendor::load`].
unsafe fn load(name: &str, find: Find<'_>) -> Loaded {
    let library = || name.to_owned();
    let by_name = |symbol: &'static Symbol| find(symbol.export);
    // SAFETY: a function's name is exported with the declared signature alone, or the translation takes the version into
    // account; the library is never unloaded.
    let table = unsafe { sys::Symbols::load(by_name) }
        .map_err(|symbol| DriverMissing::Function { library: library(), symbol })?;
    let stopped = |refusal| DriverMissing::Start { vendor: &AMD, library: library(), refusal };
    let mut version = 0;
    // SAFETY: flags must be 0, and the version is written to a place of our own.
    unsafe {
        table.init(0).map_err(stopped)?;
        table.driver_get_version(&raw mut version).map_err(stopped)?;
    }
    let version = values::version(version);
    let table = table_of(Runtime { table, version });
    let table = table.ok_or(DriverMissing::TooMany { vendor: &AMD, limit: MAX_LIBRARIES })?;
    Ok((table, version))
}
