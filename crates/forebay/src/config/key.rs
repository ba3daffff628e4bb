//! The table of keys: name, default, allowed values, and when each can change.
//!
//! A line of the table is: what the key does; its variant and its name; its type and default; when it can change; which
//! values of its type are allowed. [`for_each_key`] hands all lines to a macro: here to the one that makes [`Key`], in
//! `settings.rs` to the one that makes the settings.

use core::fmt;
use core::time::Duration;
use std::path::PathBuf;

use forebay_core::{Bytes, PageSize, SizeClasses};

use super::value::{Bounds, Counting, Fraction, Kind, PoolName, Preset, Zeroing, page_of};

/// Sixteen million events take about a gigabyte of memory; a larger number is a typo.
const MAX_EVENTS: u64 = 1 << 24;

/// More threads than any host needs to saturate the bus.
const MAX_THREADS: u64 = 256;

/// Each thread pins two chunks per direction.
const LARGEST_CHUNK: Bytes = Bytes::gib(1);
/// A thread that polls more often does nothing else.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);
/// A day: a longer interval amounts to off.
const LONGEST_INTERVAL: Duration = Duration::from_secs(24 * 60 * 60);

/// Calls the macro `$act` with the whole table.
macro_rules! for_each_key {
    ($act:ident) => {
        $act! {
            /// Values for a purpose, beneath every key that is set by itself.
            Preset preset: Preset = Preset::Default, AtStart, Any;
            /// The name of the pool in messages, reports and views.
            Name name: PoolName = PoolName::default(), AtStart, Any;
            /// The most a pool takes from its device, rounded up to a whole page.
            MaxBytes max_bytes: Option<Bytes> = None, AnyTime, AtLeast(Some(Bytes::new(1)));
            /// The most a pool takes, as a part of the device's memory, rounded up to a whole page.
            MaxFraction max_fraction: Fraction = Fraction::ONE, AnyTime, Any;
            /// What a pool keeps when it gives memory back by itself or is trimmed.
            MinBytes min_bytes: Bytes = Bytes::ZERO, AnyTime, Any;
            /// How sizes are rounded: to 512 B, to eight classes a doubling, to powers of two.
            SizeClasses size_classes: SizeClasses = SizeClasses::Exact, AtStart, Any;
            /// Whether freed blocks wait in a cache of their thread and stream.
            Magazines magazines: bool = true, AtStart, Any;
            /// The most that the cache of one thread and stream holds.
            MagazineBytes magazine_bytes: Bytes = Bytes::mib(16), AnyTime, Any;
            /// Whether the most bytes in live blocks are counted too, exact at every moment.
            Statistics statistics: Counting = Counting::On, AtStart, Any;
            /// How many events a pool remembers.
            History history: u64 = 0, AnyTime, AtMost(MAX_EVENTS);
            /// Whether recorded events, snapshots and reports have the call stack of each allocation: a pair then takes some microseconds.
            Stacks stacks: bool = false, AnyTime, Any;
            /// Whether a thread gives back idle memory and answers pressure in the background.
            Upkeep upkeep: bool = false, AnyTime, Any;
            /// How often the background thread looks for something to do.
            UpkeepInterval upkeep_interval: Duration = Duration::from_secs(1), AnyTime, Between(SHORTEST_INTERVAL, LONGEST_INTERVAL);
            /// With upkeep: how much free memory the thread adds for the next large request after one made the pool grow, until it is collected.
            GrowAhead grow_ahead: Bytes = Bytes::ZERO, AnyTime, Any;
            /// How long memory lies idle before collecting gives it back.
            CollectAfter collect_after: Option<Duration> = Some(Duration::from_secs(60)), AnyTime, Any;
            /// How long a request waits for work of the device before it is refused for want of memory.
            MaxWait max_wait: Duration = Duration::from_secs(10), AnyTime, AtMost(LONGEST_INTERVAL);
            /// Use of the limit below which caches may grow again.
            PressureLow pressure_low: Fraction = Fraction::percent(30), AnyTime, Any;
            /// Use of the limit from which idle memory is cleaned up.
            PressureModerate pressure_moderate: Fraction = Fraction::percent(80), AnyTime, Any;
            /// Use of the limit from which the pressure is high.
            PressureHigh pressure_high: Fraction = Fraction::percent(90), AnyTime, Any;
            /// Use of the limit from which idle memory is given back: up to 24 pages with the request that reaches it, the rest with later growth or by upkeep.
            PressureCritical pressure_critical: Fraction = Fraction::percent(95), AnyTime, Any;
            /// The largest page a pool takes at once; never less than the device's own. Where memory is scarce, pages are smaller.
            LargestPage largest_page: PageSize = page_of(Bytes::mib(32)), AnyTime, Any;
            /// What is zeroed: nothing, pages when they come from the device, or every block.
            Zero zero: Zeroing = Zeroing::Never, AtStart, Any;
            /// Whether free memory and new blocks hold patterns, so that writes after a free are found.
            Poison poison: bool = false, AtStart, Any;
            /// Whether a pattern behind each block shows, when it is freed, that its end was passed.
            Canaries canaries: bool = false, AtStart, Any;
            /// Whether each block ends where nothing is mapped, and is unmapped when freed.
            GuardPages guard_pages: bool = false, AtStart, Any;
            /// How many freed bytes are kept from use for a while, to catch who still uses them.
            Quarantine quarantine: Bytes = Bytes::ZERO, AnyTime, Any;
            /// Whether a stream's handle is checked for being that of another stream by now.
            StrictStreams strict_streams: bool = false, AtStart, Any;
            /// How many threads of a transfer engine copy on the host; 0 for what a calibration has found, else one for each processor up to twelve.
            TransferThreads transfer_threads: u64 = 0, AtStart, AtMost(MAX_THREADS);
            /// The size of the pieces of a transfer; 0 for what a calibration has found, else 4 MiB.
            TransferChunk transfer_chunk: Bytes = Bytes::ZERO, AtStart, AtMost(LARGEST_CHUNK);
            /// Whether the process reports at its end, on the standard error stream, what is live then.
            LeakReport leak_report: bool = false, AtStart, Any;
            /// Whether buffers of the process remember the stack of the call that made them, for reports of what is live.
            LeakStacks leak_stacks: bool = false, AtStart, Any;
            /// Whether a thread of the process answers `forebay monitor` of the same user.
            Monitor monitor: bool = false, AtStart, Any;
            /// Where the last refusal for want of memory is described, for people and for `forebay report`: the figures as text, and the pool's snapshot with the refused request in a file beside it with .json behind its name. The error names the file.
            OomReport oom_report: Option<PathBuf> = None, AnyTime, Any;
        }
    };
}

