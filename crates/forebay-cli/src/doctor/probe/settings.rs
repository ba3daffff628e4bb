//! The settings of pools created from the environment.

use forebay::Settings;
use forebay::config::Entry;

use crate::doctor::report::{Owner, Setting};

/// Every key of the library, as it is in force.
pub(super) fn pool(settings: &Settings) -> impl Iterator<Item = Setting> {
    settings.entries().map(|Entry { key, value, source, .. }| Setting {
        name: key.name(),
        of: Owner::Pool,
        value: Some(value),
        source: source.name(),
        whence: source.to_string(),
        changeable: key.is_changeable(),
        effect: key.help(),
    })
}
