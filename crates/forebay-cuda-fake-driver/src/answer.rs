//! From the contract's errors to the driver's codes, and the macro every function is made with.

use cudarc::driver::sys::CUresult;
use forebay_hal::Error;

/// What a function gives.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// A function as `cuGetProcAddress` finds it.
pub(crate) struct Export {
    /// The name it is asked by.
    pub(crate) name: &'static str,
    /// The version that brought it.
    pub(crate) version: i32,
    /// Where it is.
    pub(crate) address: *const (),
}

// SAFETY: the address of a function is the same for every thread.
unsafe impl Sync for Export {}

/// The code that says what the contract's error says.
pub(crate) fn code(error: &Error) -> CUresult {
    match error {
        Error::OutOfMemory { .. } => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        Error::Lost { .. } => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        Error::Unsupported { .. } => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        Error::Transient { .. } => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        Error::Busy { .. } => CUresult::CUDA_ERROR_NOT_READY,
        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

/// The code of a result of the simulated device's.
pub(crate) fn said<T>(result: forebay_hal::Result<T>) -> Answer<T> {
    result.map_err(|error| code(&error))
}

/// Writes what a function gives through a pointer of the caller's.
///
/// # Safety
///
/// * `place` is null or a place for the value.
pub(crate) unsafe fn put<T>(place: *mut T, value: T) -> Answer {
    if place.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: as the caller promised.
    unsafe { place.write(value) };
    Ok(())
}

/// Makes exported functions: `"name asked by" version fn exported_name(arguments) { body }`, where
/// the body gives an [`Answer`].
macro_rules! exports {
    ($(
        $name:literal $version:literal
        fn $export:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )+) => {
        /// The functions of this file.
        pub(crate) static EXPORTS: &[$crate::answer::Export] = &[$(
            $crate::answer::Export {
                name: $name,
                version: $version,
                address: $export as *const (),
            },
        )+];

        $(
            // SAFETY: the name is CUDA's, and no other library of a test's exports it.
            #[unsafe(no_mangle)]
            #[allow(clippy::too_many_arguments, reason = "CUDA chose how many")]
            unsafe extern "C" fn $export($($argument: $type),*) -> cudarc::driver::sys::CUresult {
                let answer = || -> $crate::answer::Answer { $body };
                match $crate::control::before($name).and_then(|()| answer()) {
                    Ok(()) => cudarc::driver::sys::CUresult::CUDA_SUCCESS,
                    Err(code) => code,
                }
            }
        )+
    };
}

pub(crate) use exports;
