//! Open files as the host's end of a transfer: one after the other in a single space of offsets.
//!
//! ```text
//!   offset   0 .............. 4,000 ................. 9,000
//!            | first file     | second file           |
//! ```

use std::fs::{File, Metadata};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use forebay_core::Bytes;
use forebay_core::transfer::{Item, Load};
use forebay_hal::{Call, invalid};

use crate::{Error, Result};

/// Files, each from its offset on.
#[derive(Debug, Default)]
pub(crate) struct Files(Vec<OpenFile>);

#[derive(Debug)]
struct OpenFile {
    start: u64,
    file: Arc<File>,
    /// What it was when it was opened, if a change is an error.
    known: Option<Known>,
}

#[derive(Debug)]
struct Known {
    path: PathBuf,
    size: u64,
    modified: Option<SystemTime>,
}

impl Known {
    fn of(path: &Path, data: &Metadata) -> Self {
        Self { path: path.to_owned(), size: data.len(), modified: data.modified().ok() }
    }
}

impl Files {
    /// A file that the program has opened.
    pub(super) fn one(file: Arc<File>) -> Self {
        Self(vec![OpenFile { start: 0, file, known: None }])
    }

    /// Adds a file, whose changes from now on are errors of later reads. Returns its offset.
    pub(crate) fn add(&mut self, path: &Path, file: File, data: &Metadata) -> Result<u64> {
        let end = |last: &OpenFile| last.start.checked_add(last.known.as_ref()?.size);
        let start = self.0.last().map_or(Some(0), end);
        let known = Known::of(path, data);
        let Some(start) = start.filter(|start| start.checked_add(known.size).is_some()) else {
            let given = format!("{} B more", known.size);
            return Err(invalid(Call::Copy, "files", given, "less than 2^64 B together").into());
        };
        self.0.push(OpenFile { start, file: Arc::new(file), known: Some(known) });
        Ok(start)
    }

    /// The path of a file by its number.
    pub(crate) fn path(&self, number: usize) -> Option<&Path> {
        Some(&self.0.get(number)?.known.as_ref()?.path)
    }

    /// The file at an offset, and the offset in it.
    fn at(&self, offset: u64) -> Result<(&OpenFile, u64)> {
        let number = self.0.partition_point(|file| file.start <= offset);
        let file =
            number.checked_sub(1).and_then(|number| self.0.get(number)).ok_or_else(|| {
                Error::from(invalid(Call::Copy, "offset", offset, "one within the files"))
            })?;
        Ok((file, offset - file.start))
    }

    /// Reads bytes of one file.
    pub(crate) fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        let (file, offset) = self.at(offset)?;
        let read = read_at(&file.file, bytes, offset);
        file.check()?;
        read.map_err(|error| file.error("reading", bytes.len(), offset, &error))
    }

    /// Reads the items of a load; those that lie one after the other in one call.
    pub(super) fn read_load(&self, items: &[Item], load: &Load, slot: &mut [u8]) -> Result<()> {
        let mut items = load.parts(items).peekable();
        while let Some((first, mut range)) = items.next() {
            let mut end = first.host + first.size;
            while let Some((item, next)) = items.next_if(|(item, _)| item.host == end) {
                (end, range.end) = (item.host + item.size, next.end);
            }
            if let Some(room) = slot.get_mut(range) {
                self.read(room, first.host)?;
            }
        }
        Ok(())
    }

    /// Writes bytes to one file.
    pub(super) fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        let (file, offset) = self.at(offset)?;
        write_at(&file.file, bytes, offset)
            .map_err(|error| file.error("writing", bytes.len(), offset, &error))
    }
}

impl OpenFile {
    /// Fails if the file was changed since it was opened. The time of its last change finds what its size does not, but
    /// for a change at the same tick of the system's clock.
    fn check(&self) -> Result<()> {
        let Some(known) = &self.known else { return Ok(()) };
        let now = self
            .file
            .metadata()
            .map_err(|error| Error::File { path: known.path.clone(), reason: error.to_string() })?;
        let now = Known::of(&known.path, &now);
        if (now.size, now.modified) == (known.size, known.modified) {
            return Ok(());
        }
        Err(Error::FileChanged {
            path: now.path,
            before: Bytes::new(known.size),
            now: Bytes::new(now.size),
        })
    }

    fn error(&self, what: &str, size: usize, offset: u64, error: &std::io::Error) -> Error {
        let known = self.known.as_ref().map(|known| known.path.clone());
        let reason = format!("{what} {size} B at offset {offset}: {error}");
        Error::File { path: known.unwrap_or_else(|| PathBuf::from("(open file)")), reason }
    }
}

/// Reads bytes of a file from an offset on.
#[cfg(unix)]
pub(crate) fn read_at(file: &File, bytes: &mut [u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], offset: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, offset)
}

#[cfg(not(unix))]
pub(crate) fn read_at(_: &File, _: &mut [u8], _: u64) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(not(unix))]
fn write_at(_: &File, _: &[u8], _: u64) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}
