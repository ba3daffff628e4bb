//! The external sources of settings, as data.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::key::Key;
use super::nearest::nearest;
use super::settings::Settings;
use super::source::Source;
use super::{conf, file};

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
        let content = file::content(&path);
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
            (Some((path, content)), _) => {
                file::parse(path, content.as_deref(), named == Some(path))
            }
            // Without the requested file, the settings would not be those requested.
            (None, Some(path)) => file::parse(path, Err(&"was not read".to_owned()), true),
            (None, None) => Default::default(),
        }
    }

    fn in_conf(&self) -> (Settings, Vec<ConfigError>) {
        let Some(value) = self.variable(CONF) else { return Default::default() };
        match text(value, CONF) {
            Ok(value) => conf::read(value, |entry| Source::Conf { entry }),
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
                    .and_then(|value| examined.settings.explicit.read(key, value, source)),
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
