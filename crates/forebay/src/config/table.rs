//! The table of keys: the one place where a key is made.
//!
//! A line is: what the key does; its variant and its name; its type and default; when it can
//! change; which values of its type are allowed. Whoever needs the table hands `for_each_key` the
//! name of a macro, which gets every line.

/// Calls the macro `$act` with the whole table.
macro_rules! for_each_key {
    ($act:ident) => {
        $act! {
            /// Values for a purpose, beneath every key that is set by itself.
            Preset preset: Preset = Preset::Default, AtStart, Any;
            /// The most a pool takes from its device, rounded up to a whole page.
            MaxBytes max_bytes: Option<Bytes> = None, AnyTime, AtLeast(Some(Bytes::new(1)));
            /// The most a pool takes, as a part of the device's memory, rounded up to a whole page.
            MaxFraction max_fraction: Fraction = Fraction::ONE, AnyTime, Any;
            /// What a pool keeps when it gives memory back by itself or is trimmed.
            MinBytes min_bytes: Bytes = Bytes::ZERO, AnyTime, Any;
            /// How sizes are rounded: to 512 B, to eight classes a doubling, to powers of two.
            SizeClasses size_classes: Rounding = Rounding::Exact, AtStart, Any;
            /// Whether freed blocks wait in a cache of their thread and stream.
            Magazines magazines: bool = true, AtStart, Any;
            /// The most that the cache of one thread and stream holds.
            MagazineBytes magazine_bytes: Bytes = Bytes::mib(16), AnyTime, Any;
            /// Whether the most bytes in live blocks are counted too, exact at every moment.
            Statistics statistics: Counting = Counting::On, AtStart, Any;
            /// How many events a pool remembers.
            History history: u64 = 0, AnyTime, AtMost(MOST_EVENTS);
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
            TransferThreads transfer_threads: u64 = 0, AtStart, AtMost(MOST_THREADS);
            /// The size of the pieces of a transfer; 0 for what a calibration has found, else 4 MiB.
            TransferChunk transfer_chunk: Bytes = Bytes::ZERO, AtStart, AtMost(LARGEST_CHUNK);
            /// Whether the process reports at its end, on the standard error stream, what is live then.
            LeakReport leak_report: bool = false, AtStart, Any;
            /// Whether buffers of the process remember the stack of the call that made them, for reports of what is live.
            LeakStacks leak_stacks: bool = false, AtStart, Any;
            /// Whether a thread of the process answers `forebay monitor` of the same user.
            Monitor monitor: bool = false, AtStart, Any;
            /// Where the last refusal for want of memory is described, for people and for `forebay report`: the figures as text, and the pool's snapshot with the refused request in a file beside it with .json behind its name. The error names the file.
            OomReport oom_report: ReportPath = ReportPath::NONE, AnyTime, Any;
        }
    };
}

pub(super) use for_each_key;
