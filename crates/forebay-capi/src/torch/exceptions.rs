//! C++ exceptions of PyTorch, which it expects from an allocator without memory.
//!
//! PyTorch's global allocator uses whatever a pluggable allocator returns as memory, null too. So a failure must
//! be thrown: `c10::OutOfMemoryError`, which becomes `torch.OutOfMemoryError` in Python, or `c10::Error`,
//! which becomes `RuntimeError`. Building this needs no C++: the vtables, a
//! constructor and the throw function are looked up by name in the library that PyTorch has loaded, and an
//! exception is constructed from them as a compiler would:
//!
//! ```text
//!   __cxa_allocate_exception ── c10::Error(SourceLocation, std::string) ── the class's vtable ── __cxa_throw
//! ```
//!
//! A mangled name includes the parameter types: where PyTorch changes them, the name is not found and nothing is
//! installed.

use core::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

use libloading::Library;

use crate::error::{catch_panic, set_last_error};

/// The size of an exception: `c10::Error` has 128 bytes, and fields that a later version adds fit as well.
const EXCEPTION_SIZE: usize = 1024;

/// The first two words of a vtable are not functions; objects point behind them.
const VTABLE_HEAD: usize = 2;

/// The capacity of a `std::string`'s inline buffer in libstdc++.
const INLINE_CAPACITY: usize = 15;

/// `c10::SourceLocation`.
#[repr(C)]
struct Location {
    function: *const c_char,
    file: *const c_char,
    line: u32,
}

/// `std::string` of libstdc++, since 2015.
#[repr(C)]
struct Text {
    at: *mut u8,
    length: usize,
    /// The characters of a short string, or the capacity of a long one.
    within: [u8; INLINE_CAPACITY + 1],
}

type Construct = unsafe extern "C-unwind" fn(*mut c_void, Location, *mut Text);
type Destroy = unsafe extern "C-unwind" fn(*mut c_void);
type AllocateException = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type Throw = unsafe extern "C-unwind" fn(*mut c_void, *const c_void, Option<Destroy>) -> !;
type New = unsafe extern "C-unwind" fn(usize) -> *mut c_void;
type Delete = unsafe extern "C-unwind" fn(*mut c_void);

/// An exception class.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// Its `std::type_info`.
    type_info: *const c_void,
    /// Its vtable, whose first function destroys an object.
    table: *const *const c_void,
}

/// The functions and classes of C++ that throwing needs.
#[derive(Debug)]
struct CxxRuntime {
    out_of_memory: Class,
    error: Class,
    construct: Construct,
    allocate_exception: AllocateException,
    throw: Throw,
    new: New,
    delete: Delete,
    /// The library that has them. Never closed.
    _library: Library,
}

// SAFETY: these are functions and constants of a library that is never unloaded; any thread may use them.
unsafe impl Send for CxxRuntime {}
// SAFETY: likewise.
unsafe impl Sync for CxxRuntime {}

static RUNTIME: OnceLock<CxxRuntime> = OnceLock::new();

/// Which exception is thrown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExceptionKind {
    /// `torch.OutOfMemoryError`: there is no memory.
    OutOfMemory,
    /// `RuntimeError`: anything else.
    Error,
}

/// Whether throwing is possible.
pub(super) fn can_throw() -> bool {
    RUNTIME.get().is_some()
}

/// Looks up in the library at `path`, which PyTorch has loaded, what it takes to throw its errors.
/// Gives 0, or -1 with the reason in [`forebay_last_error`](crate::error::forebay_last_error).
///
/// # Safety
///
/// * `path` is text that ends with a zero byte: where PyTorch's `libtorch_python.so` lies, or another
///   library that has its classes of errors or depends on one that does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_errors_from(path: *const c_char) -> c_int {
    catch_panic(-1, || {
        if path.is_null() {
            set_last_error(&"no path was given: where PyTorch's libtorch_python.so lies is needed");
            return -1;
        }
        // SAFETY: as the caller promised.
        let path = unsafe { CStr::from_ptr(path) }.to_string_lossy().into_owned();
        if RUNTIME.get().is_some() {
            return 0;
        }
        match load_runtime(Path::new(&path)) {
            Ok(runtime) => {
                let _ = RUNTIME.set(runtime);
                0
            }
            Err(reason) => {
                set_last_error(&reason);
                -1
            }
        }
    })
}

