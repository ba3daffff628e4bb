//! Python's buffer protocol, by hand.
//!
//! It is part of Python's stable ABI since 3.11. Python 3.10 has the same symbols and numbers, but its header
//! omits them under the stable ABI, and so does PyO3 for a library that supports 3.10. The declarations here
//! are those of 3.11.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::mem::ManuallyDrop;

use forebay::bindings::host_vec;
use forebay::hal::Call;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;

use crate::failure::Failure;

/// `Py_bf_getbuffer`: the slot that exports a buffer.
pub(crate) const GET_BUFFER: c_int = 1;
/// `Py_bf_releasebuffer`: the slot that releases an export.
pub(crate) const RELEASE_BUFFER: c_int = 2;

/// The consumer writes.
pub(crate) const WRITABLE: c_int = 0x1;
/// The consumer needs the format.
pub(crate) const FORMAT: c_int = 0x4;
/// The consumer needs the shape.
pub(crate) const SHAPE: c_int = 0x8;
/// The consumer needs the strides, and so the shape.
pub(crate) const STRIDES: c_int = 0x10 | SHAPE;
/// The consumer needs the first index to run fastest.
pub(crate) const FORTRAN: c_int = 0x40 | STRIDES;

/// `Py_buffer`: memory that an object exports.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct RawView {
    pub(crate) start: *mut c_void,
    pub(crate) owner: *mut PyObject,
    pub(crate) length: isize,
    pub(crate) item_size: isize,
    pub(crate) read_only: c_int,
    pub(crate) dimensions: c_int,
    pub(crate) format: *mut c_char,
    pub(crate) shape: *mut isize,
    pub(crate) strides: *mut isize,
    pub(crate) suboffsets: *mut isize,
    pub(crate) internal: *mut c_void,
}

unsafe extern "C" {
    /// Fills in a view of an object's memory; -1 with an exception on failure.
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawView, flags: c_int) -> c_int;
    /// Ends a view.
    fn PyBuffer_Release(view: *mut RawView);
}

/// Contiguous host memory that a Python object exports, released when this is dropped.
pub(crate) struct HostBytes<'py> {
    /// Boxed, since an object may keep the address of its view.
    view: Box<RawView>,
    _python: Python<'py>,
}

impl<'py> HostBytes<'py> {
    /// The memory of `object` for reading, or for writing too. An error where it is not contiguous, and where
    /// its elements are references or addresses: copying the bytes of a reference crashes the process.
    pub(crate) fn of(object: &Bound<'py, PyAny>, writable: bool) -> Result<Self, Failure> {
        // With the shape, since some objects give no format to a consumer that asks for no shape.
        let flags = SHAPE | if writable { WRITABLE } else { 0 };
        let bytes = match Self::get(object, flags | FORMAT) {
            // The protocol has no format for some elements, such as numpy's dates. numpy tells whether they
            // contain references.
            Err(_) if has_plain_dtype(object) => Self::get(object, flags),
            exported => exported,
        };
        let bytes = bytes.map_err(|error| export_failure(object, error, writable))?;
        if bytes.is_plain() {
            return Ok(bytes);
        }
        let kind = object.get_type().name()?;
        Err(Failure::invalid(format!(
            "the elements of this {kind} are references or addresses, which only this process can use; \
             only numbers and plain bytes can be copied"
        )))
    }

    /// A copy of the bytes.
    pub(crate) fn copied(&self) -> Result<Vec<u8>, Failure> {
        let length = usize::try_from(self.length()).unwrap_or(0);
        if length == 0 {
            return Ok(Vec::new());
        }
        // SAFETY: the object exports that many bytes until this is dropped, and the GIL is held, so that no other
        // thread of Python writes them.
        let bytes = unsafe { core::slice::from_raw_parts(self.start(), length) };
        Ok(host_vec::copied(bytes, Call::Copy)?)
    }

    /// Replaces the bytes, of an object that was exported for writing, by as many of `from`.
    pub(crate) fn fill_from(&self, from: &[u8]) {
        let length = from.len().min(usize::try_from(self.length()).unwrap_or(0));
        if length > 0 && self.view.read_only == 0 {
            // SAFETY: the object exports that many bytes to be written until this is dropped, and the GIL is held, so
            // that no other thread of Python uses them.
            unsafe { core::ptr::copy(from.as_ptr(), self.start(), length) };
        }
    }

