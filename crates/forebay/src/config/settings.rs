//! Effective settings, and the builder with which a program sets them.

use core::time::Duration;
use std::path::PathBuf;

use forebay_core::{Bytes, PageSize, SizeClasses};

use super::error::ConfigError;
use super::key::{Key, Rule, for_each_key, rule};
use super::source::{Entry, Held, Source};
use super::value::{Counting, Fraction, Kind, PoolName, Preset, Zeroing, page_of};

macro_rules! settings {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// The settings of a pool: explicit values over the preset and the defaults.
        ///
        /// The [module](super) describes the sources and their precedence.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Settings {
            // Explicit values, including the preset. Everything else is looked up.
            $($field: Option<Held<$kind>>,)*
        }

        /// The effective values by key name.
        impl Settings {
            $(
                #[doc = $help]
                pub fn $field(&self) -> $kind {
                    let explicit = self.$field.as_ref().map(|held| held.value.clone());
                    let of_preset = || Some(self.preset_values().$field?.value);
                    explicit.or_else(of_preset).unwrap_or_else(|| rule::$field().default)
                }
            )*
        }

        impl Settings {
            /// The effective value of a key, and its source.
            pub fn entry(&self, key: Key) -> Entry {
                match key {
                    $(Key::$key => {
                        let held = self.$field.clone().or_else(|| self.preset_values().$field);
                        let source = held.map_or(Source::Default, |held| held.source);
                        Entry { key, value: self.$field().write(), source }
                    })*
                }
            }

            /// Returns these settings overridden by what `upper` sets. A preset in `upper` replaces the one named here;
            /// keys that were set explicitly are kept.
            ///
            /// Does not check rules between keys, since another layer may follow. See [`check`](Self::check).
            #[must_use]
            pub fn overlay(self, upper: Self) -> Self {
                Self { $($field: upper.$field.or(self.$field),)* }
            }

            /// Parses `text` as the value of `key`. An invalid value changes nothing.
            pub(super) fn read(
                &mut self,
                key: Key,
                text: &str,
                source: Source,
            ) -> Result<(), ConfigError> {
                match key {
                    $(Key::$key => self.$field = Some(read(key, rule::$field(), text, source)?),)*
                }
                Ok(())
            }

            /// These settings with the values that differ between `before` and `wanted`.
            fn changed_as(&self, before: &Self, wanted: &Self) -> Result<Self, ConfigError> {
                let mut changed = self.clone();
                $(
                    let value = wanted.$field();
                    if value != before.$field() {
                        if !Key::$key.is_changeable() {
                            return Err(self.fixed(Key::$key, value.write()));
                        }
                        changed.$field = Some(Held { value, source: Source::RunTime });
                    }
                )*
                Ok(changed)
            }

            /// Checks values that the program set without parsing.
            fn check_bounds(&self) -> Result<(), ConfigError> {
                $(if let Some(held) = &self.$field
                    && !rule::$field().bounds.allow(&held.value)
                {
                    return Err(refused(Key::$key, &held.value.write(), held.source.clone()));
                })*
                Ok(())
            }
        }

        /// One setter per key. [`build`](Self::build) checks what the types do not.
        impl SettingsBuilder {
            $(
                #[doc = $help]
                pub fn $field(mut self, value: impl Into<$kind>) -> Self {
                    let held = Held { value: value.into(), source: Source::Code };
                    self.settings.$field = Some(held);
                    self
                }
            )*
        }
    };
}

for_each_key!(settings);

/// Parses `text` and checks it against the rule.
fn read<T: Kind>(
    key: Key,
    rule: Rule<T>,
    text: &str,
    source: Source,
) -> Result<Held<T>, ConfigError> {
    match T::read(text).filter(|value| rule.bounds.allow(value)) {
        Some(value) => Ok(Held { value, source }),
        None => Err(refused(key, text, source)),
    }
}

