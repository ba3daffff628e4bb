//! Reads the small files in which the system describes itself.

use core::fmt;
use core::str::FromStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use forebay_core::{Bytes, KIB};

use super::System;

/// The most that is read of one file. The largest real one, the list of mounts of a machine full
/// of containers, stays well below.
const MAX: u64 = 16 << 20;

/// The most numbers a list such as "0-3,7" may name: more than any machine has processors, and
/// little enough that a nonsense range cannot take the memory it is there to measure.
const MAX_LISTED: usize = 1 << 16;

/// A value that was read, or why it is unknown.
pub type Reading<T> = Result<T, Unknown>;

/// Why a file could not be read. Each cause has its own remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// The file does not exist, which is normal on many machines.
    Absent,
    /// The file exists, but this user may not read it.
    Forbidden,
    /// The file exists but cannot be read for another reason.
    Unreadable,
    /// The file is readable but its content is not as expected.
    Malformed,
}

/// Why a value is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// The file that holds the value.
    pub file: PathBuf,
    /// What is wrong with the file.
    pub reason: String,
    /// The kind of problem.
    pub cause: Cause,
}

impl Unknown {
    /// A file that is there and does not say what it should.
    pub(super) fn malformed(file: &Path, reason: impl Into<String>) -> Self {
        Self { file: file.to_owned(), reason: reason.into(), cause: Cause::Malformed }
    }

    pub(super) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let cause = match error.kind() {
            // A component of the path that is a file, not a directory, is as absent as none.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Cause::Absent,
            io::ErrorKind::PermissionDenied => Cause::Forbidden,
            _ => Cause::Unreadable,
        };
        Self { file: file.to_owned(), reason: error.to_string(), cause }
    }

    /// Whether the file does not exist.
    pub fn is_absent(&self) -> bool {
        self.cause == Cause::Absent
    }
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.reason)
    }
}

impl core::error::Error for Unknown {}

impl System {
    /// The text of the file at `path`; invalid UTF-8 is replaced.
    pub fn text(&self, path: impl AsRef<Path>) -> Reading<String> {
        let path = path.as_ref();
        let mut bytes = Vec::new();
        File::open(self.place(path))
            .and_then(|file| file.take(MAX).read_to_end(&mut bytes))
            .map_err(|error| Unknown::unreadable(path, &error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The names in the directory at `path`, sorted.
    pub fn names(&self, path: impl AsRef<Path>) -> Reading<Vec<String>> {
        let path = path.as_ref();
        let entries = std::fs::read_dir(self.place(path))
            .map_err(|error| Unknown::unreadable(path, &error))?;
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .collect();
        names.sort();
        Ok(names)
    }

    /// The one number that the file at `path` holds.
    pub(super) fn number<T: FromStr>(&self, path: impl AsRef<Path>) -> Reading<T> {
        let path = path.as_ref();
        let text = self.text(path)?;
        text.trim().parse().map_err(|_| {
            Unknown::malformed(path, format!("expected a number, found {}", quoted(&text)))
        })
    }

    /// The choice in brackets of a file such as "always \[madvise\] never".
    pub(super) fn bracketed(&self, path: impl AsRef<Path>) -> Reading<String> {
        let path = path.as_ref();
        let text = self.text(path)?;
        let chosen =
            text.split_whitespace().find_map(|word| word.strip_prefix('[')?.strip_suffix(']'));
        chosen.map(str::to_owned).ok_or_else(|| {
            Unknown::malformed(path, format!("expected a [choice], found {}", quoted(&text)))
        })
    }

    /// The numbers of a file such as "0-3,7".
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Reading<Vec<u32>> {
        let path = path.as_ref();
        let text = self.text(path)?;
        parse_list(&text).ok_or_else(|| {
            Unknown::malformed(path, format!("expected a list as 0-3,7, found {}", quoted(&text)))
        })
    }
}

/// The size after `key` in lines such as "MemTotal:  1024 kB" or, per node, "Node 0 MemTotal: ...".
pub(super) fn kilobytes(file: &Path, text: &str, key: &str) -> Reading<Bytes> {
    let missing = || Unknown::malformed(file, format!("has no line \"{key}:\""));
    let rest = text
        .lines()
        .find_map(|line| {
            let (name, rest) = line.split_once(':')?;
            (name.split_whitespace().next_back() == Some(key)).then_some(rest)
        })
        .ok_or_else(missing)?;
    let number = rest.trim().strip_suffix("kB").unwrap_or(rest).trim();
    let size = number.parse().ok().and_then(|count| Bytes::new(KIB).checked_mul(count));
    size.ok_or_else(|| {
        Unknown::malformed(file, format!("{key}: expected a size in kB, found {}", quoted(rest)))
    })
}

/// The numbers of a list such as "0-3,7", in order and once each; `None` where it is no such list.
pub(super) fn parse_list(text: &str) -> Option<Vec<u32>> {
    let mut numbers = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        let span: u32 = u32::checked_sub(last, first)?;
        if numbers.len().saturating_add(span as usize) >= MAX_LISTED {
            return None;
        }
        numbers.extend(first..=last);
    }
    numbers.sort_unstable();
    numbers.dedup();
    Some(numbers)
}

/// The beginning of a text in quotes, short enough for an error.
pub(super) fn quoted(text: &str) -> String {
    const SHOWN: usize = 40;
    let trimmed = text.trim();
    let shown: String = trimmed.chars().take(SHOWN).collect();
    let more = if shown.len() < trimmed.len() { "..." } else { "" };
    format!("{shown:?}{more}")
}
