//! Lists the GPUs and the memory that all processes together use on each, through NVIDIA's management library, loaded
//! at run time. It needs no CUDA context and changes nothing.

use core::error::Error;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};

use libloading::Library;
use serde::Serialize;

/// Its name under Linux.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// Names another library instead.
pub(crate) const VARIABLE: &str = "FOREBAY_NVML";

/// More GPUs than a machine has.
const MAX_GPUS: c_uint = 64;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Gpu {
    pub(super) index: u32,
    pub(super) name: String,
    pub(super) total_bytes: u64,
    /// By all processes, and by the driver itself.
    pub(super) used_bytes: u64,
    /// How much of the last second or so something ran on it, in percent; `None` where the GPU does not tell.
    pub(super) busy_percent: Option<u32>,
}

type Status = c_int;
/// An `nvmlDevice_t`.
type Handle = *mut c_void;

#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
#[derive(Default)]
struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// The loaded library. It stays loaded and initialised until the program ends.
pub(super) struct Nvml {
    count: unsafe extern "C" fn(*mut c_uint) -> Status,
    handle: unsafe extern "C" fn(c_uint, *mut Handle) -> Status,
    name: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> Status,
    memory: unsafe extern "C" fn(Handle, *mut Memory) -> Status,
    utilization: unsafe extern "C" fn(Handle, *mut Utilization) -> Status,
    error: unsafe extern "C" fn(Status) -> *const c_char,
}

impl Nvml {
    /// Loads and initialises it; the reason where that fails.
    pub(super) fn load() -> Result<Self, String> {
        let name = std::env::var_os(VARIABLE).unwrap_or_else(|| LIBRARY.into());
        let missing = |error: libloading::Error| {
            let reason = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            // It names the library.
            format!("GPUs are not shown: {reason}")
        };
        // SAFETY: the library of this name is the driver's, or the user's choice, and its start-up code with it.
        let library = unsafe { Library::new(&name) }.map_err(missing)?;
        let library: &'static Library = Box::leak(Box::new(library));
        // SAFETY: the functions have these signatures in every version of the library; a new signature gets a new name.
        let (start, loaded) = unsafe {
            let start = *library
                .get::<unsafe extern "C" fn() -> Status>(b"nvmlInit_v2\0")
                .map_err(missing)?;
            let loaded = Self {
                count: *library.get(b"nvmlDeviceGetCount_v2\0").map_err(missing)?,
                handle: *library.get(b"nvmlDeviceGetHandleByIndex_v2\0").map_err(missing)?,
                name: *library.get(b"nvmlDeviceGetName\0").map_err(missing)?,
                memory: *library.get(b"nvmlDeviceGetMemoryInfo\0").map_err(missing)?,
                utilization: *library.get(b"nvmlDeviceGetUtilizationRates\0").map_err(missing)?,
                error: *library.get(b"nvmlErrorString\0").map_err(missing)?,
            };
            (start, loaded)
        };
        // SAFETY: it may be called at any time.
        let started = loaded.check("nvmlInit_v2", unsafe { start() });
        started.map(|()| loaded).map_err(|reason| format!("GPUs are not shown: {reason}"))
    }

    /// Why a call failed, if it did.
    fn check(&self, call: &str, status: Status) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: it may be called with any number; the text it gives is constant.
        let words = unsafe {
            let text = (self.error)(status);
            if text.is_null() { c"unknown" } else { CStr::from_ptr(text) }
        };
        Err(format!("{call}: {}", words.to_string_lossy()))
    }

    /// Every GPU now, and why one is missing. One that is lost takes no other with it.
    pub(super) fn gpus(&self) -> (Vec<Gpu>, Option<String>) {
        let (mut count, mut gpus) = (0, Vec::new());
        // SAFETY: the number is written to a place of our own.
        let counted = self.check("nvmlDeviceGetCount_v2", unsafe { (self.count)(&raw mut count) });
        let mut missing = counted.err().map(|reason| format!("GPUs are not shown: {reason}"));
        for index in 0..count.min(MAX_GPUS) {
            match self.gpu(index) {
                Ok(gpu) => gpus.push(gpu),
                Err(reason) => missing = Some(format!("GPU {index} is not shown: {reason}")),
            }
        }
        (gpus, missing)
    }

    fn gpu(&self, index: c_uint) -> Result<Gpu, String> {
        let mut handle: Handle = core::ptr::null_mut();
        // SAFETY: the handle is written to a place of our own.
        let got = unsafe { (self.handle)(index, &raw mut handle) };
        self.check("nvmlDeviceGetHandleByIndex_v2", got)?;
        let mut letters = [0_u8; 96];
        let room = c_uint::try_from(letters.len() - 1).unwrap_or(0);
        let mut memory = Memory::default();
        let mut utilization = Utilization::default();
        // SAFETY: the handle is the library's; each result is written to a place of our own, of the name at most as much
        // as there is room for.
        let (named, read, used) = unsafe {
            (
                (self.name)(handle, letters.as_mut_ptr().cast(), room),
                (self.memory)(handle, &raw mut memory),
                (self.utilization)(handle, &raw mut utilization),
            )
        };
        self.check("nvmlDeviceGetMemoryInfo", read)?;
        let name = CStr::from_bytes_until_nul(&letters).unwrap_or_default().to_string_lossy();
        Ok(Gpu {
            index,
            name: if named == 0 { name.into_owned() } else { String::new() },
            total_bytes: memory.total,
            used_bytes: memory.used,
            busy_percent: (used == 0).then_some(utilization.gpu),
        })
    }
}
