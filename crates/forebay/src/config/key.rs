//! Keys: name, default, allowed values, and when each can change.

use core::fmt;
use core::time::Duration;

use forebay_core::{Bytes, PageSize};

use super::choice::{Counting, Rounding, Zeroing};
use super::fraction::Fraction;
use super::kind::{Bounds, Kind, page_of};
use super::preset::Preset;
use super::report_path::ReportPath;
use super::table::for_each_key;

/// Sixteen million events take about a gigabyte of memory; a larger number is a typo.
const MOST_EVENTS: u64 = 1 << 24;

/// More threads than any host needs to saturate the bus.
const MOST_THREADS: u64 = 256;

/// Each thread pins two chunks per direction.
const LARGEST_CHUNK: Bytes = Bytes::gib(1);
/// A thread that polls more often does nothing else.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// A day: a longer interval amounts to off.
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// When a key can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    /// Before a pool is built: it determines the layout of blocks or the fast path.
    AtStart,
    /// At any time; affects later operations.
    AnyTime,
}

macro_rules! keys {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// A setting.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Key {
            $(#[doc = $help] $key,)*
        }

        impl Key {
            /// Every key, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$key),*];

            /// Its name in files and `FOREBAY_CONF`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => stringify!($field),)*
                }
            }

            /// What it does, in one sentence.
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$key => $help.trim_ascii(),)*
                }
            }

            /// The kind of value, in a word or two.
            pub fn kind(self) -> &'static str {
                match self {
                    $(Self::$key => <$kind as Kind>::NAME,)*
                }
            }

            /// The allowed values, in words.
            pub fn allowed(self) -> String {
                match self {
                    $(Self::$key => bounds::$field().allowed(),)*
                }
            }

            /// Its default, in the form that is parsed.
            pub fn default_text(self) -> String {
                match self {
                    $(Self::$key => default::$field().write(),)*
                }
            }

            /// Whether it can change while a pool lives. A change affects later operations.
            pub const fn is_changeable(self) -> bool {
                let changes = match self {
                    $(Self::$key => Changes::$changes,)*
                };
                matches!(changes, Changes::AnyTime)
            }
        }

        /// The defaults by key name.
        pub(super) mod default {
            use super::*;
            $(pub(in crate::config) fn $field() -> $kind {
                $default
            })*
        }

        /// The allowed values by key name.
        pub(super) mod bounds {
            use super::*;
            use super::Bounds::{Any, AtLeast, AtMost, Between};
            $(pub(in crate::config) fn $field() -> Bounds<$kind> {
                $bounds
            })*
        }
    };
}

for_each_key!(keys);

impl Key {
    /// The prefix of all variables of forebay.
    pub(super) const PREFIX: &'static str = "FOREBAY_";

    /// The key called `name`.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.name() == name)
    }

    /// The environment variable that sets this key.
    pub fn variable(self) -> String {
        format!("{}{}", Self::PREFIX, self.name().to_ascii_uppercase())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
