//! The external sources of settings, as data: variables, a line of `key:value,key:value`, and a file of TOML with one
//! `key = value` a line.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fs, io};

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, nearest};
use super::key::Key;
use super::settings::Settings;
use super::source::Source;

/// The variable with keys and values in one line.
const CONF: &str = "FOREBAY_CONF";
/// The variable with the path of a file.
const CONFIG: &str = "FOREBAY_CONFIG";

/// Variables and a file, from this process or synthetic.
///
/// ```
/// use forebay::config::Sources;
///
/// let sources = Sources::of([("FOREBAY_CONF".into(), "upkeep:on".into())])
///     .file("any.toml", Ok(b"upkeep = false\nhistory = 100".to_vec()));
/// let settings = sources.resolve()?;
/// assert!(settings.upkeep(), "the variable is above the file");
/// assert_eq!(settings.history(), 100);
/// # Ok::<(), forebay::config::ConfigError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    variables: BTreeMap<OsString, OsString>,
    file: Option<(PathBuf, Result<Vec<u8>, String>)>,
}

/// Everything found in the sources, valid and invalid.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examined {
    /// Effective settings, ignoring invalid entries.
    pub settings: Settings,
    /// Errors of invalid entries, in the order of the sources.
    pub refused: Vec<ConfigError>,
    /// Variables with forebay's prefix that are not settings.
    pub ignored: Vec<String>,
}

impl Settings {
    /// The settings of this process's environment and of the file it names. Fails if a value is not allowed or values
    /// conflict.
    pub fn from_environment() -> Result<Self, ConfigError> {
        Sources::here().resolve()
    }

    /// Reads a file of settings, in the format used for `FOREBAY_CONFIG`.
    ///
    /// Does not check rules between keys, since another layer may follow. See [`check`](Self::check).
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        let path = path.as_ref();
        let (settings, refused) = parse_file(path, read_file(path).as_deref(), false);
        refused.into_iter().next().map_or(Ok(settings), Err)
    }

    /// Parses `key:value,key:value`. Ignores spaces around keys and values, and empty entries. If a key is repeated,
    /// the last entry applies, so that appending an entry overrides earlier ones.
    ///
    /// Does not check rules between keys, since another layer may follow. See [`check`](Self::check).
    pub fn parse_conf(text: &str) -> Result<Self, ConfigError> {
        let (settings, refused) = parse_conf(text, |entry| Source::Text { entry });
        refused.into_iter().next().map_or(Ok(settings), Err)
    }
}

impl Sources {
    /// This process's environment and the file it names.
    pub fn here() -> Self {
        Self::of(std::env::vars_os()).read_file()
    }

