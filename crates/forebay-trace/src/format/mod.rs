//! The file formats of recordings.
//!
//! ```text
//!   CSV               op,id,bytes,stream           read, written: events alone
//!   RMM log           Thread,Time,Action,...       read, written: with times and threads
//!   PyTorch snapshot  pickle                       read, written: with times, tags and stacks
//!   forebay.trace.v2  our own, compact             read, written: with everything
//!   forebay.pool.v1   snapshot of a pool, JSON     read: one moment, with tags, stacks, holes and a refused request
//!   Chrome's JSON     for Perfetto                 written
//! ```
//!
//! The format is detected from a file's beginning, not from its name; each may be gzipped. A reader trusts nothing: it
//! checks counts against the file's size before it allocates memory for them, the limits in [`ReadOptions`] stop what
//! would not end, and an error gives the position and what was expected. Nothing in a pickle is ever executed.

mod binary;
mod chrome;
mod csv;
mod details;
mod error;
mod gzip;
mod lines;
mod pickle;
mod placement;
mod pool_snapshot;
mod rmm;
mod snapshot;

pub use error::{FormatError, Position};
pub use forebay::bindings::write_whole;
pub use pool_snapshot::PoolSnapshot;

use core::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Cursor, Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_hal::setters;

use self::error::shortened;
use crate::{InvalidEvent, Trace, TraceBuilder};

/// A file format of recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Format {
    /// `op,id,bytes,stream`.
    Csv,
    /// The log of NVIDIA's RAPIDS memory manager.
    Rmm,
    /// A memory snapshot of PyTorch.
    Snapshot,
    /// A snapshot of one of forebay's pools, `forebay.pool.v1`.
    PoolSnapshot,
    /// Our own compact form, `forebay.trace.v1` or `v2`.
    Binary,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Csv => "CSV",
            Self::Rmm => "RMM log",
            Self::Snapshot => "PyTorch snapshot",
            Self::PoolSnapshot => pool_snapshot::SCHEMA,
            Self::Binary => binary::SCHEMA,
        })
    }
}

/// What to read, and limits on how much.
///
/// A few bytes of a compressed file can expand to terabytes; the limits protect a machine that reads untrusted files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadOptions {
    /// The most events: 8,388,608 by default, which take about 400 MB while read and 800 MB in a report.
    pub events: u64,
    /// The most bytes of a file, uncompressed: 2 GiB by default. A compressed file may expand to 64 MiB, or to 100
    /// times its size if that is more.
    pub bytes: u64,
    /// The most values of a snapshot: 67,108,864 by default, which take about three gigabytes.
    pub values: u64,
    /// The device whose history to read from a snapshot; by default, the only one with a history.
    pub device: Option<u32>,
}

impl Default for ReadOptions {
    fn default() -> Self {
        Self { events: 1 << 23, bytes: 2 << 30, values: 1 << 26, device: None }
    }
}

impl ReadOptions {
    setters! {
        /// Limits the number of events.
        events: u64;
        /// Limits the number of bytes, uncompressed.
        bytes: u64;
        /// Limits the number of values of a snapshot.
        values: u64;
        /// Selects the history of one device.
        device: u32;
    }
}

/// A builder that counts what it takes and says where it was when a rule broke.
struct Intake {
    builder: TraceBuilder,
    format: Format,
    left: u64,
    limit: u64,
}

impl Intake {
    fn new(name: &str, format: Format, options: &ReadOptions) -> Self {
        let builder = TraceBuilder::new(name);
        Self { builder, format, left: options.events, limit: options.events }
    }

    /// Refuses what is known to be too much before any of it is read.
    fn announced(&self, events: u64) -> Result<(), FormatError> {
        if events > self.limit {
            return Err(FormatError::TooLarge { what: "events", limit: self.limit });
        }
        Ok(())
    }

    /// Enters one event.
    fn event(
        &mut self,
        at: Position,
        enter: impl FnOnce(&mut TraceBuilder) -> Result<(), InvalidEvent>,
    ) -> Result<(), FormatError> {
        self.left = self
            .left
            .checked_sub(1)
            .ok_or(FormatError::TooLarge { what: "events", limit: self.limit })?;
        let format = self.format;
        enter(&mut self.builder).map_err(|breach| FormatError::InvalidEvent { format, at, breach })
    }
}

