//! Why settings are invalid.

use core::fmt;
use std::path::PathBuf;

use super::key::Key;
use super::source::{Entry, Source};

/// Why settings are invalid: what was given, where, and what was expected.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such setting.
    UnknownKey {
        /// The name given.
        name: String,
        /// Where it was given.
        source: Source,
        /// The key that was probably meant.
        suggestion: Option<Key>,
    },
    /// The key does not take that value.
    BadValue {
        /// The key.
        key: Key,
        /// The value given.
        value: String,
        /// Where it was given.
        source: Source,
    },
    /// Two keys have values that conflict.
    Disagreement {
        /// The first entry.
        one: Box<Entry>,
        /// How the two must relate, such as "must be less than".
        rule: &'static str,
        /// The second entry.
        other: Box<Entry>,
    },
    /// The key cannot change once a pool is built.
    Fixed {
        /// The current entry.
        in_force: Box<Entry>,
        /// The requested value.
        wanted: String,
    },
    /// An entry of `FOREBAY_CONF`, or of a text like it, has no colon.
    NoColon {
        /// The entry.
        entry: String,
        /// Where it was given.
        source: Source,
    },
    /// A variable holds bytes that are not UTF-8.
    NotText {
        /// The value, as far as it can be decoded.
        value: String,
        /// Where it was given.
        source: Source,
    },
    /// A file cannot be read, or is malformed.
    File {
        /// The path of the file.
        path: PathBuf,
        /// The line, counted from 1, if known.
        line: Option<usize>,
        /// What is wrong.
        reason: String,
        /// Whether the variable `FOREBAY_CONFIG` named it.
        by_variable: bool,
    },
}

impl ConfigError {
    /// The error for an unknown name, with the key that was probably meant.
    pub(super) fn unknown_key(name: &str, source: Source) -> Self {
        let suggestion = nearest(name, slips(name));
        Self::UnknownKey { name: name.to_owned(), source, suggestion }
    }

    /// Where the invalid value was set. If two keys conflict, the origin of one that is not a default. `None` for a
    /// file as a whole.
    pub fn origin(&self) -> Option<&Source> {
        match self {
            Self::UnknownKey { source, .. }
            | Self::BadValue { source, .. }
            | Self::NoColon { source, .. }
            | Self::NotText { source, .. } => Some(source),
            Self::Disagreement { one, other, .. } => {
                let set = one.source != Source::Default;
                Some(if set { &one.source } else { &other.source })
            }
            Self::Fixed { .. } => Some(&Source::RunTime),
            Self::File { .. } => None,
        }
    }
}

forebay_hal::debug_as_message!(ConfigError {
    UnknownKey { name, source, suggestion },
    BadValue { key, value, source },
    Disagreement { one, rule, other },
    Fixed { in_force, wanted },
    NoColon { entry, source },
    NotText { value, source },
    File { path, line, reason, by_variable },
});

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKey { name, source: Source::Environment { variable }, suggestion } => {
                write!(f, "unknown variable {}: ", Quoted(variable))?;
                match suggestion {
                    Some(key) => write!(f, "did you mean {}?", key.variable()),
                    None => write!(f, "there is no setting {}", Quoted(name)),
                }
            }
            Self::UnknownKey { name, source, suggestion } => {
                write!(f, "unknown setting {} ({source}): ", Quoted(name))?;
                match suggestion {
                    Some(key) => write!(f, "did you mean {key}?"),
                    None => {
                        let keys: Vec<&str> = Key::ALL.iter().map(|key| key.name()).collect();
                        write!(f, "the settings are {}", keys.join(", "))
                    }
                }
            }
            Self::BadValue { key, value, source } => {
                let allowed = key.allowed();
                write!(f, "{key} cannot be {} ({source}): expected {allowed}", Quoted(value))
            }
            Self::Disagreement { one, rule, other } => write!(
                f,
                "{} {rule} {}: they are {} ({}) and {} ({})",
                one.key, other.key, one.value, one.source, other.value, other.source
            ),
            Self::Fixed { in_force, wanted } => write!(
                f,
                "{} cannot change to {} in a running pool: it is {} ({}); create another pool with it",
                in_force.key,
                Quoted(wanted),
                in_force.value,
                in_force.source
            ),
            Self::NoColon { entry, source } => {
                write!(f, "{} is not key:value ({source})", Quoted(entry))?;
                match meant(entry) {
                    Some((key, value)) => {
                        write!(f, ": write {key}:{}, with a comma before the next", Plain(value))?
                    }
                    None if entry.contains('/') || entry.ends_with(".toml") => {
                        write!(f, "; a file is named by FOREBAY_CONFIG")?;
                    }
                    None => {}
                }
                Ok(())
            }
            Self::NotText { value, source } => {
                write!(f, "{source} holds bytes that are not UTF-8: {}", Quoted(value))
            }
            Self::File { path, line, reason, by_variable } => {
                let path = path.display().to_string();
                match line {
                    Some(line) => write!(f, "{path}, line {line}: {reason}")?,
                    None => write!(f, "{}: {reason}", Quoted(&path))?,
                }
                if *by_variable {
                    write!(f, " (named by FOREBAY_CONFIG")?;
                    let keys = line.is_none() && path.contains(':');
                    f.write_str(if keys { "; keys are set by FOREBAY_CONF)" } else { ")" })?;
                }
                Ok(())
            }
        }
    }
}

