//! What is shown of a process: one plain structure with a schema id, which everything renders.
//!
//! Bytes are integers in fields named `*_bytes`, times in `*_ns` and `*_ms`.

use std::time::{SystemTime, UNIX_EPOCH};

/// The name and version of the schema. The same version may get new fields; no field is removed or changes its meaning.
const SCHEMA: &str = "forebay.process.v1";

/// The longest name that is shown of a tag or device.
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
    /// A process at one moment. [`Endpoint::read`](super::Endpoint::read) reads that of another process as JSON, from which
    /// serde makes this structure.
    struct ProcessSnapshot {
        /// Always "forebay.process.v1".
        schema: String,
        /// The version of forebay in the process.
        version: String,
        /// The time, in milliseconds since 1970; 0 if the clock is before that.
        taken_unix_ms: u64,
        /// The process, as it numbers itself.
        pid: u64,
        /// The name of its program, as the system knows it; no path and no arguments.
        process: String,
        #[serde(deserialize_with = "bounded")]
        /// Its pools, the oldest first, at most [`ProcessSnapshot::MOST_POOLS`].
        pools: Vec<ProcessPool>,
        /// The number of pools beyond those.
        pools_left_out: u64,
        #[serde(deserialize_with = "bounded")]
        /// Its transfer engines, the oldest first, at most [`ProcessSnapshot::MOST_OTHERS`].
        engines: Vec<ProcessEngine>,
        #[serde(deserialize_with = "bounded")]
        /// Its buffers, by manager, the oldest first, at most [`ProcessSnapshot::MOST_OTHERS`].
        buffers: Vec<BufferManager>,
    }

    /// A pool, of device memory or of pinned host memory.
    struct ProcessPool {
        /// The number of the pool, as in [`PoolId`](crate::PoolId).
        pool: u64,
        /// The kind of its device.
        kind: String,
        /// Which of its kind.
        ordinal: u64,
        /// The name of the device; of a pinned or managed pool it says so.
        device: String,
        /// The memory class, in words.
        class: String,
        /// The most the pool may hold, alone or with the others of its limit group.
        limit_bytes: u64,
        /// What all pools of its limit group hold.
        group_held_bytes: u64,
        /// The pressure level: "low", "normal", "moderate", "high" or "critical".
        pressure: String,
        /// Bytes in live blocks, after rounding up.
        live_bytes: u64,
        /// Bytes requested for live blocks, before rounding.
        requested_bytes: u64,
        /// Bytes in free blocks that threads have cached.
        cached_bytes: u64,
        /// Bytes the pool holds from the device.
        held_bytes: u64,
        /// The peak of bytes held.
        peak_held_bytes: u64,
        /// The largest hole.
        largest_free_bytes: u64,
        /// Live blocks.
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
        /// How long these took together.
        driver_ns: u64,
        #[serde(deserialize_with = "bounded")]
        /// How long each took: the calls that took at most this long and longer than the bucket before.
        driver_latency: Vec<LatencyBucket>,
        #[serde(deserialize_with = "bounded")]
        /// The streams with most allocations, at most [`ProcessSnapshot::MOST_OWNERS`].
        streams: Vec<StreamTotals>,
        /// The number of streams beyond those.
        streams_left_out: u64,
        #[serde(deserialize_with = "bounded")]
        /// The tags with most live bytes, at most [`ProcessSnapshot::MOST_OWNERS`].
        tags: Vec<TagTotals>,
        /// The number of tags beyond those.
        tags_left_out: u64,
    }

    /// Calls that took about the same time.
    struct LatencyBucket {
        /// The longest that counts here; the last bucket has 2^64 - 1.
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
        /// Its number. No other engine of the process ever has it.
        engine: u64,
        /// The kind of its device.
        kind: String,
        /// Which of its kind.
        ordinal: u64,
        /// Transfers under way.
        under_way: u64,
        /// Pinned memory in slots.
        pinned_bytes: u64,
        /// From the host to the device.
        uploads: DirectionTotals,
        /// From the device to the host.
        downloads: DirectionTotals,
    }

    /// What an engine has done in one direction.
    struct DirectionTotals {
        /// Transfers that are done.
        transfers: u64,
        /// Transfers that failed or were cancelled.
        failures: u64,
        /// Bytes that were copied.
        bytes: u64,
        /// The time during which at least one transfer was under way.
        busy_ns: u64,
    }

    /// The buffers of one manager.
    struct BufferManager {
        /// Its number. No other manager of the process ever has it.
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
        /// Bytes in these.
        shared_bytes: u64,
    }

    /// Copies of buffers in one direction.
    struct BufferCopies {
        /// How many.
        copies: u64,
        /// How many bytes in all.
        bytes: u64,
    }
}

impl ProcessSnapshot {
    /// The most pools that a snapshot lists.
    pub const MOST_POOLS: usize = 64;
    /// The most transfer engines, and the most managers of buffers.
    pub const MOST_OTHERS: usize = 16;
    /// The most streams of a pool, and the most tags.
    pub const MOST_OWNERS: usize = 8;

    /// This process, without its parts.
    pub(super) fn of_this_process() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
        Self {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            taken_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            pid: u64::from(std::process::id()),
            process: shown_name(name.trim_end()),
            ..Self::default()
        }
    }

    /// Formats the snapshot as one line of JSON.
    pub fn to_json(&self) -> String {
        // Cannot fail: it consists of integers, strings and lists of them.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The beginning of a name that may be of any length.
pub(crate) fn shown_name(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

/// Reads at most [`ProcessSnapshot::MOST_POOLS`] elements, the longest list of a snapshot, and passes over the rest: what
/// another process says takes no more memory than what forebay says.
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
            while read.len() < ProcessSnapshot::MOST_POOLS {
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