fn refused(key: Key, value: &str, source: Source) -> ConfigError {
    ConfigError::BadValue { key, value: value.to_owned(), source }
}

impl Settings {
    /// Starts a builder from the defaults.
    pub fn builder() -> SettingsBuilder {
        Self::default().into_builder()
    }

    /// Starts a builder from these settings.
    pub fn into_builder(self) -> SettingsBuilder {
        SettingsBuilder { settings: self }
    }

    /// Returns the key called `name` with its effective value and source.
    pub fn get(&self, name: &str) -> Result<Entry, ConfigError> {
        let key = Key::named(name).ok_or_else(|| ConfigError::unknown_key(name, Source::Code))?;
        Ok(self.entry(key))
    }

    /// Every key with its effective value and source.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        Key::ALL.iter().map(|&key| self.entry(key))
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
        if !key.is_changeable() {
            return Err(self.fixed(key, value.to_owned()));
        }
        let mut changed = self.clone();
        changed.read(key, value, Source::RunTime)?;
        changed.check()?;
        *self = changed;
        Ok(())
    }

    /// As [`change`](Self::change), by the methods of a builder: any number of keys at once.
    pub fn change_with(
        &mut self,
        change: impl FnOnce(SettingsBuilder) -> SettingsBuilder,
    ) -> Result<(), ConfigError> {
        let before = self.clone();
        let wanted = change(before.clone().into_builder()).build()?;
        self.adopt(&before, &wanted)
    }

    /// Changes the keys that differ between `before` and `wanted`.
    pub(crate) fn adopt(&mut self, before: &Self, wanted: &Self) -> Result<(), ConfigError> {
        let changed = self.changed_as(before, wanted)?;
        changed.check()?;
        *self = changed;
        Ok(())
    }

    fn fixed(&self, key: Key, wanted: String) -> ConfigError {
        ConfigError::Fixed { in_force: Box::new(self.entry(key)), wanted }
    }

    /// Checks that all values are allowed and consistent: pressure thresholds must increase, and a pool must not keep
    /// more than it may take.
    ///
    /// Building a pool calls this. [`overlay`](Self::overlay) does not check its result.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.check_bounds()?;
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
}

impl Settings {
    /// The values set by the preset.
    fn preset_values(&self) -> Self {
        self.preset.as_ref().map_or(Preset::Default, |held| held.value).values()
    }
}

impl Preset {
    /// The values that it sets.
    fn values(self) -> Settings {
        let none = Settings::default();
        match self {
            Self::Default => none,
            Self::HighFrequency => Settings {
                magazine_bytes: self.held(Bytes::mib(64)),
                upkeep: self.held(false),
                collect_after: self.held(None),
                statistics: self.held(Counting::On),
                ..none
            },
            Self::MemoryConstrained => Settings {
                magazine_bytes: self.held(Bytes::mib(1)),
                upkeep: self.held(true),
                collect_after: self.held(Some(Duration::from_secs(5))),
                min_bytes: self.held(Bytes::ZERO),
                largest_page: self.held(page_of(Bytes::mib(8))),
                ..none
            },
            Self::Debug => Settings {
                zero: self.held(Zeroing::Never),
                poison: self.held(true),
                canaries: self.held(true),
                guard_pages: self.held(true),
                quarantine: self.held(Bytes::mib(64)),
                history: self.held(65_536),
                statistics: self.held(Counting::Exact),
                strict_streams: self.held(true),
                ..none
            },
        }
    }

    fn held<T>(self, value: T) -> Option<Held<T>> {
        Some(Held { value, source: Source::Preset(self) })
    }
}

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

impl SettingsBuilder {
    /// Sets the key called `name`, with its value written as in a file.
    pub fn set(mut self, name: &str, value: &str) -> Result<Self, ConfigError> {
        let Some(key) = Key::named(name) else {
            return Err(ConfigError::unknown_key(name, Source::Code));
        };
        self.settings.read(key, value, Source::Code)?;
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
