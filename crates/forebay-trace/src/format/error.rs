//! Errors of reading and writing recordings.

use core::fmt;
use std::io;

use super::Format;
use crate::InvalidEvent;

/// A position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// A line, counted from 1.
    Line(u64),
    /// A byte, counted from 0; in a compressed file, of its uncompressed content.
    Byte(u64),
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Byte(byte) => write!(f, "byte {byte}"),
        }
    }
}

/// Why a recording could not be read or written.
#[derive(Debug)]
#[non_exhaustive]
pub enum FormatError {
    /// The system could not read or write, or a compressed file is damaged.
    Io {
        /// The position reached, if known.
        at: Option<Position>,
        /// The system's error.
        error: io::Error,
    },
    /// The beginning matches no known format.
    Unrecognised {
        /// The beginning of the file.
        found: String,
    },
    /// The content violates the format.
    Malformed {
        /// Which format.
        format: Format,
        /// Where.
        at: Position,
        /// What was found there.
        found: String,
        /// What was expected.
        expected: String,
    },
    /// An event that breaks a rule of recordings.
    InvalidEvent {
        /// Which format.
        format: Format,
        /// Where.
        at: Position,
        /// The rule.
        breach: InvalidEvent,
    },
    /// The file exceeds a limit of the reader.
    TooLarge {
        /// What exceeds it.
        what: &'static str,
        /// The limit.
        limit: u64,
    },
    /// The ending of a file name matches no format that can be written.
    UnknownEnding {
        /// The name.
        name: String,
    },
}

impl FormatError {
    /// Something that is not as it should be. What was found is cut to a length people read.
    pub(super) fn malformed(
        format: Format,
        at: Position,
        found: impl fmt::Display,
        expected: impl Into<String>,
    ) -> Self {
        Self::Malformed {
            format,
            at,
            found: shortened(&found.to_string()),
            expected: expected.into(),
        }
    }
}

/// The beginning of a text, without what a terminal would take for a command.
pub(super) fn shortened(text: &str) -> String {
    const MAX: usize = 60;
    let mut short: String = text
        .chars()
        .take(MAX)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    if text.chars().nth(MAX).is_some() {
        short.push_str("...");
    }
    short
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { at: Some(at), error } => write!(f, "{at}: {error}"),
            Self::Io { at: None, error } => error.fmt(f),
            Self::Unrecognised { found } => write!(
                f,
                "no recording forebay knows: it begins with {found}; known are CSV \
                 (\"op,id,bytes,stream\"), RMM logs (\"Thread,Time,Action,Pointer,Size,Stream\"), \
                 PyTorch snapshots (pickle), snapshots of pools (forebay.pool.v1) and forebay.trace.v1 \
                 and v2, each plain or gzip"
            ),
            Self::Malformed { format, at, found, expected } => {
                write!(f, "{format}, {at}: found {found}; expected {expected}")
            }
            Self::InvalidEvent { format, at, breach } => write!(f, "{format}, {at}: {breach}"),
            Self::TooLarge { what, limit } => write!(
                f,
                "more than {limit} {what}; if the file is sound, read it with larger limits (--max-events, for events)"
            ),
            Self::UnknownEnding { name } => write!(
                f,
                "\"{name}\" does not say which format to write: end it with .csv, .fbt, .pickle, .log \
                 (RMM) or .json (Perfetto), and .gz to pack it"
            ),
        }
    }
}

impl core::error::Error for FormatError {
    fn source(&self) -> Option<&(dyn core::error::Error + 'static)> {
        match self {
            Self::Io { error, .. } => Some(error),
            Self::InvalidEvent { breach, .. } => Some(breach),
            _ => None,
        }
    }
}
