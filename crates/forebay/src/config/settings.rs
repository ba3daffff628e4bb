//! What is in force.

use core::time::Duration;

use forebay_core::{Bytes, PageSize};

use super::builder::SettingsBuilder;
use super::choice::{Counting, Rounding, Zeroing};
use super::error::ConfigError;
use super::fraction::Fraction;
use super::key::{Key, default};
use super::layer::Layer;
use super::preset::Preset;
use super::report_path::ReportPath;
use super::source::Source;
use super::table::for_each_key;

/// A key, its value in force, and where that came from.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value, as it can be written.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

/// The settings of a pool: what someone set, and beneath it the preset and the defaults.
///
/// The [module](super) says where they come from and which wins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// What someone set, the preset among it. Everything else is looked up.
    pub(super) explicit: Layer,
}

macro_rules! accessors {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// The values in force, by name.
        impl Settings {
            $(
                #[doc = $help]
                pub fn $field(&self) -> $kind {
                    let preset = self.preset_layer();
                    match self.explicit.$field.as_ref().or(preset.$field.as_ref()) {
                        Some(held) => held.value,
                        None => default::$field(),
                    }
                }
            )*
        }
    };
}

for_each_key!(accessors);

impl Settings {
    /// The defaults, to be changed by the program.
    pub fn builder() -> SettingsBuilder {
        Self::default().into_builder()
    }

    /// These, to be changed by the program.
    pub fn into_builder(self) -> SettingsBuilder {
        SettingsBuilder::over(self)
    }

    /// These, with what `upper` sets above them. A preset that `upper` names takes the place of the
    /// one named here; keys that were set by themselves stay as they are.
    ///
    /// Rules between keys are not checked here, as one more layer may come: see
    /// [`check`](Self::check).
    #[must_use]
    pub fn overlay(self, upper: Self) -> Self {
        Self { explicit: self.explicit.beneath(upper.explicit) }
    }

    /// The key of that name, its value in force, and where that came from.
    pub fn get(&self, name: &str) -> Result<Entry, ConfigError> {
        let key = Key::named(name).ok_or_else(|| ConfigError::unknown_key(name, Source::Code))?;
        Ok(self.entry(key))
    }

    /// A key's value in force, and where that came from.
    pub fn entry(&self, key: Key) -> Entry {
        self.explicit.entry(&self.preset_layer(), key)
    }

    /// Every key, its value in force, and where that came from.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let preset = self.preset_layer();
        Key::ALL.iter().map(move |&key| self.explicit.entry(&preset, key))
    }

    /// The most a pool takes from a device of `total` bytes: the lesser of [`max_bytes`] and
    /// [`max_fraction`]. A pool rounds it up to a whole page of the device.
    ///
    /// [`max_bytes`]: Self::max_bytes
    /// [`max_fraction`]: Self::max_fraction
    pub fn limit_of(&self, total: Bytes) -> Bytes {
        let part = self.max_fraction().of(total);
        self.max_bytes().map_or(part, |most| most.min(part))
    }

    /// Changes a key of a pool that lives. Refused, with nothing changed, where the key is fixed
    /// once a pool is built, where the value is not allowed, or where it breaks a rule between keys.
    pub fn change(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let source = Source::RunTime;
        let Some(key) = Key::named(name) else {
            return Err(ConfigError::unknown_key(name, source));
        };
        if !key.is_changeable() {
            let in_force = Box::new(self.entry(key));
            return Err(ConfigError::Fixed { in_force, wanted: value.to_owned() });
        }
        let mut changed = self.clone();
        changed.explicit.read(key, value, source)?;
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Whether all values are allowed, alone and together: each threshold of pressure above the one
    /// before, and no more kept than a pool may take.
    ///
    /// Whoever builds a pool calls this. What was put together by [`overlay`](Self::overlay) has not
    /// been checked.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.explicit.check()?;
        let steps = [
            (Key::PressureLow, self.pressure_low()),
            (Key::PressureModerate, self.pressure_moderate()),
            (Key::PressureHigh, self.pressure_high()),
            (Key::PressureCritical, self.pressure_critical()),
        ];
        for pair in steps.windows(2) {
            if let &[(lower, below), (upper, above)] = pair
                && below >= above
            {
                return Err(self.disagreement(lower, upper, "must be less than"));
            }
        }
        if self.max_bytes().is_some_and(|most| most < self.min_bytes()) {
            return Err(self.disagreement(Key::MinBytes, Key::MaxBytes, "must not be more than"));
        }
        Ok(())
    }

    fn disagreement(&self, one: Key, other: Key, rule: &'static str) -> ConfigError {
        let [one, other] = [one, other].map(|key| Box::new(self.entry(key)));
        ConfigError::Disagreement { one, rule, other }
    }

    /// What the preset sets.
    fn preset_layer(&self) -> Layer {
        self.explicit.preset.as_ref().map_or(Preset::Default, |held| held.value).layer()
    }
}
