//! The CUDA driver behind the functions, the thread's device, and the macro every function is made with.

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use forebay_cuda::sys::{Code, Outcome, RawContext, Symbols};
use forebay_cuda::{CudaDriver, DriverMissing};

/// What a function answers.
pub(crate) type Answer = Result<(), Code>;

/// HIP 6.3, as `hipDriverGetVersion` counts.
const DEFAULT_VERSION: c_int = 60_342_134;

/// What a test has set.
#[derive(Debug, Default)]
struct Settings {
    version: Option<c_int>,
    library: Option<String>,
}

static SETTINGS: Mutex<Settings> = Mutex::new(Settings { version: None, library: None });

/// What is there once HIP has begun.
pub(crate) struct Runtime {
    pub(crate) table: &'static Symbols,
    /// As `hipDriverGetVersion` counts.
    pub(crate) version: c_int,
    /// The primary context of each device.
    contexts: Vec<RawContext>,
}

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

thread_local! {
    /// The thread's device.
    static DEVICE: Cell<c_int> = const { Cell::new(0) };
}

fn settings() -> MutexGuard<'static, Settings> {
    SETTINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sets the version of HIP, as `hipDriverGetVersion` counts, and the library of the CUDA driver. Before any other function.
///
/// # Safety
///
/// * `library` is null, for the one that `forebay-cuda` finds, or ends with a zero.
#[unsafe(no_mangle)]
unsafe extern "C" fn forebay_bridge_configure(version: c_int, library: *const c_char) {
    // SAFETY: as the caller promised.
    let name = || unsafe { CStr::from_ptr(library) }.to_string_lossy().into_owned();
    let library = (!library.is_null()).then(name);
    *settings() = Settings { version: Some(version), library };
}

/// The version that the environment chooses.
fn chosen_version() -> Option<c_int> {
    let text = std::env::var("FOREBAY_HIP_BRIDGE_VERSION").ok()?;
    let (major, minor) = text.split_once('.')?;
    let (major, minor): (c_int, c_int) = (major.parse().ok()?, minor.parse().ok()?);
    Some(major * 10_000_000 + minor * 100_000)
}

fn start() -> Result<Runtime, Code> {
    let settings = settings();
    let driver = match &settings.library {
        Some(library) => CudaDriver::load_from(library),
        None => CudaDriver::load(),
    };
    let driver = driver.map_err(|missing| match missing {
        DriverMissing::Start { refusal, .. } => refusal.code,
        _ => Code::ERROR_NO_DEVICE,
    })?;
    let table = driver.table();
    let mut count = 0;
    // SAFETY: a place of our own.
    unsafe { table.device_get_count(&raw mut count) }?;
    let mut contexts = Vec::new();
    for device in 0..count {
        let mut context = RawContext::NULL;
        // SAFETY: a place of our own, and a device that there is.
        unsafe { table.primary_context_retain(&raw mut context, device) }?;
        contexts.push(context);
    }
    let version = settings.version.or_else(chosen_version).unwrap_or(DEFAULT_VERSION);
    Ok(Runtime { table, version, contexts })
}

/// What is there; begins with it where nothing has yet.
pub(crate) fn runtime() -> Result<&'static Runtime, Code> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let started = start()?;
    Ok(RUNTIME.get_or_init(|| started))
}

impl Runtime {
    /// Whether structures and memory types are those from HIP 6 on.
    pub(crate) const fn is_wide(&self) -> bool {
        self.version >= 60_000_000
    }

    /// The thread's device.
    pub(crate) fn device(&self) -> c_int {
        DEVICE.get()
    }

    /// Makes a device current on this thread.
    pub(crate) fn set_device(&self, device: c_int) -> Answer {
        self.context(device)?;
        DEVICE.set(device);
        Ok(())
    }

    /// How many devices there are.
    pub(crate) fn device_count(&self) -> c_int {
        c_int::try_from(self.contexts.len()).unwrap_or(c_int::MAX)
    }

    /// The context of a device.
    pub(crate) fn context(&self, device: c_int) -> Result<RawContext, Code> {
        let context = usize::try_from(device).ok().and_then(|index| self.contexts.get(index));
        context.copied().ok_or(Code::ERROR_INVALID_DEVICE)
    }

    /// The device of a context.
    pub(crate) fn device_of(&self, context: RawContext) -> Result<c_int, Code> {
        let found = self.contexts.iter().position(|known| *known == context);
        found.and_then(|index| c_int::try_from(index).ok()).ok_or(Code::ERROR_INVALID_HANDLE)
    }

    /// Calls the CUDA driver in the context of the thread's device, and leaves the thread's context as it was.
    pub(crate) fn call(&self, call: impl FnOnce(&Symbols) -> Outcome) -> Answer {
        let (table, wanted, mut before) =
            (self.table, self.context(self.device())?, RawContext::NULL);
        // SAFETY: a place of our own.
        unsafe { table.context_get_current(&raw mut before) }?;
        if before == wanted {
            return Ok(call(table)?);
        }
        // SAFETY: a context that was retained for good.
        unsafe { table.context_push(wanted) }?;
        let answer = call(table);
        // SAFETY: undoes the push, into a place of our own. There is nobody to tell of a failure.
        let _ = unsafe { table.context_pop(&raw mut before) };
        Ok(answer?)
    }
}

/// The code that says what an answer says.
pub(crate) fn code(answer: Answer) -> Code {
    match answer {
        Ok(()) => Code::SUCCESS,
        // CUDA's driver is too old for it.
        Err(Code::MISSING) => Code::ERROR_NOT_SUPPORTED,
        Err(code) => code,
    }
}

/// Makes exported functions that call one of the CUDA driver's with the same arguments: `hipName = field(arguments);`.
macro_rules! same {
    ($($export:ident = $field:ident($($argument:ident: $type:ty),* $(,)?);)+) => {$(
        // SAFETY: the name is HIP's, and no other library of a test's exports it.
        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments, reason = "HIP chose how many")]
        unsafe extern "C" fn $export($($argument: $type),*) -> forebay_cuda::sys::Code {
            let answer = $crate::runtime::runtime().and_then(|runtime| {
                // SAFETY: what the caller promises of HIP's function is what CUDA's asks for.
                runtime.call(|table| unsafe { table.$field($($argument),*) })
            });
            $crate::runtime::code(answer)
        }
    )+};
}

/// Makes exported functions with a body that gives an [`Answer`]: `fn hipName(arguments) |runtime| { body }`.
macro_rules! exports {
    ($(
        fn $export:ident($($argument:ident: $type:ty),* $(,)?) |$runtime:ident| $body:block
    )+) => {$(
        // SAFETY: the name is HIP's, and no other library of a test's exports it.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $export($($argument: $type),*) -> forebay_cuda::sys::Code {
            let answer = |$runtime: &'static $crate::runtime::Runtime| -> $crate::runtime::Answer {
                $body
            };
            $crate::runtime::code($crate::runtime::runtime().and_then(answer))
        }
    )+};
}

pub(crate) use {exports, same};

/// Writes what a function gives through a pointer of the caller's.
///
/// # Safety
///
/// * `place` is null or a place for the value.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(Code::ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller promised.
    unsafe { place.write(value) };
    Ok(())
}