pub(super) use for_each_key;

/// When a key can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changes {
    /// Before a pool is built: it determines the layout of blocks or the fast path.
    AtStart,
    /// At any time; affects later operations.
    AnyTime,
}

/// What the table says of a key, without the type of its value.
struct Line {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    changes: Changes,
    allowed: fn() -> String,
    default: fn() -> String,
}

/// The default and the allowed values of a key.
pub(super) struct Rule<T> {
    pub(super) default: T,
    pub(super) bounds: Bounds<T>,
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

            const fn line(self) -> &'static Line {
                match self {
                    $(Self::$key => const {
                        &Line {
                            name: stringify!($field),
                            help: $help.trim_ascii(),
                            kind: <$kind as Kind>::NAME,
                            changes: Changes::$changes,
                            allowed: || rule::$field().bounds.allowed(),
                            default: || rule::$field().default.write(),
                        }
                    },)*
                }
            }
        }

        /// The rules by key name.
        pub(super) mod rule {
            use super::*;
            use super::Bounds::{Any, AtLeast, AtMost, Between};
            $(pub(in crate::config) fn $field() -> Rule<$kind> {
                Rule { default: $default, bounds: $bounds }
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

    /// Its name in files and `FOREBAY_CONF`.
    pub const fn name(self) -> &'static str {
        self.line().name
    }

    /// The environment variable that sets this key.
    pub fn variable(self) -> String {
        format!("{}{}", Self::PREFIX, self.name().to_ascii_uppercase())
    }

    /// What it does, in one sentence.
    pub const fn help(self) -> &'static str {
        self.line().help
    }

    /// The kind of value, in a word or two.
    pub const fn kind(self) -> &'static str {
        self.line().kind
    }

    /// The allowed values, in words.
    pub fn allowed(self) -> String {
        (self.line().allowed)()
    }

    /// Its default, in the form that is parsed.
    pub fn default_text(self) -> String {
        (self.line().default)()
    }

    /// Whether it can change while a pool lives. A change affects later operations.
    pub const fn is_changeable(self) -> bool {
        matches!(self.line().changes, Changes::AnyTime)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
