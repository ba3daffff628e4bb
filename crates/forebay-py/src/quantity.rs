//! Numbers as Python passes them: sizes (bytes, or a text such as "512MiB"), integers and seconds.

use core::time::Duration;
use std::str::FromStr;

use forebay::Bytes;
use forebay::bindings::host_vec;
use forebay::hal::Call;
use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use pyo3::{Borrowed, FromPyObject, intern};

use crate::failure::{Failure, shown};

/// A number of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size(Bytes);

impl Size {
    /// The bytes.
    pub(crate) fn bytes(self) -> Bytes {
        self.0
    }
}

impl<'a, 'py> FromPyObject<'a, 'py> for Size {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let said = || {
            let given = shown(&given);
            format!(
                "a size cannot be {given}: expected a whole number of bytes from 0 to 2**64 - 1, or a \
                 string such as \"512MiB\" or \"1.5GiB\""
            )
        };
        if let Ok(text) = given.cast::<PyString>() {
            let bytes = Bytes::from_str(text.to_str()?).map_err(|_| Failure::invalid(said()))?;
            return Ok(Self(bytes));
        }
        // True is an int in Python, but never a size.
        let index = given.hasattr(intern!(given.py(), "__index__"))?;
        if !index || given.cast::<PyBool>().is_ok() {
            return Err(Failure::wrong_type(said()).into());
        }
        let refused = || Failure::invalid(said());
        let bytes: u64 = given.extract().map_err(|_| refused())?;
        Ok(Self(Bytes::new(bytes)))
    }
}

/// An unsigned integer argument. One out of range is an `InvalidError`, where PyO3 would raise `OverflowError`; what is
/// no integer stays a `TypeError`.
pub(crate) fn integer<'py, T>(given: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: FromPyObjectOwned<'py>,
{
    let py = given.py();
    given.extract::<T>().map_err(|error| {
        let error: PyErr = error.into();
        if !error.is_instance_of::<PyOverflowError>(py) {
            return error;
        }
        let given = shown(given);
        let most = u64::MAX >> (u64::BITS as usize - 8 * size_of::<T>());
        Failure::invalid(format!("{given} is out of range: expected 0 to {most}")).into()
    })
}

/// The items of a sequence. PyO3 aborts where there is no memory for as many as the sequence says, such as `range(2**50)`.
pub(crate) fn items<'py, T: FromPyObjectOwned<'py>>(given: &Bound<'py, PyAny>) -> PyResult<Vec<T>> {
    if given.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err("expected several items, not a string"));
    }
    let length = given.len()?;
    let mut items = host_vec::with_capacity(length, Call::Allocate).map_err(Failure::from)?;
    for item in given.try_iter()?.take(length) {
        items.push(item?.extract().map_err(Into::into)?);
    }
    Ok(items)
}

/// An integer argument that may be `None`.
pub(crate) fn optional_integer<'py, T>(given: &Bound<'py, PyAny>) -> PyResult<Option<T>>
where
    T: FromPyObjectOwned<'py>,
{
    if given.is_none() { Ok(None) } else { integer(given).map(Some) }
}

/// A time from a number of seconds.
pub(crate) fn seconds(given: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(given)
        .map_err(|_| Failure::invalid(format!("a time cannot be {given} s: expected 0 or more")))
}
