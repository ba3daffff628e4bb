//! Settings in a file: TOML, one `key = value` a line.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::error::ConfigError;
use super::key::Key;
use super::settings::Settings;
use super::source::Source;

/// Upper limit for a file of settings, which has a few dozen lines; anything larger is something else.
const LONGEST: u64 = 1 << 20;

impl Settings {
    /// Reads a file of settings, in the format used for `FOREBAY_CONFIG`.
    ///
    /// Does not check rules between keys, since another layer may follow. See [`check`](Self::check).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let (settings, refused) = parse(path, content(path).as_deref(), false);
        refused.into_iter().next().map_or(Ok(settings), Err)
    }
}

/// Reads the file, or says why that failed.
pub(super) fn content(path: &Path) -> Result<Vec<u8>, String> {
    read(path).map_err(|error| error.to_string())
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    // Read one byte past the limit: this detects an endless device without reading on.
    fs::File::open(path)?.take(LONGEST + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Returns the valid entries and the errors of the others. A file that is not TOML is rejected as a whole.
pub(super) fn parse(
    path: &Path,
    content: Result<&[u8], &String>,
    by_variable: bool,
) -> (Settings, Vec<ConfigError>) {
    let mut settings = Settings::default();
    let whole = |line: Option<usize>, reason: String| ConfigError::File {
        path: path.to_owned(),
        line,
        reason,
        by_variable,
    };
    let text = match content.map_err(Clone::clone).and_then(as_text) {
        Ok(text) => text,
        Err(reason) => return (settings, vec![whole(None, reason)]),
    };
    let table = match DeTable::parse(text) {
        Ok(table) => table.into_inner(),
        Err(error) => {
            let line = error.span().map(|span| line_of(text, span.start));
            return (settings, vec![whole(line, format!("not TOML: {}", error.message()))]);
        }
    };
    // In order of lines, so that the first error reported is the first in the file.
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(name, _)| name.span().start);
    let mut refused = Vec::new();
    for (name, value) in entries {
        let source = Source::File { path: path.to_owned(), line: line_of(text, name.span().start) };
        let name = name.get_ref();
        let done = match (Key::named(name), as_written(value.get_ref())) {
            (None, _) => Err(ConfigError::unknown_key(name, source)),
            (Some(key), value) => settings.explicit.read(key, &value, source),
        };
        refused.extend(done.err());
    }
    (settings, refused)
}

fn as_text(content: &[u8]) -> Result<&str, String> {
    if content.len() as u64 > LONGEST {
        return Err("longer than 1 MiB, which no file of settings is".to_owned());
    }
    let text = str::from_utf8(content)
        .map_err(|error| format!("not UTF-8 text: byte {} is wrong", error.valid_up_to()))?;
    Ok(text)
}

/// The value as written in `FOREBAY_CONF`, so that one parser serves all sources.
fn as_written(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => text.clone().into_owned(),
        // Integers may be hexadecimal and the like. Convert those that are unsigned and fit; the others stay as written
        // and are rejected later.
        DeValue::Integer(number) => match u64::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) => value.to_string(),
            Err(_) => number.to_string(),
        },
        DeValue::Float(number) => number.as_str().trim_start_matches('+').to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(date) => date.to_string(),
        DeValue::Array(_) => "[...]".to_owned(),
        DeValue::Table(_) => "{...}".to_owned(),
    }
}

/// The line that the byte at `offset` is on, counted from 1.
fn line_of(text: &str, offset: usize) -> usize {
    let before = text.as_bytes().iter().take(offset);
    before.filter(|&&byte| byte == b'\n').count() + 1
}
