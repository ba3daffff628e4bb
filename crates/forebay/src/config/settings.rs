//! Effective settings.

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

/// A key, its effective value, and its source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The key.
    pub key: Key,
    /// Its value, in the form that is parsed.
    pub value: String,
    /// Where it was set.
    pub source: Source,
}

/// The settings of a pool: explicit values over the preset and the defaults.
///
/// The [module](super) describes the sources and their precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// Explicit values, including the preset. Everything else is looked up.
    pub(super) explicit: Layer,
}

macro_rules! accessors {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// The effective values by key name.
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
    /// Starts a builder from the defaults.
    pub fn builder() -> SettingsBuilder {
        Self::default().into_builder()
    }

    /// Starts a builder from these settings.
    pub fn into_builder(self) -> SettingsBuilder {
        SettingsBuilder::over(self)
    }

    /// Returns these settings overridden by what `upper` sets. A preset in `upper` replaces the one named here; keys
    /// that were set explicitly are kept.
    ///
    /// Does not check rules between keys, since another layer may follow. See [`check`](Self::check).
    #[must_use]
    pub fn overlay(self, upper: Self) -> Self {
        Self { explicit: self.explicit.beneath(upper.explicit) }
    }

    /// Returns the key called `name` with its effective value and source.
    pub fn get(&self, name: &str) -> Result<Entry, ConfigError> {
        let key = Key::named(name).ok_or_else(|| ConfigError::unknown_key(name, Source::Code))?;
        Ok(self.entry(key))
    }

    /// The effective value of a key, and its source.
    pub fn entry(&self, key: Key) -> Entry {
        self.explicit.entry(&self.preset_layer(), key)
    }

    /// Every key with its effective value and source.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let preset = self.preset_layer();
        Key::ALL.iter().map(move |&key| self.explicit.entry(&preset, key))
    }

    /// The most a pool takes from a device of `total` bytes: the smaller of [`max_bytes`] and [`max_fraction`]. A pool
    /// rounds it up to a whole page of the device.
    ///
    /// [`max_bytes`]: Self::max_bytes
    /// [`max_fraction`]: Self::max_fraction
    pub fn limit_of(&self, total: Bytes) -> Bytes {
        let part = self.max_fraction().of(total);
        self.max_bytes().map_or(part, |most| most.min(part))
    }

    /// Changes a key of a live pool. Fails, without effect, if the key is fixed once a pool is built, if the value is
    /// not allowed, or if it breaks a rule between keys.
    pub fn change(&mut self, name: &str, value: &str) -> Result<(), ConfigError> {
        let Some(key) = Key::named(name) else {
            return Err(ConfigError::unknown_key(name, Source::RunTime));
        };
        self.change_keys([(key, value.to_owned())])
    }

    /// As [`change`](Self::change), by the methods of a builder: any number of keys at once.
    pub fn change_with(
        &mut self,
        change: impl FnOnce(SettingsBuilder) -> SettingsBuilder,
    ) -> Result<(), ConfigError> {
        let wanted = change(self.clone().into_builder()).build()?;
        let pairs: Vec<_> = self.entries().zip(wanted.entries()).collect();
        let differ = pairs.into_iter().filter(|(now, then)| now.value != then.value);
        self.change_keys(differ.map(|(_, then)| (then.key, then.value)))
    }

    fn change_keys(
        &mut self,
        changes: impl IntoIterator<Item = (Key, String)>,
    ) -> Result<(), ConfigError> {
        let mut changed = self.clone();
        for (key, wanted) in changes {
            if !key.is_changeable() {
                return Err(ConfigError::Fixed { in_force: Box::new(self.entry(key)), wanted });
            }
            changed.explicit.read(key, &wanted, Source::RunTime)?;
        }
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// Checks that all values are allowed and consistent: pressure thresholds must increase, and a pool must not keep
    /// more than it may take.
    ///
    /// Building a pool calls this. [`overlay`](Self::overlay) does not check its result.
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

    /// The values set by the preset.
    fn preset_layer(&self) -> Layer {
        self.explicit.preset.as_ref().map_or(Preset::Default, |held| held.value).layer()
    }
}