    /// Uses these variables. If they name a file, it must still be [read](Self::read_file) or [given](Self::file).
    pub fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self { variables: variables.into_iter().collect(), file: None }
    }

    /// Adds a file with `content`, or one that could not be read for the given reason.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>, content: Result<Vec<u8>, String>) -> Self {
        self.file = Some((path.into(), content));
        self
    }

    /// Reads the file that the variables name, if any.
    #[must_use]
    pub fn read_file(self) -> Self {
        let Some(path) = self.named_file().map(Path::to_owned) else { return self };
        let content = read_file(&path);
        self.file(path, content)
    }

    /// The path of the file that the variables name.
    pub fn named_file(&self) -> Option<&Path> {
        self.variable(CONFIG).map(Path::new)
    }

    /// Returns the settings, or the first error.
    pub fn resolve(&self) -> Result<Settings, ConfigError> {
        let Examined { settings, refused, .. } = self.examine();
        refused.into_iter().next().map_or(Ok(settings), Err)
    }

    /// Examines all sources.
    pub fn examine(&self) -> Examined {
        let mut examined = Examined::default();
        for (settings, refused) in [self.in_file(), self.in_conf()] {
            examined.settings = examined.settings.overlay(settings);
            examined.refused.extend(refused);
        }
        self.add_variables(&mut examined);
        // A rule between keys means little if one of them is invalid.
        if examined.refused.is_empty() {
            examined.refused.extend(examined.settings.check().err());
        }
        examined
    }

    fn in_file(&self) -> (Settings, Vec<ConfigError>) {
        let named = self.named_file();
        match (&self.file, named) {
            (Some((path, content)), _) => parse_file(path, content.as_deref(), named == Some(path)),
            // Without the requested file, the settings would not be those requested.
            (None, Some(path)) => parse_file(path, Err(&"was not read".to_owned()), true),
            (None, None) => Default::default(),
        }
    }

    fn in_conf(&self) -> (Settings, Vec<ConfigError>) {
        let Some(value) = self.variable(CONF) else { return Default::default() };
        match text(value, CONF) {
            Ok(value) => parse_conf(value, |entry| Source::Conf { entry }),
            Err(error) => (Settings::default(), vec![error]),
        }
    }

    /// Applies the variables of single keys on top, and classifies other variables with forebay's prefix.
    fn add_variables(&self, examined: &mut Examined) {
        for (variable, value) in &self.variables {
            let variable = variable.to_string_lossy();
            let Some(name) = variable.strip_prefix(Key::PREFIX) else { continue };
            if value.is_empty() || [CONF, CONFIG].contains(&variable.as_ref()) {
                continue;
            }
            let source = Source::Environment { variable: variable.clone().into_owned() };
            let known = Key::ALL.iter().copied().find(|key| key.variable() == variable);
            let done = match known {
                Some(key) => text(value, &variable)
                    .and_then(|value| examined.settings.read(key, value, source)),
                None => match slip(name) {
                    Some(key) => {
                        let name = name.to_owned();
                        Err(ConfigError::UnknownKey { name, source, suggestion: Some(key) })
                    }
                    None => {
                        examined.ignored.push(variable.into_owned());
                        Ok(())
                    }
                },
            };
            examined.refused.extend(done.err());
        }
    }

    /// The value of a variable, ignoring empty ones: shells unset a variable by setting it to nothing.
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let value = self.variables.get(OsStr::new(name));
        value.map(OsString::as_os_str).filter(|value| !value.is_empty())
    }
}

/// The key that a misspelt variable probably meant.
///
/// Programs and tests that use forebay have variables with this prefix too. So only names within a letter or two of a
/// key count as misspelt; others are ignored.
fn slip(name: &str) -> Option<Key> {
    nearest(name, (name.chars().count() / 4).max(1))
}

fn text<'a>(value: &'a OsStr, variable: &str) -> Result<&'a str, ConfigError> {
    value.to_str().ok_or_else(|| ConfigError::NotText {
        value: value.to_string_lossy().into_owned(),
        source: Source::Environment { variable: variable.to_owned() },
    })
}

/// Returns the valid entries and the errors of the others. `source` makes the source of an entry from its number.
pub(super) fn parse_conf(
    text: &str,
    source: impl Fn(usize) -> Source,
) -> (Settings, Vec<ConfigError>) {
    let mut settings = Settings::default();
    let mut refused = Vec::new();
    for (index, entry) in text.split(',').enumerate() {
        let entry = entry.trim();
        if entry.is_empty() {
            continue;
        }
        if let Err(error) = read_entry(&mut settings, entry, source(index + 1)) {
            refused.push(error);
        }
    }
    (settings, refused)
}

fn read_entry(settings: &mut Settings, entry: &str, source: Source) -> Result<(), ConfigError> {
    let Some((name, value)) = entry.split_once(':') else {
        return Err(ConfigError::NoColon { entry: entry.to_owned(), source });
    };
    let name = name.trim();
    match Key::named(name) {
        Some(key) => settings.read(key, value.trim(), source),
        None => Err(ConfigError::unknown_key(name, source)),
    }
}

/// Upper limit for a file of settings, which has a few dozen lines; anything larger is something else.
const LONGEST: u64 = 1 << 20;

/// Reads the file, or says why that failed.
fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let mut content = Vec::new();
    #[cfg(unix)]
    if fs::metadata(path).is_ok_and(|of| std::os::unix::fs::FileTypeExt::is_fifo(&of.file_type())) {
        return Err("a pipe, which may never end; name a file".to_owned());
    }
    // Read one byte past the limit: this detects an endless device without reading on.
    let read =
        fs::File::open(path).and_then(|file| file.take(LONGEST + 1).read_to_end(&mut content));
    read.map(|_| content).map_err(|error: io::Error| error.to_string())
}

/// Returns the valid entries and the errors of the others. A file that is not TOML is rejected as a whole.
fn parse_file(
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
            (Some(key), value) => settings.read(key, &value, source),
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
