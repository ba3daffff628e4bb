//! What is known of a key: its name, default, what is allowed, when it can change.

use core::fmt;
use core::time::Duration;

use forebay_core::{Bytes, PageSize};

use super::choice::{Counting, Rounding, Zeroing};
use super::fraction::Fraction;
use super::kind::{Bounds, Kind, page_of};
use super::preset::Preset;
use super::report_path::ReportPath;
use super::table::for_each_key;

/// Sixteen million events are a gigabyte or so of memory: beyond that a number is a slip of the pen.
const MOST_EVENTS: u64 = 1 << 24;

/// More threads than any host needs to fill a wire.
const MOST_THREADS: u64 = 256;

/// A piece is pinned twice for each thread and direction.
const LARGEST_CHUNK: Bytes = Bytes::gib(1);
/// A thread that looks more often does nothing else.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// A day: longer than that is the same as off.
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);
/// When a key can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    /// Before a pool is built: its blocks are laid out by it, or its fast path goes by it.
    AtStart,
    /// At any time, for what is done from then on.
    AnyTime,
}

macro_rules! keys {
    ($(
        #[doc = $help:literal]
        $key:ident $field:ident: $kind:ty = $default:expr, $changes:ident, $bounds:expr;
    )*) => {
        /// Something that can be set.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Key {
            $(#[doc = $help] $key,)*
        }

        impl Key {
            /// Every key, in the order people read them.
            pub const ALL: &'static [Self] = &[$(Self::$key),*];

            /// Its name, as files and `FOREBAY_CONF` have it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$key => stringify!($field),)*
                }
            }

            /// What it does, in a sentence.
            pub fn help(self) -> &'static str {
                match self {
                    $(Self::$key => $help.trim_ascii(),)*
                }
            }

            /// What kind of value it takes, in a word or two.
            pub fn kind(self) -> &'static str {
                match self {
                    $(Self::$key => <$kind as Kind>::NAME,)*
                }
            }

            /// Which values it takes, in words.
            pub fn allowed(self) -> String {
                match self {
                    $(Self::$key => bounds::$field().allowed(),)*
                }
            }

            /// Its default, as it can be written.
            pub fn default_text(self) -> String {
                match self {
                    $(Self::$key => default::$field().write(),)*
                }
            }

            /// Whether it can change while a pool lives. What changes holds for what is done from
            /// then on.
            pub const fn is_changeable(self) -> bool {
                let changes = match self {
                    $(Self::$key => Changes::$changes,)*
                };
                matches!(changes, Changes::AnyTime)
            }
        }

        /// The defaults, by name.
        pub(super) mod default {
            use super::*;
            $(pub(in crate::config) fn $field() -> $kind {
                $default
            })*
        }

        /// What is allowed, by name.
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
    /// What every variable of forebay begins with.
    pub(super) const PREFIX: &'static str = "FOREBAY_";

    /// The key of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.name() == name)
    }

    /// The environment variable that sets it alone.
    pub fn variable(self) -> String {
        format!("{}{}", Self::PREFIX, self.name().to_ascii_uppercase())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
