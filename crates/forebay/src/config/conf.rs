//! Settings in one line: `key:value,key:value`.

use super::error::ConfigError;
use super::key::Key;
use super::settings::Settings;
use super::source::Source;

impl Settings {
    /// Reads `key:value,key:value`. Spaces around keys and values do not count, nor do entries with
    /// nothing in them; of a key that comes twice the last counts, so that an entry can be appended
    /// to what is there already.
    ///
    /// Rules between keys are not checked: one more layer may come. See [`check`](Self::check).
    pub fn parse_conf(text: &str) -> Result<Self, ConfigError> {
        let (settings, refused) = read(text, |entry| Source::Text { entry });
        refused.into_iter().next().map_or(Ok(settings), Err)
    }
}

/// What of the text can be read, and what is refused. `source` makes the source of an entry from its
/// number.
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
