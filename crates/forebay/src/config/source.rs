//! Where a value came from.

use core::fmt;
use std::path::PathBuf;

use super::key::Key;
use super::value::Preset;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// Not set.
    Default,
    /// The preset in force.
    Preset(Preset),
    /// A file.
    File {
        /// Its path.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// The variable `FOREBAY_CONF`.
    Conf {
        /// The number of the entry, counted from 1.
        entry: usize,
    },
    /// The key's own variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// A text in the format of `FOREBAY_CONF`, passed by the program.
    Text {
        /// The number of the entry, counted from 1.
        entry: usize,
    },
    /// A call of the program.
    Code,
    /// A change to a live pool.
    RunTime,
}

impl Source {
    /// The kind of source in one word, for programs that read reports.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Preset(_) => "preset",
            Self::File { .. } => "file",
            Self::Conf { .. } => "conf",
            Self::Environment { .. } => "environment",
            Self::Text { .. } => "text",
            Self::Code => "code",
            Self::RunTime => "run_time",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset(preset) => write!(f, "preset {preset}"),
            Self::File { path, line } => write!(f, "{}, line {line}", path.display()),
            Self::Conf { entry } => write!(f, "FOREBAY_CONF, entry {entry}"),
            Self::Environment { variable } => f.write_str(variable),
            Self::Text { entry } => write!(f, "entry {entry} of the text given"),
            Self::Code => f.write_str("set by the program"),
            Self::RunTime => f.write_str("changed while running"),
        }
    }
}

/// A key, its effective value, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value, in the form that is parsed.
    pub value: String,
    /// Where it was set.
    pub source: Source,
}

/// A value and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held<T> {
    pub(super) value: T,
    pub(super) source: Source,
}
