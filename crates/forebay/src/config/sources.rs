//! The places outside the program that settings come from, as data.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use super::error::ConfigError;
use super::key::Key;
use super::nearest::nearest;
use super::settings::Settings;
use super::source::Source;
use super::{conf, file};

/// Keys and values in one line.
const CONF: &str = "FOREBAY_CONF";
/// The path of a file.
const CONFIG: &str = "FOREBAY_CONFIG";

/// Variables and a file, from this process or made up.
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

/// What was found in all sources, the good and the bad.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Examined {
    /// What would be in force without what is refused.
    pub settings: Settings,
    /// What is refused, in the order of the sources.
    pub refused: Vec<ConfigError>,
    /// Variables that begin as forebay's do and are none of its settings.
    pub ignored: Vec<String>,
}

impl Settings {
    /// The settings of this process's environment and of the file it names, once all values are
    /// allowed, alone and together.
    pub fn from_environment() -> Result<Self, ConfigError> {
        Sources::here().resolve()
    }
}

impl Sources {
    /// This process's environment, and the file it names.
    pub fn here() -> Self {
        Self::of(std::env::vars_os()).read_file()
    }

    /// These variables. A file that they name is still to be [read](Self::read_file) or
    /// [given](Self::file).
    pub fn of(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        Self { variables: variables.into_iter().collect(), file: None }
    }

    /// The same with a file that holds `content`, or that could not be read for the reason given.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>, content: Result<Vec<u8>, String>) -> Self {
        self.file = Some((path.into(), content));
        self
    }

    /// The same with the file that the variables name, read now.
    #[must_use]
    pub fn read_file(self) -> Self {
        let Some(path) = self.named_file().map(Path::to_owned) else { return self };
        let content = file::content(&path);
        self.file(path, content)
    }

    /// The file that the variables name.
    pub fn named_file(&self) -> Option<&Path> {
        self.variable(CONFIG).map(Path::new)
    }

    /// The settings, once all values are allowed, alone and together; else the first that is not.
    pub fn resolve(&self) -> Result<Settings, ConfigError> {
        let Examined { settings, refused, .. } = self.examine();
        refused.into_iter().next().map_or(Ok(settings), Err)
    }

    /// Everything there is to say of the sources.
    pub fn examine(&self) -> Examined {
        let mut examined = Examined::default();
        for (settings, refused) in [self.in_file(), self.in_conf()] {
            examined.settings = examined.settings.overlay(settings);
            examined.refused.extend(refused);
        }
        self.add_variables(&mut examined);
        // A rule between keys says little where one of them was refused.
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
            // Settings without a file that was asked for would be others than those asked for.
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

    /// The variables of single keys, above what is there; and what to say of the others that begin
    /// as forebay's.
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

    /// A variable that is set to something: to set one to nothing is how a shell takes it back.
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let value = self.variables.get(OsStr::new(name));
        value.map(OsString::as_os_str).filter(|value| !value.is_empty())
    }
}

/// The key that was meant by a variable that is none.
///
/// Names that begin as forebay's are not forebay's alone: programs and tests that use it have their
/// own. So only what is a letter or two away from a key is taken for a slip; the rest is let be.
fn slip(name: &str) -> Option<Key> {
    nearest(name, (name.chars().count() / 4).max(1))
}

fn text<'a>(value: &'a OsStr, variable: &str) -> Result<&'a str, ConfigError> {
    value.to_str().ok_or_else(|| ConfigError::NotText {
        value: value.to_string_lossy().into_owned(),
        source: Source::Environment { variable: variable.to_owned() },
    })
}
