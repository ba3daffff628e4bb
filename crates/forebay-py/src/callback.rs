//! Python callbacks of a pool.
//!
//! A pool calls them from the thread that allocates, with the GIL released. An exception of `on_shortage` is the cause of
//! the refusal that follows; one of the others goes to `sys.unraisablehook`, and the pool continues.

use forebay::PoolOptions;
use forebay::bindings::with_stack;
use forebay::report::{DropReport, Shortage, Stack};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::failure::{owners, raised_in_callback, shortage_figures};
use crate::value::dict;

/// Adds the callbacks to `options`. Fails if one of them cannot be called.
pub(crate) fn add(
    py: Python<'_>,
    mut options: PoolOptions,
    on_shortage: Option<Py<PyAny>>,
    on_pressure: Option<Py<PyAny>>,
    on_leak: Option<Py<PyAny>>,
) -> PyResult<PoolOptions> {
    let given =
        [("on_shortage", &on_shortage), ("on_pressure", &on_pressure), ("on_leak", &on_leak)];
    for (name, callback) in given {
        if let Some(callback) = callback.as_ref().filter(|it| !it.bind(py).is_callable()) {
            let kind = callback.bind(py).get_type().name()?;
            return Err(PyTypeError::new_err(format!("{name} must be callable, not {kind}")));
        }
    }
    if let Some(ask) = on_shortage {
        options = options.on_shortage(move |shortage| {
            call_python(&ask, |py| {
                let figures = shortage_dict(py, shortage)?;
                let answer = ask.bind(py).call1((figures,)).and_then(|answer| answer.is_truthy());
                // The request is refused then, and its error has this as its cause.
                Ok(answer.unwrap_or_else(|error| {
                    raised_in_callback(py, error);
                    false
                }))
            })
            .unwrap_or(false)
        });
    }
    if let Some(tell) = on_pressure {
        options = options.on_pressure(move |level, held| {
            call_python(&tell, |py| {
                tell.bind(py).call1((level.to_string(), held.get())).map(|_| ())
            });
        });
    }
    if let Some(tell) = on_leak {
        options = options.on_drop(move |report| {
            call_python(&tell, |py| tell.bind(py).call1((leak_report(py, report)?,)).map(|_| ()));
        });
    }
    Ok(options)
}

/// The result of a Python function; `None` where it raised, or while the interpreter shuts down.
fn call_python<R>(function: &Py<PyAny>, call: impl FnOnce(Python<'_>) -> PyResult<R>) -> Option<R> {
    // What it allocates has its own stack, not the caller's.
    Python::try_attach(|py| match with_stack(Stack::NONE, || call(py)) {
        Ok(said) => Some(said),
        Err(error) => {
            error.write_unraisable(py, Some(function.bind(py)));
            None
        }
    })
    .flatten()
}

fn shortage_dict<'py>(py: Python<'py>, shortage: &Shortage) -> PyResult<Bound<'py, PyDict>> {
    let figures = PyDict::new(py);
    for (name, value) in shortage_figures(shortage) {
        figures.set_item(name, value)?;
    }
    figures.set_item("owners", owners(py, shortage)?)?;
    Ok(figures)
}

fn leak_report<'py>(py: Python<'py>, report: &DropReport) -> PyResult<Bound<'py, PyDict>> {
    let left = dict!(py, {
        "blocks": report.blocks,
        "bytes": report.bytes.get(),
    });
    let owners = PyDict::new(py);
    for (name, bytes) in &report.owners {
        owners.set_item(name, bytes.get())?;
    }
    left.set_item("owners", owners)?;
    left.set_item("text", report.to_string())?;
    Ok(left)
}
