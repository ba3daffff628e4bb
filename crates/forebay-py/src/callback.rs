//! Functions of Python's that a pool calls.
//!
//! A pool calls them from the thread that asked it for memory, without Python's lock. What they raise is
//! told as any error that nobody is there to catch (`sys.unraisablehook`), and the pool goes on.

use forebay::{DropReport, PoolOptions, Shortage};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::refusal::{owners, shortage_figures};

/// `options` with those that are there.
pub(crate) fn add(
    mut options: PoolOptions,
    on_shortage: Option<Py<PyAny>>,
    on_pressure: Option<Py<PyAny>>,
    on_leak: Option<Py<PyAny>>,
) -> PoolOptions {
    if let Some(ask) = on_shortage {
        options = options.on_shortage(move |shortage| {
            called(&ask, |py| {
                let figures = figures_of(py, shortage)?;
                ask.bind(py).call1((figures,))?.is_truthy()
            })
            .unwrap_or(false)
        });
    }
    if let Some(tell) = on_pressure {
        options = options.on_pressure(move |level, held| {
            called(&tell, |py| tell.bind(py).call1((level.to_string(), held.get())).map(|_| ()));
        });
    }
    if let Some(tell) = on_leak {
        options = options.on_drop(move |report| {
            called(&tell, |py| tell.bind(py).call1((left_of(py, report)?,)).map(|_| ()));
        });
    }
    options
}

/// What a function of Python's gives; nothing where it raised, or where Python is at its end.
fn called<R>(function: &Py<PyAny>, call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Option<R> {
    Python::try_attach(|py| match call(py) {
        Ok(said) => Some(said),
        Err(error) => {
            error.write_unraisable(py, Some(function.bind(py)));
            None
        }
    })
    .flatten()
}

fn figures_of<'py>(py: Python<'py>, shortage: &Shortage) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    for (name, value) in shortage_figures(shortage) {
        figures.set_item(name, value)?;
    }
    figures.set_item("owners", owners(py, shortage)?)?;
    Ok(figures)
}

fn left_of<'py>(py: Python<'py>, report: &DropReport) -> PyResult<Bound<'py, PyDict>> {
    let left = PyDict::new(py);
    left.set_item("blocks", report.blocks)?;
    left.set_item("bytes", report.bytes.get())?;
    let owners = PyDict::new(py);
    for (name, bytes) in &report.owners {
        owners.set_item(name, bytes.get())?;
    }
    left.set_item("owners", owners)?;
    left.set_item("text", report.to_string())?;
    Ok(left)
}