fn load_runtime(path: &Path) -> Result<CxxRuntime, String> {
    let broken = |error: &dyn core::fmt::Display| {
        format!(
            "PyTorch's errors cannot be thrown from {}, so that a request without memory could not be \
             refused: {error}",
            path.display()
        )
    };
    // SAFETY: the library is loaded already, as the caller of the entry point promised: nothing of it
    // runs now.
    let library = unsafe { Library::new(path) }.map_err(|error| broken(&error))?;
    let word = |name: &str| -> Result<*const c_void, String> {
        // SAFETY: the value is the symbol's address and nothing else is done with it here.
        let found = unsafe { library.get::<*const c_void>(name.as_bytes()) };
        // The system's own words name it, but not on every system.
        found.map(|symbol| *symbol).map_err(|_| {
            broken(&format_args!(
                "it has no {name}, nor has what it depends on; another version of PyTorch may"
            ))
        })
    };
    let class = |name: &str| -> Result<Class, String> {
        let table = word(&format!("_ZTV{name}"))?.cast::<*const c_void>();
        Ok(Class {
            type_info: word(&format!("_ZTI{name}"))?,
            table: table.wrapping_add(VTABLE_HEAD),
        })
    };
    let construct = word(
        "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
    )?;
    let (out_of_memory, error) = (class("N3c1016OutOfMemoryErrorE")?, class("N3c105ErrorE")?);
    let allocate_exception = word("__cxa_allocate_exception")?;
    let (throw, new, delete) = (word("__cxa_throw")?, word("_Znwm")?, word("_ZdlPv")?);
    // SAFETY: each is the function of that name, and the name of a function of C++ says what it takes.
    unsafe {
        Ok(CxxRuntime {
            out_of_memory,
            error,
            construct: core::mem::transmute::<*const c_void, Construct>(construct),
            allocate_exception: core::mem::transmute::<*const c_void, AllocateException>(
                allocate_exception,
            ),
            throw: core::mem::transmute::<*const c_void, Throw>(throw),
            new: core::mem::transmute::<*const c_void, New>(new),
            delete: core::mem::transmute::<*const c_void, Delete>(delete),
            _library: library,
        })
    }
}

/// Throws this thread's last error. Returns where throwing is not possible.
///
/// The frames between here and C++ must have no destructors to run and must not catch panics: a C++ exception is
/// no panic.
pub(super) fn throw_last_error(kind: ExceptionKind) {
    let Some(runtime) = RUNTIME.get() else { return };
    // SAFETY: the text ends with a zero byte, and nothing that fails comes between here and its copy.
    let said = unsafe { CStr::from_ptr(crate::error::forebay_last_error()) }.to_bytes();
    match kind {
        // Programs that retry with less memory look for these words.
        ExceptionKind::OutOfMemory => {
            let rest = said.strip_prefix(b"out of memory: ").unwrap_or(said);
            runtime.throw(kind, [b"CUDA out of memory. ", rest]);
        }
        ExceptionKind::Error => runtime.throw(kind, [b"", said]),
    }
}

impl CxxRuntime {
    /// Throws an exception whose message is the two parts joined.
    fn throw(&self, kind: ExceptionKind, [first, second]: [&[u8]; 2]) -> ! {
        let length = first.len() + second.len();
        let class = match kind {
            ExceptionKind::OutOfMemory => self.out_of_memory,
            ExceptionKind::Error => self.error,
        };
        let location =
            Location { function: c"forebay".as_ptr(), file: c"forebay".as_ptr(), line: 0 };
        // Neither class adds a field to `c10::Error`. The exception becomes one of its class by the class's
        // table, as a constructor leaves it; the first function there destroys it.
        // SAFETY: the functions are called as their names say, and the exception has room for any object of
        // the class. The string is made as libstdc++ makes one, from memory of `operator new`, and what the
        // constructor leaves of it is destroyed here.
        unsafe {
            let exception = (self.allocate_exception)(EXCEPTION_SIZE);
            core::ptr::write_bytes(exception.cast::<u8>(), 0, EXCEPTION_SIZE);
            let mut text =
                Text { at: core::ptr::null_mut(), length, within: [0; INLINE_CAPACITY + 1] };
            text.at = if length > INLINE_CAPACITY {
                text.within[..size_of::<usize>()].copy_from_slice(&length.to_ne_bytes());
                (self.new)(length + 1).cast::<u8>()
            } else {
                text.within.as_mut_ptr()
            };
            core::ptr::copy_nonoverlapping(first.as_ptr(), text.at, first.len());
            let rest = text.at.add(first.len());
            core::ptr::copy_nonoverlapping(second.as_ptr(), rest, second.len());
            text.at.add(length).write(0);
            (self.construct)(exception, location, &raw mut text);
            if !core::ptr::eq(text.at, text.within.as_ptr()) {
                (self.delete)(text.at.cast());
            }
            exception.cast::<*const *const c_void>().write(class.table);
            let destroy = core::mem::transmute::<*const c_void, Destroy>(class.table.read());
            (self.throw)(exception, class.type_info, Some(destroy))
        }
    }
}
