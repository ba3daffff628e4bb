//! forebay for Python: the extension module `forebay._forebay`.
//!
//! ```text
//!   device, stream, pool, arena, buffer,
//!   view, scope                            the classes Python sees
//!   lot, face, dtype                       memory, who keeps it, and what it is seen as
//!   protocol, ffi, dlpack                  the edges: the buffer protocol and DLPack. All unsafe code is here,
//!                                          in transfer and in fork
//!   refusal                                errors on their way to exceptions
//!   fork                                   what was made before a fork is not used after it
//!   site, settings, ledger                 what the process has: devices, settings, what lives
//! ```
//!
//! Whatever can wait (a driver, a lock of a pool, a file) is called without Python's lock.
//!
//! The library exports forebay's C functions too, so that `forebay_torch_alloc` of this very file and
//! `forebay.pool("cuda:0")` have one pool between them.

mod access;
mod arena;
mod buffer;
mod callback;
mod command;
mod device;
mod dlpack;
mod dtype;
mod face;
mod ffi;
mod fork;
mod ledger;
mod lot;
mod making;
mod pool;
mod protocol;
mod quantity;
mod refusal;
mod scope;
mod settings;
mod site;
mod stream;
mod trace;
mod transfer;
mod value;
mod view;

// Linked for the functions it exports.
use forebay_capi as _;
use pyo3::prelude::*;

/// The part of forebay that is not Python.
#[pymodule(gil_used = true)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    fork::watch()?;
    let py = module.py();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("Buffer", making::buffer_type(py)?)?;
    module.add("View", making::view_type(py)?)?;
    module.add_class::<device::PyDevice>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_class::<pool::PyPool>()?;
    module.add_class::<arena::PyArena>()?;
    module.add_class::<arena::PyCheckpoint>()?;
    module.add_class::<scope::PyScope>()?;
    module.add_class::<scope::PyTag>()?;
    for function in [
        wrap_pyfunction!(device::devices, module)?,
        wrap_pyfunction!(device::device, module)?,
        wrap_pyfunction!(pool::pool, module)?,
        wrap_pyfunction!(view::from_dlpack, module)?,
        wrap_pyfunction!(scope::performance_context, module)?,
        wrap_pyfunction!(scope::tag, module)?,
        wrap_pyfunction!(settings::configure, module)?,
        wrap_pyfunction!(settings::settings, module)?,
        wrap_pyfunction!(ledger::leaks, module)?,
        wrap_pyfunction!(ledger::trace_origins, module)?,
        wrap_pyfunction!(trace::replay, module)?,
        wrap_pyfunction!(command::command, module)?,
        wrap_pyfunction!(command::lost_frees, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}
