//! `forebay.TagScope`: names for whom a task of the program allocates.
//!
//! The tag is in a context variable, so that tasks which take turns on a thread, as those of asyncio do, have each their own.
//! The library's tag belongs to the thread. So before each request the thread is put under the tag of its context: by
//! [`request`] for those of this package, and by the C library for those of PyTorch and the others, once tasks have tags.

use core::cell::Cell;
use core::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay::Tag;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{ffi, intern};

use crate::failure::{self, Failure};
use crate::stack;

/// The context variable, which has the innermost `Entered` of a context, or `None`.
static CURRENT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// Whether any tag was ever entered.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether tasks have tags, so that the C library asks before each request.
static IS_FOLLOWED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// The tag that this thread was put under here. Under any other, C or Rust have put it there, and it stays.
    static OWN: Cell<Tag> = const { Cell::new(Tag::NONE) };
}

/// A tag that a context is under.
#[pyclass(name = "_EnteredTag", module = "forebay", frozen)]
struct Entered {
    tag: Tag,
    number: u64,
    outer: Option<Py<Entered>>,
}

/// A context manager and decorator that tags what the current task allocates.
#[pyclass(name = "TagScope", module = "forebay", frozen)]
pub(crate) struct PyTag {
    tag: Tag,
    number: u64,
}

#[pymethods]
impl PyTag {
    /// The name.
    #[getter]
    fn name(&self) -> String {
        self.tag.name()
    }

    fn __enter__<'a, 'py>(slf: &'a Bound<'py, Self>) -> PyResult<&'a Bound<'py, Self>> {
        let (py, this) = (slf.py(), slf.get());
        let outer = entered(py)?;
        let inner = Py::new(py, Entered { tag: this.tag, number: this.number, outer })?;
        set(py, Some(inner))?;
        IS_USED.store(true, Ordering::Relaxed);
        if !IS_FOLLOWED.load(Ordering::Relaxed) && has_tasks(py)? {
            IS_FOLLOWED.store(true, Ordering::Relaxed);
            forebay_capi::tag::follow_tasks(enter_of_task);
        }
        settle(py)?;
        Ok(slf)
    }

    /// Leaves the tag, and those that were entered since. Where it was entered in another context, as by a generator that
    /// ends elsewhere, there is nothing to leave.
    #[pyo3(signature = (*error))]
    fn __exit__(&self, error: &Bound<'_, PyTuple>) -> PyResult<()> {
        let py = error.py();
        let mut next = entered(py)?;
        while let Some(entered) = next {
            let outer = entered.get().outer.as_ref().map(|outer| outer.clone_ref(py));
            if entered.get().number == self.number {
                set(py, outer)?;
                return settle(py);
            }
            next = outer;
        }
        Ok(())
    }

    /// ``@forebay.tag("name")``: what a function or coroutine allocates has the tag.
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        function: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let helper = slf.py().import("forebay._tags")?.getattr("decorated")?;
        helper.call1((slf.get().name(), function))
    }
}

/// A context manager and decorator that tags what the current task allocates with ``name``, for statistics, reports and
/// errors. Tags nest, and belong to a context (``contextvars``): tasks of asyncio have each their own. A process has 254
/// names; any more count as "other".
#[pyfunction]
pub(crate) fn tag(name: &str) -> PyTag {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    PyTag { tag: Tag::named(name), number: NEXT.fetch_add(1, Ordering::Relaxed) }
}

/// Does `work`, a request of the library, with the GIL released, under `tag` or else the tag of the context. Stacks that it
/// captures are those of the program, as they are now.
pub(crate) fn request<T: Send>(
    py: Python<'_>,
    tag: Option<&str>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    settle(py)?;
    let done = stack::detach(py, || {
        let _scope = tag.map(|name| Tag::named(name).enter());
        work()
    });
    if !done.as_ref().is_err_and(Failure::is_out_of_memory) {
        failure::report_raised(py);
    }
    done
}

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let make = || {
        let words = PyDict::new(py);
        words.set_item("default", py.None())?;
        let class = py.import("contextvars")?.getattr("ContextVar")?;
        Ok::<_, PyErr>(class.call(("forebay_tag",), Some(&words))?.unbind())
    };
    Ok(CURRENT.get_or_try_init(py, make)?.bind(py))
}

/// The innermost tag of the current context.
fn entered(py: Python<'_>) -> PyResult<Option<Py<Entered>>> {
    let found = variable(py)?.call_method0(intern!(py, "get"))?;
    if found.is_none() { Ok(None) } else { Ok(Some(found.cast_into::<Entered>()?.unbind())) }
}

fn set(py: Python<'_>, inner: Option<Py<Entered>>) -> PyResult<()> {
    variable(py)?.call_method1(intern!(py, "set"), (inner,)).map(drop)
}

/// Puts the thread under the tag of the current context, unless C or Rust have put it under another.
fn settle(py: Python<'_>) -> PyResult<()> {
    if !IS_USED.load(Ordering::Relaxed) {
        return Ok(());
    }
    let wanted = entered(py)?.map_or(Tag::NONE, |entered| entered.get().tag);
    let now = Tag::current();
    if now == OWN.get() && now != wanted {
        // Left by the next call of this function, not by a drop.
        core::mem::forget(wanted.enter());
        OWN.set(wanted);
    }
    Ok(())
}

/// Whether tasks may take turns on this thread.
fn has_tasks(py: Python<'_>) -> PyResult<bool> {
    let modules = py.import("sys")?.getattr("modules")?;
    if modules.contains("trio")? {
        return Ok(true);
    }
    if !modules.contains("asyncio")? {
        return Ok(false);
    }
    Ok(!py.import("asyncio")?.call_method0("_get_running_loop")?.is_none())
}

/// As `settle`, for a request of another library.
fn enter_of_task() {
    if !stack::holds_gil() {
        return;
    }
    // SAFETY: the thread holds the GIL. An exception that is on its way while a library allocates stays what it is.
    unsafe {
        let (mut kind, mut value, mut trace) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        ffi::PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut trace);
        // What failed is dropped: the request goes on under the tag that the thread has.
        drop(settle(Python::assume_attached()));
        ffi::PyErr_Restore(kind, value, trace);
    }
}
