//! forebay for Python: the extension module `forebay._forebay`.
//!
//! ```text
//!   device, stream, pool, arena, scope, tag, manager, pinned, shared, engine,
//!   buffer, array, unified and their _methods    the classes that Python sees
//!   creation, copies, numpy                arrays of what a program has, copies with anything, numpy's arrays
//!   weights                                files of weights, as those classes
//!   host_side                              memory of a Python object as one side of a transfer
//!   protocol, ffi, dlpack                  how objects are made and exported: the buffer protocol and DLPack
//!   memory                                 what a buffer or array refers to
//!   allocation, replica, shared_arena,
//!   array_view, dtype                      memory, its pins, and its elements as Python asks for them
//!   open_device, settings, live_blocks     what the process has: devices and streams, settings, live blocks
//!   failure                                errors on their way to exceptions
//!   gil                                    drops that release the GIL
//! ```
//!
//! No two files import each other, directly or through others. Where two classes of Python return each other, the struct
//! of one is in a lower file than its methods: `Device` in `open_device`, the base of `Buffer` and `Array` in `memory`.
//!
//! Calls that can wait (for a driver, a pool's lock, a file) are made with the GIL released. Values made before
//! a fork are not used in the child (`forebay_sync::fork`).
//!
//! The library exports forebay's C functions too, so that `forebay_torch_alloc` of this very file and
//! `forebay.pool("cuda:0")` share one pool.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocation;
mod arena;
mod array;
mod array_methods;
mod array_view;
mod buffer;
mod callback;
mod command;
mod copies;
mod creation;
mod device;
mod dlpack;
mod dtype;
mod engine;
mod failure;
mod ffi;
mod gil;
mod host_side;
mod live_blocks;
mod manager;
mod memory;
mod memory_methods;
mod numpy;
mod open_device;
mod pinned;
mod pool;
mod protocol;
mod quantity;
mod replica;
mod scope;
mod settings;
mod shared;
mod shared_arena;
mod stack;
mod stream;
mod tag;
mod trace;
mod transfer;
mod unified;
mod unified_methods;
mod value;
mod weights;

// Linked for the functions it exports.
use forebay_capi as _;
use pyo3::prelude::*;

/// The compiled part of the package.
#[pymodule(gil_used = true)]
fn _forebay(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    gil::check_interpreter()?;
    stack::install(py);
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<memory::Memory>()?;
    module.add("Buffer", buffer::BUFFER.get(py)?)?;
    module.add("Array", array::ARRAY.get(py)?)?;
    module.add_class::<open_device::PyDevice>()?;
    module.add_class::<stream::PyStream>()?;
    module.add_class::<pool::PyPool>()?;
    module.add_class::<arena::PyArena>()?;
    module.add_class::<pinned::PyPinnedPool>()?;
    module.add_class::<manager::PyMemory>()?;
    module.add("UnifiedBuffer", unified::UNIFIED.get(py)?)?;
    module.add_class::<shared::PySharedBuffer>()?;
    module.add_class::<engine::PyTransfer>()?;
    module.add_class::<arena::PyCheckpoint>()?;
    module.add_class::<scope::PyScope>()?;
    module.add_class::<tag::PyTag>()?;
    for function in [
        wrap_pyfunction!(device::devices, module)?,
        wrap_pyfunction!(device::device, module)?,
        wrap_pyfunction!(pool::pool, module)?,
        wrap_pyfunction!(creation::from_dlpack, module)?,
        wrap_pyfunction!(weights::load_weights, module)?,
        wrap_pyfunction!(pool::performance_context, module)?,
        wrap_pyfunction!(tag::tag, module)?,
        wrap_pyfunction!(settings::configure, module)?,
        wrap_pyfunction!(settings::settings, module)?,
        wrap_pyfunction!(live_blocks::leaks, module)?,
        wrap_pyfunction!(live_blocks::trace_origins, module)?,
        wrap_pyfunction!(manager::live_buffers, module)?,
        wrap_pyfunction!(trace::replay, module)?,
        wrap_pyfunction!(trace::report_page, module)?,
        wrap_pyfunction!(trace::write_page, module)?,
        wrap_pyfunction!(command::command, module)?,
        wrap_pyfunction!(command::lost_frees, module)?,
    ] {
        module.add_function(function)?;
    }
    Ok(())
}
