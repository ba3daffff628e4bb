//! The `forebay` command, and a counter for tests.

use std::ffi::OsString;
use std::io::Write;

use forebay::handle;
use pyo3::prelude::*;

/// Run the ``forebay`` command with these arguments, the first of which is the program's name. Returns
/// the exit status.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let status = forebay_cli::status(arguments);
        // Python ends the process, and flushes only its own streams.
        let _ = std::io::stdout().flush();
        status
    })
}

/// How many blocks could not be freed when their last reference was dropped, and why the latest could not.
#[pyfunction]
pub(crate) fn lost_frees() -> (u64, Option<String>) {
    let lost = handle::lost_frees();
    (lost.count, lost.latest.map(|lost| lost.to_string()))
}
