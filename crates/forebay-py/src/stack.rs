//! Call stacks of Python programs: of a thread that holds the GIL, the lines of the program; of any other one, native
//! frames.
//!
//! A frame is two words: its code object, which is never freed once a stack with it is kept, and the number of its line.
//! They are named when somebody reads the stack, for which that thread waits for the GIL.

use core::ffi::c_int;
use core::num::NonZeroUsize;
use core::ptr;
use std::sync::OnceLock;

use forebay::bindings::{Interpreter, is_capturing, set_interpreter, with_stack};
use forebay::report::Stack;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;

unsafe extern "C" {
    /// Whether the calling thread holds the GIL. Every Python has it, though the header of the stable ABI omits it.
    fn PyGILState_Check() -> c_int;
}

/// The state of the thread that holds the GIL, whichever that is.
type GilHolder = unsafe extern "C" fn() -> *mut ffi::PyThreadState;

/// Before Python 3.12 alone: with a sub-interpreter in the process, nothing of the stable ABI tells a thread there that
/// it does not hold the GIL.
static GIL_HOLDER: OnceLock<GilHolder> = OnceLock::new();

/// Lets captures of this process tell Python's frames; where it cannot be known who holds the GIL, they do not.
pub(crate) fn install(py: Python<'_>) {
    if py.version_info() < (3, 12) {
        let Ok(holder) = gil_holder(py) else { return };
        let _ = GIL_HOLDER.set(holder);
    }
    set_interpreter(Interpreter { capture, keep, name });
}

fn gil_holder(py: Python<'_>) -> PyResult<GilHolder> {
    let ctypes = py.import("ctypes")?;
    let function = ctypes.getattr("pythonapi")?.getattr("_PyThreadState_UncheckedGet")?;
    let pointer = ctypes.call_method1("cast", (function, ctypes.getattr("c_void_p")?))?;
    let address: NonZeroUsize = pointer.getattr("value")?.extract()?;
    let function = ptr::with_exposed_provenance::<()>(address.get());
    // SAFETY: the address of that function of Python's, which has no parameters and stays as long as the process.
    Ok(unsafe { core::mem::transmute::<*const (), GilHolder>(function) })
}

/// Does `work` with the GIL released. Stacks that it captures are those of the program, as they are now.
pub(crate) fn detach<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let stack = if is_capturing() { Stack::capture() } else { Stack::NONE };
    py.detach(|| with_stack(stack, work))
}

/// The lines of a stack, the innermost first; `None` of none.
pub(crate) fn lines(stack: Stack) -> Option<Vec<String>> {
    (!stack.is_none()).then(|| stack.to_string().lines().map(str::to_owned).collect())
}

/// Whether this thread may use Python's objects.
fn holds_gil() -> bool {
    // SAFETY: any thread may ask at any time. Where other interpreters run in this process, the check says yes to every
    // thread; since Python 3.12, a thread without the GIL has no dictionary then.
    unsafe {
        let own = ffi::PyGILState_GetThisThreadState();
        !own.is_null()
            && match GIL_HOLDER.get() {
                Some(holder) => holder() == own,
                None => PyGILState_Check() == 1 && !ffi::PyThreadState_GetDict().is_null(),
            }
    }
}

fn capture(frames: &mut Vec<usize>, most: usize) {
    if !holds_gil() {
        return;
    }
    // SAFETY: the thread holds the GIL. Each reference that is made here is released: that of a code object at once, as
    // its frame keeps it. An exception that is on its way while a library allocates stays what it is.
    unsafe {
        let (mut kind, mut value, mut trace) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        ffi::PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut trace);
        let mut frame: *mut PyObject = ffi::PyEval_GetFrame().cast();
        ffi::Py_XINCREF(frame);
        for _ in 0..most {
            if frame.is_null() || frame == ffi::Py_None() {
                break;
            }
            let code: *mut PyObject = ffi::PyFrame_GetCode(frame.cast()).cast();
            frames.push(code.expose_provenance());
            ffi::Py_XDECREF(code);
            let line = ffi::PyFrame_GetLineNumber(frame.cast());
            frames.push(usize::try_from(line).unwrap_or(0));
            let back = ffi::PyObject_GetAttrString(frame, c"f_back".as_ptr());
            ffi::Py_DECREF(frame);
            frame = back;
        }
        ffi::Py_XDECREF(frame);
        ffi::PyErr_Restore(kind, value, trace);
    }
}

fn code_of(word: usize) -> *mut PyObject {
    ptr::with_exposed_provenance_mut(word)
}

fn keep(frames: &[usize]) {
    for &[code, _] in frames.as_chunks::<2>().0 {
        // SAFETY: called where the stack was captured, by a thread that holds the GIL and whose frames have the code.
        unsafe { ffi::Py_XINCREF(code_of(code)) };
    }
}

fn name(frames: &[usize]) -> String {
    let named = Python::try_attach(|py| {
        let mut lines = Vec::new();
        for &[code, line] in frames.as_chunks::<2>().0 {
            // SAFETY: `keep` keeps the code object, and the thread is attached.
            let code = unsafe { Bound::from_borrowed_ptr_or_opt(py, code_of(code)) };
            let Some(code) = code else { continue };
            // Without its class before Python 3.11.
            let name = code.getattr("co_qualname").or_else(|_| code.getattr("co_name"));
            let file = code.getattr("co_filename");
            if let (Ok(name), Ok(file)) = (name, file) {
                lines.push(format!("{name} {file}:{line}"));
            }
        }
        lines.join("\n")
    });
    // The interpreter is gone, and its names with it.
    named.unwrap_or_default()
}
