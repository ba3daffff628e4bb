//! Sizes, as Python says them: a whole number of bytes, or a text as "512MiB".

use core::time::Duration;
use std::str::FromStr;

use forebay::Bytes;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyString};
use pyo3::{Borrowed, FromPyObject};

use crate::refusal::Refusal;

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
        let refused = || {
            let given = given.repr().map_or_else(|_| "it".to_owned(), |text| text.to_string());
            Refusal::invalid(format!(
                "a size cannot be {given}: allowed are whole numbers of bytes from 0 to 2**64 - 1, and \
                 texts as \"512MiB\" or \"1.5GiB\""
            ))
        };
        if let Ok(text) = given.cast::<PyString>() {
            let bytes = Bytes::from_str(text.to_str()?).map_err(|_| refused())?;
            return Ok(Self(bytes));
        }
        // True is a number in Python, and never a size.
        if given.cast::<PyBool>().is_ok() {
            return Err(refused().into());
        }
        let bytes: u64 = given.extract().map_err(|_| refused())?;
        Ok(Self(Bytes::new(bytes)))
    }
}

/// A time from a number of seconds.
pub(crate) fn seconds(given: f64) -> Result<Duration, Refusal> {
    Duration::try_from_secs_f64(given)
        .map_err(|_| Refusal::invalid(format!("a time cannot be {given} s: 0 or more is allowed")))
}