    /// The memory of `object` as exported for these flags.
    fn get(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(RawView {
            start: core::ptr::null_mut(),
            owner: core::ptr::null_mut(),
            length: 0,
            item_size: 0,
            read_only: 0,
            dimensions: 0,
            format: core::ptr::null_mut(),
            shape: core::ptr::null_mut(),
            strides: core::ptr::null_mut(),
            suboffsets: core::ptr::null_mut(),
            internal: core::ptr::null_mut(),
        });
        // SAFETY: the object is live and the GIL is held; this value owns the view, and only its drop releases
        // it.
        let code = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if code != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self { view, _python: object.py() })
    }

    /// The memory beyond the call.
    pub(crate) fn hold(self) -> HeldBytes {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: `this` is neither used again nor dropped, so the view is moved once.
        HeldBytes(unsafe { core::ptr::read(&raw mut this.view) })
    }

    /// Whether its elements are numbers, characters or plain bytes.
    fn is_plain(&self) -> bool {
        if self.view.format.is_null() {
            return true;
        }
        // SAFETY: by the protocol it is a C string that lives as long as the view.
        is_plain(unsafe { CStr::from_ptr(self.view.format) }.to_bytes())
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> *mut u8 {
        self.view.start.cast()
    }

    /// How many bytes.
    pub(crate) fn length(&self) -> u64 {
        u64::try_from(self.view.length).unwrap_or(0)
    }
}

impl Drop for HostBytes<'_> {
    fn drop(&mut self) {
        // SAFETY: the view was filled in and is released once; the token proves that the GIL is held.
        unsafe { PyBuffer_Release(&raw mut *self.view) };
    }
}

/// Host memory that a Python object exports, beyond the call that asked for it.
pub(crate) struct HeldBytes(Box<RawView>);

// SAFETY: the view is used in the drop alone, with the GIL held.
unsafe impl Send for HeldBytes {}
// SAFETY: nothing can be done with a shared one.
unsafe impl Sync for HeldBytes {}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        // While the interpreter shuts down it is leaked.
        Python::try_attach(|_| {
            // SAFETY: the view was filled in and is released once, with the GIL held.
            unsafe { PyBuffer_Release(&raw mut *self.0) };
        });
    }
}

/// Whether a format of the buffer protocol has no references to objects and no addresses in it: `O`, `P`,
/// `z` and `Z` (texts of C, while `Zf` and its kin are complex numbers), `&` and `X` (functions).
fn is_plain(format: &[u8]) -> bool {
    let mut letters = format.iter().copied().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // The name of a field, up to the next colon.
            b':' => letters.by_ref().take_while(|&letter| letter != b':').for_each(drop),
            b'Z' if matches!(letters.peek(), Some(b'f' | b'd' | b'g')) => {}
            b'O' | b'P' | b'z' | b'Z' | b'&' | b'X' => return false,
            _ => {}
        }
    }
    true
}

/// Whether a numpy array, or an object like one, tells that its elements contain no references.
fn has_plain_dtype(object: &Bound<'_, PyAny>) -> bool {
    let dtype = object.getattr(intern!(object.py(), "dtype"));
    let answer = dtype.and_then(|dtype| dtype.getattr(intern!(object.py(), "hasobject")));
    answer.and_then(|answer| answer.extract::<bool>()).is_ok_and(|has| !has)
}

/// The error of an object that does not export its memory as needed: an error of forebay, caused by the
/// object's own. An object without the buffer protocol is the wrong type, and its `TypeError` stays.
fn export_failure(object: &Bound<'_, PyAny>, error: PyErr, writable: bool) -> Failure {
    let py = object.py();
    let ours = py.import("forebay.errors").and_then(|errors| errors.getattr("Error"));
    if ours.is_ok_and(|ours| error.matches(py, ours).unwrap_or(false)) {
        return error.into();
    }
    let mut said = error.value(py).to_string();
    if said.contains("contiguous") {
        said.push_str(if writable {
            "; download into memory that is, and assign that: target[...] = x.download()"
        } else {
            "; numpy.ascontiguousarray() makes a copy that is contiguous"
        });
    }
    let failure = if error.is_instance_of::<PyBufferError>(py) {
        Failure::export(said)
    } else if error.is_instance_of::<PyValueError>(py) {
        Failure::invalid(said)
    } else {
        return error.into();
    };
    let raised = PyErr::from(failure);
    raised.set_cause(py, Some(error));
    raised.into()
}
