//! Settings in one line: `key:value,key:value`.

use super::error::ConfigError;
use super::key::Key;
use super::settings::Settings;
use super::source::Source;

impl Settings {
    /// Parses `key:value,key:value`. Ignores spaces around keys and values, and empty entries. If a key is repeated,
    /// the last entry applies, so that appending an entry overrides earlier ones.
    ///
    /// Does not check rules between keys, since another layer may follow. See [`check`](Self::check).
    pub fn parse_conf(text: &str) -> Result<Self, ConfigError> {
        let (settings, refused) = read(text, |entry| Source::Text { entry });
        refused.into_iter().next().map_or(Ok(settings), Err)
    }
}

/// Returns the valid entries and the errors of the others. `source` makes the source of an entry from its number.
pub(super) fn read(text: &str, source: impl Fn(usize) -> Source) -> (Settings, Vec<ConfigError>) {
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
        Some(key) => settings.explicit.read(key, value.trim(), source),
        None => Err(ConfigError::unknown_key(name, source)),
    }
}
