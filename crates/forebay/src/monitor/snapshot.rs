//! The telemetry of a process: a plain structure with a schema id, from which all output is rendered.
//!
//! Byte counts are integers in fields named `*_bytes`, times in `*_ns` and `*_ms`.

use std::time::{SystemTime, UNIX_EPOCH};

use super::program;

/// The name and version of the schema. A version may gain fields; none is removed or redefined.
const SCHEMA: &str = "forebay.process.v1";

/// The longest displayed name of a tag or device.
const LONGEST_NAME: usize = 64;

macro_rules! plain {
    ($($(#[$about:meta])* struct $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
            #[serde(default)]
            #[non_exhaustive]
            pub struct $name {
                $($(#[$doc])* pub $field: $kind,)*
            }
        )*
    };
}

plain! {
    /// A process at one moment. [`Endpoint::read`](super::Endpoint::read) reads that of another process as JSON, which
    /// serde can deserialise to this structure.
    struct ProcessSnapshot {
        /// Always "forebay.process.v1".
        schema: String,
        /// The version of forebay in the process.
        version: String,
        /// The time, in milliseconds since 1970; 0 if the clock is before that.
        taken_unix_ms: u64,
        /// The process id, as seen by the process itself.
        pid: u64,
        /// The system's name for its program, without path and arguments.
        process: String,
        /// The name that its environment or file of settings gives; empty if there is none.
        name: String,
        /// The file name of the Python script that it runs, or its module; empty if it runs none.
        script: String,
        /// Its rank among the processes of a job, by the variables of torchrun, Slurm and MPI.
        rank: Option<u64>,
        #[serde(deserialize_with = "bounded")]
        /// Its pools, oldest first, at most [`ProcessSnapshot::MAX_POOLS`].
        pools: Vec<ProcessPool>,
        /// The number of pools left out.
        pools_left_out: u64,
        #[serde(deserialize_with = "bounded")]
        /// Its transfer engines, oldest first, at most [`ProcessSnapshot::MAX_OTHERS`].
        engines: Vec<ProcessEngine>,
        #[serde(deserialize_with = "bounded")]
        /// Its buffers, by manager, oldest first, at most [`ProcessSnapshot::MAX_OTHERS`].
        buffers: Vec<ManagerStatistics>,
    }

    /// A pool, of device memory or of pinned host memory.
    struct ProcessPool {
        /// The number of the pool, as in [`PoolId`](crate::PoolId).
        pool: u64,
        /// Its name; empty if it has none.
        name: String,
        /// The kind of its device.
        kind: String,
        /// Its number among devices of its kind.
        ordinal: u64,
        /// The name of the device, with a note for a pinned or managed pool.
        device: String,
        /// The memory class, in words.
        class: String,
        /// The most the pool may hold, alone or with the others of its limit group.
        limit_bytes: u64,
        /// Bytes held by all pools of its limit group.
        group_held_bytes: u64,
        /// The pressure level: "low", "normal", "moderate", "high" or "critical".
        pressure: String,
        /// Bytes in live blocks, after rounding up.
        live_bytes: u64,
        /// Bytes requested for live blocks, before rounding.
        requested_bytes: u64,
        /// Bytes in free blocks in thread caches.
        cached_bytes: u64,
        /// Bytes the pool holds from its device.
        held_bytes: u64,
        /// The peak of bytes held.
        peak_held_bytes: u64,
        /// The largest hole.
        largest_free_bytes: u64,
        /// The number of live blocks.
        blocks: u64,
        /// The number of holes.
        holes: u64,
        /// Blocks allocated.
        allocations: u64,
        /// Blocks freed.
        frees: u64,
        /// Allocations from a thread cache.
        magazine_hits: u64,
        /// Allocations that needed memory from the driver.
        misses: u64,
        /// Times a stream was made to wait for another.
        waits: u64,
        /// Driver calls.
        driver_calls: u64,
        /// Their total duration.
        driver_ns: u64,
        #[serde(deserialize_with = "bounded")]
        /// Histogram of their durations: each bucket counts calls above the previous limit, up to its own.
        driver_latency: Vec<LatencyBucket>,
        #[serde(deserialize_with = "bounded")]
        /// The streams with the most allocations, at most [`ProcessSnapshot::MAX_OWNERS`].
        streams: Vec<StreamTotals>,
        /// The number of streams left out.
        streams_left_out: u64,
        #[serde(deserialize_with = "bounded")]
        /// The tags with the most live bytes, at most [`ProcessSnapshot::MAX_OWNERS`].
        tags: Vec<TagTotals>,
        /// The number of tags left out.
        tags_left_out: u64,
    }

    /// Calls of about the same duration.
    struct LatencyBucket {
        /// The longest duration counted here; 2^64 - 1 for the last bucket.
        at_most_ns: u64,
        /// The number of calls.
        count: u64,
    }

    /// Counters of one stream.
    struct StreamTotals {
        /// The stream, as the driver names it.
        stream: u64,
        /// Blocks allocated on it.
        allocations: u64,
        /// Blocks freed on it.
        frees: u64,
    }

    /// Memory of one tag.
    struct TagTotals {
        /// Its name.
        tag: String,
        /// Bytes in live blocks, after rounding up.
        live_bytes: u64,
    }

    /// A transfer engine.
    struct ProcessEngine {
        /// Its number, unique among the engines of the process.
        engine: u64,
        /// The kind of its device.
        kind: String,
        /// Its number among devices of its kind.
        ordinal: u64,
        /// Transfers in flight.
        under_way: u64,
        /// Pinned memory in slots.
        pinned_bytes: u64,
        /// From the host to the device.
        uploads: DirectionTotals,
        /// From the device to the host.
        downloads: DirectionTotals,
    }

    /// The transfers of an engine in one direction.
    struct DirectionTotals {
        /// Completed transfers.
        transfers: u64,
        /// Failed or cancelled transfers.
        failures: u64,
        /// Bytes copied.
        bytes: u64,
        /// The time during which at least one transfer was in flight.
        busy_ns: u64,
    }

    /// The buffers of one manager.
    struct ManagerStatistics {
        /// Its number, unique among the managers of the process.
        manager: u64,
        /// Live buffers.
        buffers: u64,
        /// Buffers made so far.
        created: u64,
        /// Bytes of host memory in live buffers.
        host_bytes: u64,
        /// Bytes of device memory in live buffers.
        device_bytes: u64,
        /// Copies from the host to the device.
        to_device: BufferCopies,
        /// Copies from the device to the host.
        to_host: BufferCopies,
        /// Live shared buffers.
        shared: u64,
        /// Their total size.
        shared_bytes: u64,
    }

    /// Copies of buffers in one direction.
    struct BufferCopies {
        /// Number of copies.
        copies: u64,
        /// Total bytes copied.
        bytes: u64,
    }
}

impl ProcessSnapshot {
    /// The most pools listed in a snapshot.
    pub const MAX_POOLS: usize = 64;
    /// The most transfer engines, and the most buffer managers.
    pub const MAX_OTHERS: usize = 16;
    /// The most streams and the most tags listed per pool.
    pub const MAX_OWNERS: usize = 8;

    /// A snapshot of this process, without its pools, engines and buffers.
    pub(super) fn of_this_process() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let program = program::here();
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            pid: u64::from(std::process::id()),
            process: shown_name(name.trim_end()),
            name: shown_name(&program.name),
            script: shown_name(&program.script),
            rank: program.rank,
            ..Self::default()
        }
    }

    /// Formats the snapshot as one line of JSON.
    pub fn to_json(&self) -> String {
        // Cannot fail: it contains only integers, strings and lists of them.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Truncates a name of arbitrary length.
pub(crate) fn shown_name(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

/// Reads at most [`ProcessSnapshot::MAX_POOLS`] elements, the longest list of a snapshot, and skips the rest, so that
/// another process's answer takes no more memory than a genuine one.
fn bounded<'de, D: serde::Deserializer<'de>, T: serde::Deserialize<'de>>(
    from: D,
) -> Result<Vec<T>, D::Error> {
    use core::fmt;
    use core::marker::PhantomData;
    use serde::de::{IgnoredAny, SeqAccess, Visitor};

    struct Bounded<T>(PhantomData<T>);

    impl<'de, T: serde::Deserialize<'de>> Visitor<'de> for Bounded<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<Vec<T>, A::Error> {
            let mut read = Vec::new();
            while read.len() < ProcessSnapshot::MAX_POOLS {
                match all.next_element()? {
                    Some(one) => read.push(one),
                    None => return Ok(read),
                }
            }
            while all.next_element::<IgnoredAny>()?.is_some() {}
            Ok(read)
        }
    }

    from.deserialize_seq(Bounded(PhantomData))
}
