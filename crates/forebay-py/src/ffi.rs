//! Python's buffer protocol, by hand.
//!
//! It is part of Python's stable interface from 3.11 on. In 3.10 the same names and numbers mean the same,
//! and its header leaves them out: so the bindings, which go by the header, do not have them for a library
//! that is to run on 3.10 too. The declarations here are those of 3.11.

use core::ffi::{c_char, c_int, c_void};

use pyo3::ffi::PyObject;
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
    /// The memory of `object`, to be read; to be written too where that is asked for.
    pub(crate) fn of(object: &Bound<'py, PyAny>, writable: bool) -> Result<Self, Refusal> {
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
        let flags = if writable { WRITABLE } else { 0 };
        // SAFETY: the object is live and Python's lock is held; the view is this value's own, and is ended
        // by its drop alone.
        let code = unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) };
        if code != 0 {
            return Err(PyErr::fetch(object.py()).into());
        }
        Ok(Self { view, _python: object.py() })
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
