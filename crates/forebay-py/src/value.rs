//! Serialisable data as Python objects: dictionaries, lists, numbers, texts.

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;

/// A dictionary with these entries.
macro_rules! dict {
    ($py:expr, { $($name:literal: $value:expr,)* }) => {{
        let dict = pyo3::types::PyDict::new($py);
        $(dict.set_item($name, $value)?;)*
        dict
    }};
}

pub(crate) use dict;

/// The objects that Python's `json.loads` would make of the data's JSON.
pub(crate) fn to_python<'py>(
    py: Python<'py>,
    data: &impl Serialize,
) -> Result<Bound<'py, PyAny>, Failure> {
    let value = serde_json::to_value(data).map_err(|error| Failure::invalid(error.to_string()))?;
    Ok(object(py, &value)?)
}

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Null => Ok(py.None().into_bound(py)),
        Value::Bool(value) => value.into_bound_py_any(py),
        Value::String(text) => text.into_bound_py_any(py),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into_bound_py_any(py),
            (None, Some(number)) => number.into_bound_py_any(py),
            (None, None) => number.as_f64().into_bound_py_any(py),
        },
        Value::Array(values) => {
            let list = PyList::empty(py);
            for value in values {
                list.append(object(py, value)?)?;
            }
            Ok(list.into_any())
        }
        Value::Object(fields) => {
            let dict = PyDict::new(py);
            for (name, value) in fields {
                dict.set_item(name, object(py, value)?)?;
            }
            Ok(dict.into_any())
        }
    }
}
