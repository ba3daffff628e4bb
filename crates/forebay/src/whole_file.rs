//! Files that appear under their name only once complete.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

/// How many temporary names to try.
const NAMES: u32 = 16;

/// Writes a file with `write`.
///
/// Writes to a temporary file beside it, which replaces it once complete: if a write fails, the old file is kept and
/// nothing else is left. Follows no links, neither at `path`, where a link is replaced, nor at the temporary name:
/// others may write to the folder. Special files, such as a FIFO, are written to directly, and so are `/dev/stdout`,
/// `/dev/stderr` and `/dev/fd`, which are links made by the system.
pub fn write_whole(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let found = path.symlink_metadata().map(|found| found.file_type());
    let is_special = found.is_ok_and(|found| !found.is_file() && !found.is_symlink());
    let is_own = ["/dev/stdout", "/dev/stderr", "/dev/fd"].iter().any(|own| path.starts_with(own));
    if is_special || is_own {
        let mut out = BufWriter::new(OpenOptions::new().write(true).open(path)?);
        write(&mut out)?;
        return out.flush();
    }
    let (partial, file) = create_beside(path)?;
    let mut out = BufWriter::new(file);
    let written = write(&mut out)
        .and_then(|()| out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all())
        .and_then(|()| std::fs::rename(&partial, path));
    written.inspect_err(|_| {
        // We cannot do more about a leftover that cannot be removed.
        let _ = std::fs::remove_file(&partial);
    })
}

/// Creates a file in the folder of `path`. Creates it exclusively, which follows no link; a name that is taken, by
/// anything, is left alone.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut refused = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..NAMES {
        // Freshly seeded by the system each time, so it cannot be guessed.
        let number = RandomState::new().build_hasher().finish();
        let partial = path.with_file_name(format!(".{name}.{number:016x}.partial"));
        match OpenOptions::new().write(true).create_new(true).open(&partial) {
            Ok(file) => return Ok((partial, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => refused = error,
            Err(error) => return Err(error),
        }
    }
    Err(refused)
}
