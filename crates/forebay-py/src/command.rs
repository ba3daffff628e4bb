//! The `forebay` command, and what only it and tests ask for.

use std::ffi::OsString;
use std::io::Write;

use forebay::handle;
use pyo3::prelude::*;

/// Run the ``forebay`` command with these arguments, the first of which is the program's name. Gives the
/// exit status.
#[pyfunction]
pub(crate) fn command(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| {
        let status = forebay_cli::status(arguments);
        // Python ends the process, which empties its own streams alone.
        let _ = std::io::stdout().flush();
        status
    })
}

/// How many blocks could not be given back when their last reference went, and why the latest was not.
#[pyfunction]
pub(crate) fn lost_frees() -> (u64, Option<String>) {
    let lost = handle::lost_frees();
    (lost.count, lost.latest.map(|lost| lost.to_string()))
}
