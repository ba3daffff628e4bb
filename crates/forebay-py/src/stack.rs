//! Call stacks of Python programs: of a thread that holds the GIL, the lines of the program; of any other one, native
//! frames.
//!
//! A frame is two words: the number of its function's name in a table of the process, and the number of its line. The
//! table has text alone, so that a stack keeps nothing of the program alive, and is read without the GIL.

use core::ffi::c_int;
use core::num::NonZeroUsize;
use core::ptr;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use forebay::bindings::{
    Interpreter, has_room_for_stacks, is_capturing, set_interpreter, with_stack,
};
use forebay::report::Stack;
use forebay_sync::fork::ForkSafeMutex;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyString;

/// The most bytes that the names of functions and files take: those of about 80,000 functions.
const MAX_BYTES: usize = 16 << 20;

/// What a name takes beside its text: the counts of its `Arc` and the allocator's own words, the entry of the map, which
/// may be half empty, and that of the list.
const OVERHEAD: usize = 128;

static NAMES: ForkSafeMutex<Option<Names>> = ForkSafeMutex::new(None);

/// The names of functions with their files, each once.
#[derive(Default)]
struct Names {
    numbers: HashMap<Arc<str>, usize>,
    texts: Vec<Arc<str>>,
    bytes: usize,
}

impl Names {
    /// The number of a name; one that no name has if there is no room for it.
    fn intern(&mut self, text: &str, most: usize) -> usize {
        if let Some(&number) = self.numbers.get(text) {
            return number;
        }
        let bytes = text.len().saturating_add(OVERHEAD);
        if bytes > most.saturating_sub(self.bytes) {
            return usize::MAX;
        }
        let (number, text) = (self.texts.len(), Arc::<str>::from(text));
        self.bytes += bytes;
        self.texts.push(Arc::clone(&text));
        self.numbers.insert(text, number);
        number
    }

    fn text(&self, number: usize) -> &str {
        self.texts.get(number).map_or("(a function: the table of names is full)", |text| text)
    }
}

unsafe extern "C" {
    /// Whether the calling thread holds the GIL. Every Python has it, though the header of the stable ABI omits it.
    fn PyGILState_Check() -> c_int;
}

/// The state of the thread that holds the GIL, whichever that is.
type GilHolder = unsafe extern "C" fn() -> *mut ffi::PyThreadState;

/// Before Python 3.12 alone: with a sub-interpreter in the process, nothing of the stable ABI tells a thread there that
/// it does not hold the GIL.
static GIL_HOLDER: OnceLock<GilHolder> = OnceLock::new();

/// The attribute of a code object that is its name.
static NAME: OnceLock<&str> = OnceLock::new();

/// Lets captures of this process tell Python's frames; where it cannot be known who holds the GIL, they do not.
pub(crate) fn install(py: Python<'_>) {
    if py.version_info() < (3, 12) {
        let Ok(holder) = gil_holder(py) else { return };
        let _ = GIL_HOLDER.set(holder);
    }
    // Without its class before Python 3.11.
    let _ = NAME.set(if py.version_info() < (3, 11) { "co_name" } else { "co_qualname" });
    set_interpreter(Interpreter { capture, name });
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
pub(crate) fn holds_gil() -> bool {
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
    let mut text = String::new();
    // A stack that is not kept needs no names; one that is kept already has them.
    let max_bytes = if has_room_for_stacks() { MAX_BYTES } else { 0 };
    // SAFETY: the thread holds the GIL. Each reference that is made here is released. An exception that is on its way while
    // a library allocates stays what it is.
    unsafe {
        let py = Python::assume_attached();
        let (mut kind, mut value, mut trace) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        ffi::PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut trace);
        let mut frame: *mut PyObject = ffi::PyEval_GetFrame().cast();
        ffi::Py_XINCREF(frame);
        for _ in 0..most {
            if frame.is_null() || frame == ffi::Py_None() {
                break;
            }
            let code = Bound::from_owned_ptr(py, ffi::PyFrame_GetCode(frame.cast()).cast());
            text.clear();
            name_code(&code, &mut text);
            frames.push(NAMES.lock().get_or_insert_default().intern(&text, max_bytes));
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

/// Adds the name and the file of a code object.
fn name_code(code: &Bound<'_, PyAny>, text: &mut String) {
    for (attribute, between) in
        [(NAME.get().copied().unwrap_or("co_name"), " "), ("co_filename", "")]
    {
        let found = code.getattr(attribute);
        if let Some(found) = found.as_ref().ok().and_then(|found| found.cast::<PyString>().ok()) {
            text.push_str(&found.to_string_lossy());
        }
        text.push_str(between);
    }
}

fn name(frames: &[usize]) -> String {
    let names = NAMES.lock();
    let Some(names) = names.as_ref() else { return String::new() };
    let frames = frames.as_chunks::<2>().0.iter();
    let lines: Vec<String> =
        frames.map(|&[number, line]| format!("{}:{line}", names.text(number))).collect();
    lines.join("\n")
}
