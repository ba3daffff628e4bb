//! Settings that the program sets itself.

use core::time::Duration;

use forebay_core::{Bytes, PageSize};

use super::choice::{Counting, Rounding, Zeroing};
use super::error::ConfigError;
use super::fraction::Fraction;
use super::key::Key;
use super::preset::Preset;
use super::report_path::ReportPath;
use super::settings::Settings;
use super::source::{Held, Source};
use super::table::for_each_key;

/// Overrides settings from the program, key by key.
///
/// ```
/// use forebay::config::{Preset, Settings};
/// use forebay::Bytes;
///
/// let settings = Settings::builder()
///     .preset(Preset::MemoryConstrained)
///     .max_bytes(Bytes::gib(8))
///     .set("collect_after", "250ms")?
///     .build()?;
/// assert!(settings.upkeep());
/// # Ok::<(), forebay::config::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are built and given to a pool"]
pub struct SettingsBuilder {
    settings: Settings,
}

macro_rules! setters {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// One setter per key. [`build`](Self::build) checks what the types do not.
        impl SettingsBuilder {
            $(
                #[doc = $help]
                pub fn $field(mut self, value: impl Into<$kind>) -> Self {
                    let held = Held { value: value.into(), source: Source::Code };
                    self.settings.explicit.$field = Some(held);
                    self
                }
            )*
        }
    };
}

for_each_key!(setters);

impl SettingsBuilder {
    /// Starts from `settings`.
    pub(super) const fn over(settings: Settings) -> Self {
        Self { settings }
    }

    /// Sets the key called `name`, with its value written as in a file.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let Some(key) = Key::named(name) else {
            return Err(ConfigError::unknown_key(name, Source::Code));
        };
        self.settings.explicit.read(key, value, Source::Code)?;
        Ok(self)
    }

    /// Applies everything that `upper` sets.
    pub fn overlay(mut self, upper: Settings) -> Self {
        self.settings = self.settings.overlay(upper);
        self
    }

    /// Returns the settings. Fails if a value is not allowed or values conflict.
    pub fn build(self) -> Result<Settings, ConfigError> {
        self.settings.check()?;
        Ok(self.settings)
    }
}
