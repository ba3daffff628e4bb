//! A layer: the keys that one source sets.

use core::time::Duration;

use forebay_core::{Bytes, PageSize};

use super::choice::{Counting, Rounding, Zeroing};
use super::error::ConfigError;
use super::fraction::Fraction;
use super::key::{Key, bounds, default};
use super::kind::{Bounds, Kind};
use super::preset::Preset;
use super::report_path::ReportPath;
use super::settings::Entry;
use super::source::{Held, Source};
use super::table::for_each_key;

macro_rules! layer {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// A subset of the keys, each with its value and source.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(super) struct Layer {
            $(pub(super) $field: Option<Held<$kind>>,)*
        }

        impl Layer {
            /// Parses `text` as the value of `key`. An invalid value changes nothing.
            pub(super) fn read(
                &mut self,
                key: Key,
                text: &str,
                source: Source,
            ) -> Result<(), ConfigError> {
                match key {
                    $(Key::$key => {
                        let value = read(key, text, bounds::$field(), &source)?;
                        self.$field = Some(Held { value, source });
                    })*
                }
                Ok(())
            }

            /// Merges two layers: each key as `upper` has it, else as this one has it.
            pub(super) fn beneath(self, upper: Self) -> Self {
                Self { $($field: upper.$field.or(self.$field),)* }
            }

            /// The effective entry for a key, with this layer over `lower` and both over the defaults.
            pub(super) fn entry(&self, lower: &Self, key: Key) -> Entry {
                match key {
                    $(Key::$key => match self.$field.as_ref().or(lower.$field.as_ref()) {
                        Some(held) => {
                            Entry { key, value: held.value.write(), source: held.source.clone() }
                        }
                        None => {
                            let value = default::$field().write();
                            Entry { key, value, source: Source::Default }
                        }
                    },)*
                }
            }

            /// Checks values that the program set without parsing.
            pub(super) fn check(&self) -> Result<(), ConfigError> {
                $(if let Some(held) = &self.$field
                    && !bounds::$field().allow(&held.value)
                {
                    return Err(refused(Key::$key, &held.value.write(), &held.source));
                })*
                Ok(())
            }
        }
    };
}

for_each_key!(layer);

/// Parses `text` and checks it against `bounds`.
fn read<T: Kind>(
    key: Key,
    text: &str,
    bounds: Bounds<T>,
    source: &Source,
) -> Result<T, ConfigError> {
    T::read(text).filter(|value| bounds.allow(value)).ok_or_else(|| refused(key, text, source))
}

fn refused(key: Key, value: &str, source: &Source) -> ConfigError {
    ConfigError::BadValue { key, value: value.to_owned(), source: source.clone() }
}