/// How many bytes of a file are enough to tell what it is.
const HEAD: u64 = 64;

/// What some programs put before UTF-8 text, spreadsheets among them.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// The content of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// A run.
    Run(Box<Trace>),
    /// A pool at one moment.
    Moment(Box<PoolSnapshot>),
}

impl Recorded {
    /// Returns the run, or a run that allocates the live blocks of the moment.
    pub fn into_trace(self, options: &ReadOptions) -> Result<Trace, FormatError> {
        match self {
            Self::Run(trace) => Ok(*trace),
            Self::Moment(snapshot) => snapshot.to_trace(options),
        }
    }
}

/// Reads a recording in any format.
pub fn read(input: impl BufRead, name: &str, options: &ReadOptions) -> Result<Trace, FormatError> {
    read_recorded(input, name, options)?.into_trace(options)
}

/// Like [`read`], but returns a snapshot of a pool as such.
pub fn read_recorded(
    input: impl BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Recorded, FormatError> {
    let mut input = input;
    let (head, mut whole) = peek(&mut input)?;
    if head.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = BufReader::new(gzip::Unpacked::new(whole));
        let (head, mut whole) = peek(&mut unpacked)?;
        return read_unpacked(&head, &mut whole, name, options);
    }
    read_unpacked(&head, &mut whole, name, options)
}

/// The first bytes, and the input with them still in it.
fn peek<R: BufRead>(input: &mut R) -> Result<(Vec<u8>, impl BufRead + '_), FormatError> {
    let mut head = Vec::new();
    let taken = input.by_ref().take(HEAD).read_to_end(&mut head);
    taken.map_err(|error| FormatError::Io { at: None, error })?;
    Ok((head.clone(), Cursor::new(head).chain(input)))
}

