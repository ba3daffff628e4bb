//! Python's buffer protocol, by hand.
//!
//! It is part of Python's stable interface from 3.11 on. In 3.10 the same names and numbers mean the same,
//! and its header leaves them out: so the bindings, which go by the header, do not have them for a library
//! that is to run on 3.10 too. The declarations here are those of 3.11.

use core::ffi::{CStr, c_char, c_int, c_void};

use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::ffi::PyObject;
use pyo3::intern;
use pyo3::prelude::*;

use crate::refusal::Refusal;

/// The slot of a type that shows its memory.
pub(crate) const SHOW: c_int = 1;
/// The slot of a type that is told that nobody looks any more.
pub(crate) const HIDE: c_int = 2;

/// Wants to write.
pub(crate) const WRITABLE: c_int = 0x1;
/// Wants the format.
pub(crate) const FORMAT: c_int = 0x4;
/// Wants the shape.
pub(crate) const SHAPE: c_int = 0x8;
/// Wants the strides, and so the shape.
pub(crate) const STRIDES: c_int = 0x10 | SHAPE;
/// Wants the first index to run fastest.
pub(crate) const FORTRAN: c_int = 0x40 | STRIDES;

/// Memory that an object shows.
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
    /// Fills in a view of an object's memory; -1 with an exception where it cannot.
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawView, flags: c_int) -> c_int;
    /// Ends a view.
    fn PyBuffer_Release(view: *mut RawView);
}

/// Memory of the host that an object of Python's shows in one piece, until this goes.
pub(crate) struct HostBytes<'py> {
    /// In a box: an object may keep the address of its view.
    view: Box<RawView>,
    _python: Python<'py>,
}

impl<'py> HostBytes<'py> {
    /// The memory of `object`, to be read; to be written too where that is asked for. Refused where it is
    /// not in one piece, and where its elements are references or addresses: bytes are copied, and a
    /// reference that is made of bytes ends the process.
    pub(crate) fn of(object: &Bound<'py, PyAny>, writable: bool) -> Result<Self, Refusal> {
        // With the shape, since some objects give no format to whoever asks for bytes in a row.
        let flags = SHAPE | if writable { WRITABLE } else { 0 };
        let bytes = match Self::shown(object, flags | FORMAT) {
            // Of some elements, as numpy's dates, the protocol has no name. numpy says itself whether
            // there are references in them.
            Err(_) if has_plain_dtype(object) => Self::shown(object, flags),
            shown => shown,
        };
        let bytes = bytes.map_err(|error| unshown(object, error))?;
        if bytes.is_plain() {
            return Ok(bytes);
        }
        let kind = object.get_type().name()?;
        Err(Refusal::invalid(format!(
            "the elements of this {kind} are references or addresses, which are good in this process \
             alone: copied are numbers and plain bytes"
        )))
    }

    /// The memory of `object` as it shows it for these flags.
    fn shown(object: &Bound<'py, PyAny>, flags: c_int) -> PyResult<Self> {
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
        // SAFETY: the object is live and Python's lock is held; the view is this value's own, and is ended
        // by its drop alone.
        let code = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if code != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        Ok(Self { view, _python: object.py() })
    }

    /// Whether its elements are numbers, characters or plain bytes.
    fn is_plain(&self) -> bool {
        if self.view.format.is_null() {
            return true;
        }
        // SAFETY: it is text that ends with a zero byte, as the protocol says, as long as the view lives.
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
        // SAFETY: the view was filled in, and is ended once; Python's lock is held, as the token says.
        unsafe { PyBuffer_Release(&raw mut *self.view) };
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

/// Whether an array of numpy's, or one like it, says that its elements have no references in them.
fn has_plain_dtype(object: &Bound<'_, PyAny>) -> bool {
    let dtype = object.getattr(intern!(object.py(), "dtype"));
    let answer = dtype.and_then(|dtype| dtype.getattr(intern!(object.py(), "hasobject")));
    answer.and_then(|answer| answer.extract::<bool>()).is_ok_and(|has| !has)
}

/// What an object raised that does not show its memory as it is needed: told as an error of forebay, with
/// the object's own as its cause. What shows no memory at all is the wrong type, and stays a `TypeError`.
fn unshown(object: &Bound<'_, PyAny>, error: PyErr) -> Refusal {
    let py = object.py();
    let ours = py.import("forebay.errors").and_then(|errors| errors.getattr("Error"));
    if ours.is_ok_and(|ours| error.matches(py, ours).unwrap_or(false)) {
        return error.into();
    }
    let said = error.value(py).to_string();
    let refusal = if error.is_instance_of::<PyBufferError>(py) {
        Refusal::Export(said)
    } else if error.is_instance_of::<PyValueError>(py) {
        Refusal::invalid(said)
    } else {
        return error.into();
    };
    let raised = PyErr::from(refusal);
    raised.set_cause(py, Some(error));
    raised.into()
}
