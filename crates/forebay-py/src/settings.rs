//! Settings as Python passes them: keyword arguments, or one text in the form of `FOREBAY_CONF`.

use forebay::Settings;
use forebay::bindings::{SettingsChange, effective_settings, entries_of};
use forebay::config::Key;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString};

use crate::failure::Failure;
use crate::open_device::OpenDevice;
use crate::value::dict;

/// Keys with their values as text.
pub(crate) type Entries = Vec<(String, String)>;

/// The entries of a call: those of its text first, then its keyword arguments.
pub(crate) fn entries(
    text: Option<&str>,
    words: Option<&Bound<'_, PyDict>>,
) -> Result<Entries, Failure> {
    let mut entries = text.map_or_else(|| Ok(Entries::new()), entries_of)?;
    for (name, value) in words.into_iter().flatten() {
        entries.push((name.extract()?, text_of(&value)?));
    }
    Ok(entries)
}

/// A value as it would be written in a file.
pub(crate) fn text_of(value: &Bound<'_, PyAny>) -> Result<String, Failure> {
    if value.is_none() {
        return Ok("none".to_owned());
    }
    if let Ok(switch) = value.cast::<PyBool>() {
        return Ok(if switch.is_true() { "true" } else { "false" }.to_owned());
    }
    if value.is_instance_of::<PyString>()
        || value.is_instance_of::<PyInt>()
        || value.is_instance_of::<PyFloat>()
    {
        return Ok(value.str()?.to_string());
    }
    let given = value.repr()?;
    Err(Failure::wrong_type(format!(
        "a setting cannot be {given}: expected a number, a string, True, False or None"
    )))
}

/// Change the settings of the process's pools: ``configure(max_bytes="8GiB", upkeep=True)``, or one text as in
/// the variable FOREBAY_CONF, ``configure("max_bytes:8GiB,upkeep:on")``.
///
/// It overrides the environment. Existing pools change as well; where one has a setting that cannot change any
/// more, nothing changes and the error names it.
#[pyfunction]
#[pyo3(signature = (conf = None, /, **settings))]
pub(crate) fn configure(
    py: Python<'_>,
    conf: Option<&str>,
    settings: Option<&Bound<'_, PyDict>>,
) -> Result<(), Failure> {
    let entries = entries(conf, settings)?;
    let pools = OpenDevice::pools()?;
    py.detach(|| SettingsChange::make(&pools, &entries))?;
    Ok(())
}

/// A table of settings by name: value, source, and whether it can change while a pool lives.
pub(crate) fn table<'py>(
    py: Python<'py>,
    settings: &Settings,
) -> Result<Bound<'py, PyDict>, Failure> {
    let table = PyDict::new(py);
    for entry in settings.entries() {
        let row = dict!(py, {
            "value": &entry.value,
            "source": entry.source.to_string(),
            "changeable": entry.key.is_changeable(),
            "help": Key::help(entry.key),
        });
        table.set_item(entry.key.name(), row)?;
    }
    Ok(table)
}

/// The settings of the process's pools by name: ``value``, ``source``, ``changeable`` and ``help``.
#[pyfunction]
pub(crate) fn settings(py: Python<'_>) -> Result<Bound<'_, PyDict>, Failure> {
    table(py, &effective_settings()?)
}
