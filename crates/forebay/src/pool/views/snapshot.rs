//! Snapshots: all there is to see of a pool at a moment, as plain data with a name for its form. What
//! shows pools to people, to files and to other languages renders these and asks the pool nothing.
//!
//! Bytes are whole numbers in fields named `*_bytes`, times in `*_ns` and `*_ms`.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::Settings;
use crate::pool::shared::Shared;
use crate::pool::views::statistics::{self, Statistics};
use crate::sync::map::{AddressMap, LiveBlock};

/// The name and version of the form. A field may be added under the same version; none is taken away
/// or changes its meaning.
const SCHEMA: &str = "forebay.pool.v1";

macro_rules! plain {
    ($($(#[$about:meta])* struct $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Debug, PartialEq, Eq)]
            #[cfg_attr(feature = "serde", derive(serde::Serialize))]
            #[non_exhaustive]
            pub struct $name {
                $($(#[$doc])* pub $field: $kind,)*
            }
        )*
    };
}

plain! {
    /// A pool at a moment. Made by [`Pool::snapshot`].
    struct Snapshot {
        /// Always "forebay.pool.v1".
        schema: &'static str,
        /// When, in milliseconds since 1970; 0 where the clock stands before that.
        taken_unix_ms: u64,
        /// The number of the pool: as [`PoolId`](crate::PoolId) shows it.
        pool: u64,
        /// The device.
        device: DeviceSnapshot,
        /// The class of its memory, in words.
        class: String,
        /// Who reads and writes its memory beside that device: which of its kind.
        peers: Vec<u32>,
        /// The most the pool may take from it.
        limit_bytes: u64,
        /// How near it is to that: "low", "normal", "moderate", "high" or "critical".
        pressure: String,
        /// The settings in force, all of them.
        settings: Vec<SettingSnapshot>,
        /// The figures.
        statistics: StatisticsSnapshot,
        /// The live blocks, the largest first, at most [`Snapshot::MOST_BLOCKS`].
        blocks: Vec<BlockSnapshot>,
        /// How many more there are.
        blocks_left_out: u64,
    }

    /// The device of a pool.
    struct DeviceSnapshot {
        /// The kind, as commands take it.
        kind: &'static str,
        /// Which of its kind.
        ordinal: u32,
        /// The name the vendor or system gives it.
        name: String,
        /// All its memory; nothing where it does not say.
        total_bytes: Option<u64>,
        /// What of that is free, for whomever; nothing where it does not say.
        free_bytes: Option<u64>,
    }

    /// A setting in force.
    struct SettingSnapshot {
        /// Its name.
        name: &'static str,
        /// Its value, as it can be written.
        value: String,
        /// Where that came from, in a word.
        source: &'static str,
        /// The same so that it can be found: the line of which file, the name of which variable.
        whence: String,
        /// Whether it can change while the pool lives.
        changeable: bool,
    }

    /// A live block.
    struct BlockSnapshot {
        /// Where it begins.
        address: u64,
        /// How large it is.
        size_bytes: u64,
        /// What was asked for.
        requested_bytes: u64,
        /// The tag it was allocated under.
        tag: String,
    }

    /// The figures of a pool, as [`Statistics`] has them.
    struct StatisticsSnapshot {
        /// Bytes in blocks, rounding counted.
        live_bytes: u64,
        /// Bytes asked for by live blocks.
        requested_bytes: u64,
        /// Blocks that are live.
        blocks: u64,
        /// The most bytes ever out of the heap at once, in blocks or at hand in magazines.
        peak_out_bytes: u64,
        /// The most bytes ever in live blocks at once, where they are counted exactly.
        peak_live_bytes: Option<u64>,
        /// Bytes at hand in magazines.
        cached_bytes: u64,
        /// Freed bytes that are kept from use for a while.
        quarantined_bytes: u64,
        /// Bytes that nobody gets any more, because they were written to without right.
        retired_bytes: u64,
        /// Bytes taken from the device.
        held_bytes: u64,
        /// The most bytes ever taken from the device at once.
        peak_held_bytes: u64,
        /// Bytes taken from the device that are in no block.
        free_bytes: u64,
        /// The largest free piece.
        largest_free_bytes: u64,
        /// In how many pieces the heap is free.
        pieces: u64,
        /// Blocks given out.
        allocations: u64,
        /// Blocks taken back.
        frees: u64,
        /// Allocations that took no memory from the driver.
        hits: u64,
        /// Of those, the ones that a magazine had.
        magazine_hits: u64,
        /// Requests that no hole held.
        misses: u64,
        /// Times a stream was made to wait for another.
        waits: u64,
        /// Times that someone who was asked or told something panicked.
        callback_panics: u64,
        /// By size; ranges in which nothing happened are left out.
        classes: Vec<ClassSnapshot>,
        /// By stream, but for those that were forgotten.
        streams: Vec<StreamSnapshot>,
        /// Blocks given out on streams that were forgotten since.
        forgotten_allocations: u64,
        /// Blocks taken back on them.
        forgotten_frees: u64,
        /// By tag; those that have nothing are left out.
        tags: Vec<TagSnapshot>,
        /// Calls of the driver, by kind and size.
        driver: Vec<CallSnapshot>,
        /// How long all of them took, by the clock.
        driver_ns: u64,
    }

    /// What happened to blocks of a range of sizes.
    struct ClassSnapshot {
        /// The smallest size of the range, a power of two; the next begins at its double.
        from_bytes: u64,
        /// Blocks given out.
        allocations: u64,
        /// Blocks taken back.
        frees: u64,
        /// Bytes in blocks, rounding counted.
        live_bytes: u64,
    }

    /// What happened on a stream.
    struct StreamSnapshot {
        /// The stream, as the driver names it.
        stream: u64,
        /// Blocks given out on it.
        allocations: u64,
        /// Blocks taken back on it.
        frees: u64,
    }

    /// What one tag has.
    struct TagSnapshot {
        /// Its name.
        tag: String,
        /// Bytes in blocks, rounding counted.
        live_bytes: u64,
    }

    /// How often a call of the driver was made.
    struct CallSnapshot {
        /// The call.
        call: &'static str,
        /// The size of what it was over.
        size_bytes: u64,
        /// How often.
        count: u64,
    }
}

impl Snapshot {
    /// How many blocks a snapshot names: the largest, of which there are few in most programs.
    pub const MOST_BLOCKS: usize = 4096;

    /// As JSON, in one line.
    ///
    /// ```
    /// use forebay::{HostDevice, Pool};
    ///
    /// let device = HostDevice::open()?;
    /// let json = Pool::new(&device)?.snapshot().to_json();
    /// assert!(json.starts_with("{\"schema\":\"forebay.pool.v1\","));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "serde")]
    pub fn to_json(&self) -> String {
        // Whole numbers, texts and lists of them: there is nothing JSON could not hold.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// All there is to see of a pool now, with `settings` as those in force.
pub(in crate::pool) fn of(shared: &Shared, settings: &Settings) -> Snapshot {
    let descriptor = shared.device.descriptor();
    let here = !shared.is_inherited();
    let memory = here.then(|| shared.device.memory_info().ok()).flatten();
    let device = DeviceSnapshot {
        kind: descriptor.kind.name(),
        ordinal: descriptor.ordinal.0,
        name: descriptor.name.clone(),
        total_bytes: memory.map(|memory| memory.total.get()),
        free_bytes: memory.map(|memory| memory.free.get()),
    };
    let settings = settings.entries().map(|entry| SettingSnapshot {
        name: entry.key.name(),
        value: entry.value,
        source: entry.source.name(),
        whence: entry.source.to_string(),
        changeable: entry.key.is_changeable(),
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let statistics = StatisticsSnapshot::from(&statistics::of(shared));
    let (blocks, blocks_left_out) = blocks_of(shared);
    Snapshot {
        schema: SCHEMA,
        taken_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        pool: shared.id.0,
        device,
        class: shared.options.class.to_string(),
        peers: shared.options.peers.iter().map(|peer| peer.0).collect(),
        limit_bytes: shared.limits.limit().get(),
        pressure: shared.pressure().to_string(),
        settings: settings.collect(),
        statistics,
        blocks,
        blocks_left_out,
    }
}

/// The largest live blocks, and how many others there are.
fn blocks_of(shared: &Shared) -> (Vec<BlockSnapshot>, u64) {
    if shared.is_inherited() {
        return (Vec::new(), 0);
    }
    let map = shared.context().map;
    let mut live = map.live_blocks();
    live.sort_unstable_by_key(|block| (core::cmp::Reverse(block.size), block.address));
    let left_out = live.len().saturating_sub(Snapshot::MOST_BLOCKS) as u64;
    live.truncate(Snapshot::MOST_BLOCKS);
    (named(map, &live).collect(), left_out)
}

/// Those of the blocks that are still live, with their tags.
pub(in crate::pool) fn named(
    map: &AddressMap,
    live: &[LiveBlock],
) -> impl Iterator<Item = BlockSnapshot> {
    live.iter().filter_map(|block| {
        // Looked at again: what was freed in between has no tag any more.
        let known =
            map.slot(block.address)?.state_at(block.address).filter(|known| known.live())?;
        let tag = crate::Tag::numbered(usize::from(known.tag())).unwrap_or(crate::Tag::NONE);
        Some(BlockSnapshot {
            address: block.address.get(),
            size_bytes: known.size().get(),
            requested_bytes: known.requested(),
            tag: tag.name(),
        })
    })
}

impl From<&Statistics> for StatisticsSnapshot {
    fn from(figures: &Statistics) -> Self {
        let classes = figures.classes.iter().map(|class| ClassSnapshot {
            from_bytes: class.from.get(),
            allocations: class.allocations,
            frees: class.frees,
            live_bytes: class.live.get(),
        });
        let streams = figures.streams.iter().map(|stream| StreamSnapshot {
            stream: stream.stream.0,
            allocations: stream.allocations,
            frees: stream.frees,
        });
        let tags = figures.tags.iter();
        let tags = tags.map(|tag| TagSnapshot { tag: tag.tag.name(), live_bytes: tag.live.get() });
        let driver = figures.driver.entries().map(|(call, size, count)| CallSnapshot {
            call: call.name(),
            size_bytes: size.get(),
            count,
        });
        Self {
            live_bytes: figures.live.get(),
            requested_bytes: figures.requested.get(),
            blocks: figures.blocks,
            peak_out_bytes: figures.peak_out.get(),
            peak_live_bytes: figures.peak_live.map(forebay_core::Bytes::get),
            cached_bytes: figures.cached.get(),
            quarantined_bytes: figures.quarantined.get(),
            retired_bytes: figures.retired.get(),
            held_bytes: figures.held.get(),
            peak_held_bytes: figures.peak_held.get(),
            free_bytes: figures.free.get(),
            largest_free_bytes: figures.largest_free.get(),
            pieces: figures.pieces,
            allocations: figures.allocations,
            frees: figures.frees,
            hits: figures.hits,
            magazine_hits: figures.magazine_hits,
            misses: figures.misses,
            waits: figures.waits,
            callback_panics: figures.callback_panics,
            classes: classes.collect(),
            streams: streams.collect(),
            forgotten_allocations: figures.forgotten_allocations,
            forgotten_frees: figures.forgotten_frees,
            tags: tags.collect(),
            driver: driver.collect(),
            driver_ns: u64::try_from(figures.driver.time().as_nanos()).unwrap_or(u64::MAX),
        }
    }
}
