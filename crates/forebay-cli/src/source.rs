//! The sources of recordings: files, and standard input as "-".
//!
//! A recording's format, and whether it is gzipped, is detected from its beginning, so pipes work like files.

use std::fmt;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use forebay_trace::format::{
    FormatError, Recorded, name_of, read, read_path, read_recorded, read_recorded_path,
};
use forebay_trace::{ReadOptions, Trace};

use crate::output::complain;

/// What names standard input in place of a file.
const STANDARD_INPUT: &str = "-";

/// The name of a recording that came through standard input.
const STDIN_NAME: &str = "stdin";

/// Where a recording comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source<'a> {
    /// A file.
    File(&'a Path),
    /// Whatever is piped in.
    StandardInput,
}

/// A recording, and how many bytes it was read from.
pub(crate) struct Recording {
    pub(crate) trace: Trace,
    pub(crate) bytes: u64,
}

impl<'a> Source<'a> {
    /// What a path on the command line names. A file called "-" is "./-".
    pub(crate) fn of(path: &'a Path) -> Self {
        if path == Path::new(STANDARD_INPUT) { Self::StandardInput } else { Self::File(path) }
    }

    /// Why `paths` cannot all be read.
    pub(crate) fn conflict(paths: &[PathBuf]) -> Option<&'static str> {
        let is_standard_input = |path: &&PathBuf| Source::of(path) == Source::StandardInput;
        (paths.iter().filter(is_standard_input).count() > 1).then_some(
            "standard input can be read only once; give \"-\" once, and files for the rest",
        )
    }

    /// The name of the file, without what only says which form it has.
    pub(crate) fn name(self) -> Option<String> {
        match self {
            Self::File(path) => Some(name_of(path)),
            Self::StandardInput => None,
        }
    }

    /// Reads the recording.
    pub(crate) fn read(self, options: &ReadOptions) -> Result<Recording, FormatError> {
        match self {
            Self::File(path) => {
                let trace = read_path(path, options)?;
                let bytes = std::fs::metadata(path).map_or(0, |file| file.len());
                Ok(Recording { trace, bytes })
            }
            Self::StandardInput => read_counted(io::stdin().lock(), options),
        }
    }

    /// Reads the recording, with a snapshot of a pool as what it is.
    pub(crate) fn read_recorded(self, options: &ReadOptions) -> Result<Recorded, FormatError> {
        match self {
            Self::File(path) => read_recorded_path(path, options),
            Self::StandardInput => read_recorded(io::stdin().lock(), STDIN_NAME, options),
        }
    }
}

impl fmt::Display for Source<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::StandardInput => f.pad("standard input"),
        }
    }
}

/// Reads a recording. Reports a failure on standard error.
pub(crate) fn read_trace(path: &Path, reading: &ReadOptions) -> Option<Trace> {
    let source = Source::of(path);
    let read =
        source.read(reading).inspect_err(|error| complain(format_args!("{source}: {error}")));
    read.ok().map(|recording| recording.trace)
}

/// Reads a recording and counts its bytes as they come: a pipe has no size.
fn read_counted(input: impl Read, options: &ReadOptions) -> Result<Recording, FormatError> {
    let mut counted = input.take(u64::MAX);
    let trace = read(BufReader::new(&mut counted), STDIN_NAME, options)?;
    Ok(Recording { trace, bytes: u64::MAX - counted.limit() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dash_is_standard_input_and_nothing_else_is() {
        assert_eq!(Source::of(Path::new("-")), Source::StandardInput);
        for name in ["./-", "--", "-.csv", "", "a/-"] {
            assert_eq!(Source::of(Path::new(name)), Source::File(Path::new(name)));
        }
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(Source::conflict(&paths(&["-", "./-", "a"])), None);
        assert!(Source::conflict(&paths(&["-", "a", "-"])).unwrap().contains("only once"));
    }

    #[test]
    fn what_is_piped_is_counted() {
        let text = "op,id,bytes,stream\na,1,512,0\nf,1,,0\n";
        let got = read_counted(text.as_bytes(), &ReadOptions::default()).unwrap();
        assert_eq!((got.trace.name(), got.trace.len()), ("stdin", 2));
        assert_eq!(got.bytes, text.len() as u64);
    }
}