fn read_unpacked(
    head: &[u8],
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Recorded, FormatError> {
    if let Some(head) = head.strip_prefix(BYTE_ORDER_MARK) {
        let mut mark = [0; BYTE_ORDER_MARK.len()];
        input.read_exact(&mut mark).map_err(|error| FormatError::Io { at: None, error })?;
        return read_unmarked(head, input, name, options);
    }
    read_unmarked(head, input, name, options)
}

/// Reads a recording that is neither packed nor marked.
fn read_unmarked(
    head: &[u8],
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<Recorded, FormatError> {
    if pool_snapshot::is_begun_by(head) {
        let snapshot = pool_snapshot::read(input, name, options)?;
        return Ok(Recorded::Moment(Box::new(snapshot)));
    }
    let trace = if head.starts_with(csv::HEADER.as_bytes()) {
        csv::read(input, name, options)
    } else if head.starts_with(rmm::HEADER.as_bytes()) {
        rmm::read(input, name, options)
    } else if head.starts_with(binary::BEGINNING.as_bytes()) {
        binary::read(input, name, options)
    } else if head.first() == Some(&pickle::PROTO) {
        snapshot::read(input, name, options)
    } else if head.is_empty() {
        Err(FormatError::Unrecognised { found: "nothing: it is empty".to_owned() })
    } else {
        let begins = String::from_utf8_lossy(head);
        let found = shortened(begins.lines().next().unwrap_or_default());
        Err(FormatError::Unrecognised { found: format!("\"{found}\"") })
    };
    trace.map(|trace| Recorded::Run(Box::new(trace)))
}

/// All of a file that is read at once, no more than allowed.
fn whole(input: &mut dyn BufRead, options: &ReadOptions) -> Result<Vec<u8>, FormatError> {
    let mut bytes = Vec::new();
    let length = Read::take(input, options.bytes.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|error| FormatError::Io { at: None, error })?;
    if length as u64 > options.bytes {
        return Err(FormatError::TooLarge { what: "bytes", limit: options.bytes });
    }
    Ok(bytes)
}

/// Reads a file, compressed or not; the recording is named after it.
pub fn read_path(path: &Path, options: &ReadOptions) -> Result<Trace, FormatError> {
    read_recorded_path(path, options)?.into_trace(options)
}

/// Like [`read_path`], but returns a snapshot of a pool as such. Given the text that `oom_report` writes, it reads the
/// snapshot beside it.
pub fn read_recorded_path(path: &Path, options: &ReadOptions) -> Result<Recorded, FormatError> {
    let failed = |error| FormatError::Io { at: None, error };
    let mut input = BufReader::new(File::open(path).map_err(failed)?);
    let head = input.fill_buf().map_err(failed)?;
    if head.starts_with(pool_snapshot::TEXT_OF_REFUSAL.as_bytes()) {
        let mut beside = path.as_os_str().to_owned();
        beside.push(".json");
        let opened = File::open(&beside).map_err(|error| {
            let (kind, beside) = (error.kind(), beside.display());
            failed(io::Error::new(kind, format!("its snapshot, {beside}, is missing: {error}")))
        });
        input = BufReader::new(opened?);
    }
    read_recorded(input, &name_of(path), options)
}

/// A file's name without what only says which form it has: `monday` for `runs/monday.fbt.gz`.
pub fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy();
    let bare = name.strip_suffix(".gz").unwrap_or(&name);
    let ended = [".csv", ".fbt", ".pickle", ".pkl", ".log", ".txt", ".json"]
        .iter()
        .find_map(|ending| bare.strip_suffix(ending));
    ended.filter(|bare| !bare.is_empty()).unwrap_or(bare).to_owned()
}

/// Writes a recording in one form.
type WriteForm = fn(&Trace, &mut dyn Write) -> io::Result<()>;

/// The forms that can be written, as a file's ending names them. Each may be followed by `.gz`.
const ENDINGS: [(&str, WriteForm); 5] = [
    (".csv", csv::write),
    (".fbt", binary::write),
    (".pickle", snapshot::write),
    (".log", rmm::write),
    (".json", chrome::write),
];

/// What a file is written by.
struct Ending {
    write: WriteForm,
    is_packed: bool,
}

impl Ending {
    fn of(path: &Path) -> Result<Self, FormatError> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let bare = name.strip_suffix(".gz");
        let found = ENDINGS.iter().find(|(ending, _)| bare.unwrap_or(&name).ends_with(ending));
        let found = found.map(|&(_, write)| Self { write, is_packed: bare.is_some() });
        found.ok_or_else(|| FormatError::UnknownEnding { name: path.display().to_string() })
    }

    fn write(&self, trace: &Trace, out: &mut dyn Write) -> io::Result<()> {
        if !self.is_packed {
            return (self.write)(trace, out);
        }
        let mut packed = BufWriter::new(GzEncoder::new(out, Compression::best()));
        (self.write)(trace, &mut packed)?;
        packed.into_inner().map_err(io::IntoInnerError::into_error)?.finish().map(|_| ())
    }
}

/// Checks whether a file with this name could be written, by its ending: see [`write_path`].
pub fn check_ending(path: &Path) -> Result<(), FormatError> {
    Ending::of(path).map(|_| ())
}

/// Writes a recording in the format that the file's ending names: `.csv`, `.fbt` (our own), `.pickle` (a PyTorch
/// snapshot), `.log` (an RMM log) or `.json` (Chrome's trace events); gzipped if `.gz` follows.
///
/// The file appears under its name only once it is complete: see [`write_whole`].
pub fn write_path(trace: &Trace, path: &Path) -> Result<(), FormatError> {
    let ending = Ending::of(path)?;
    write_whole(path, |out| ending.write(trace, out))
        .map_err(|error| FormatError::Io { at: None, error })
}

/// Writes a recording to `out` in the format that an ending names, such as ".fbt": see [`write_path`].
pub fn write(trace: &Trace, ending: &str, out: &mut dyn Write) -> Result<(), FormatError> {
    let written = Ending::of(Path::new(ending))?.write(trace, out);
    written.map_err(|error| FormatError::Io { at: None, error })
}

#[cfg(test)]
mod tests;