impl core::error::Error for ConfigError {}

/// Splits an entry written as in a shell or a file, `key=value`, or separated by a space. `None` if it does not start
/// with a key, exactly or approximately.
fn meant(entry: &str) -> Option<(Key, &str)> {
    let (name, value) = entry.split_once('=').or_else(|| entry.split_once(char::is_whitespace))?;
    let name = name.trim();
    let key = Key::named(name).or_else(|| nearest(name, slips(name)))?;
    // Several entries run together are not one value.
    let one = !value.trim().is_empty() && !value.contains(['=', ';']);
    Some((key, if one { value.trim() } else { "VALUE" }))
}

/// The key whose name is nearest to `name`, with at most `most` letters added, left out, replaced or swapped.
pub(super) fn nearest(name: &str, most: usize) -> Option<Key> {
    let wanted = name.to_lowercase().replace('-', "_");
    // The search takes as many steps as both names have letters together: skip names much longer than any key.
    let longest = Key::ALL.iter().map(|key| key.name().len()).max().unwrap_or(0);
    if wanted.chars().count() > longest.saturating_add(most) {
        return None;
    }
    let distances = Key::ALL.iter().map(|&key| (strsim::osa_distance(&wanted, key.name()), key));
    distances.filter(|&(distance, _)| distance <= most).min().map(|(_, key)| key)
}

/// How many letters of a misspelt name may differ: two in five. Beyond that it is another word.
fn slips(name: &str) -> usize {
    (name.chars().count() * 2 / 5).max(1)
}

/// Untrusted input in quotes: escapes control characters, and truncates long text.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", Plain(self.0))
    }
}

/// The same without quotes, for text that can be typed as it is.
struct Plain<'a>(&'a str);

impl Plain<'_> {
    /// Long enough for users to recognise their input.
    const MAX: usize = 80;
}

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cut = self.0.char_indices().nth(Self::MAX).map(|(index, _)| index);
        let shown = cut.and_then(|index| self.0.get(..index)).unwrap_or(self.0);
        write!(f, "{}{}", shown.escape_debug(), if cut.is_some() { "..." } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_capitals_and_dashes_are_seen_through() {
        for slip in ["max_byets", "max_byte", "max_bbytes", "nax_bytes", "maxbytes"] {
            assert_eq!(nearest(slip, 1), Some(Key::MaxBytes), "{slip}");
        }
        assert_eq!(nearest("MAX-BYTES", 0), Some(Key::MaxBytes));
        assert_eq!(nearest("pressure", 2), None, "four keys begin so, and none is meant");
        assert_eq!(nearest(&"x".repeat(1_000_000), 2), None);
    }
}
