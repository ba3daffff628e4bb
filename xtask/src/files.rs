//! Files, with their names in what goes wrong.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What could not be done with a file.
pub(crate) fn told(path: &Path) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

pub(crate) fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(told(path))
}

pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> Result<(), String> {
    make_folder_of(path)?;
    fs::write(path, text).map_err(told(path))
}

/// Copies a file. One that a running program has loaded is replaced, not written over.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<(), String> {
    make_folder_of(to)?;
    let _ = fs::remove_file(to);
    fs::copy(from, to).map(drop).map_err(told(from))
}

/// The paths in a folder, in order.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut paths: Vec<_> = entries.map_err(told(folder))?.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    Ok(paths)
}

/// Every file below a folder that `goes_in` does not keep out: it is asked of folders too.
pub(crate) fn below(
    folder: &Path,
    goes_in: &impl Fn(&Path) -> bool,
) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in entries(folder)?.into_iter().filter(|path| goes_in(path)) {
        if path.is_dir() {
            files.extend(below(&path, goes_in)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

fn make_folder_of(path: &Path) -> Result<(), String> {
    let Some(folder) = path.parent() else { return Ok(()) };
    fs::create_dir_all(folder).map_err(told(folder))
}
