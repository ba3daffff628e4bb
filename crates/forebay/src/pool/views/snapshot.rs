//! Snapshots: the whole visible state of a pool at one moment, as plain data with a schema name. Reports, files and
//! other languages render snapshots instead of querying the pool. What one process writes, another can read.
//!
//! Bytes are integers in fields named `*_bytes`, times in `*_ns` and `*_ms`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_core::{Address, Bytes};

use crate::pool::inner::PoolInner;
use crate::pool::views::statistics::{self, Statistics};
use crate::report::{self, Stack};
use crate::sync::map::{AddressMap, BlockState, LiveBlock, Side};
use crate::{Settings, Tag};

macro_rules! plain {
    ($($(#[$about:meta])* struct $name:ident { $($(#[$doc:meta])* $field:ident: $kind:ty,)* })*) => {
        $(
            #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
            $(#[$about])*
            #[non_exhaustive]
            pub struct $name {
                $($(#[$doc])* pub $field: $kind,)*
            }
        )*
    };
}

plain! {
    /// A pool at one moment. Made by [`Pool::snapshot`](crate::Pool::snapshot), or read from JSON by serde: what is missing
    /// there is zero or empty.
    #[serde(default)]
    struct Snapshot {
        /// Always "forebay.pool.v1".
        schema: Cow<'static, str>,
        /// The time, in milliseconds since 1970; 0 if the clock is before that.
        taken_unix_ms: u64,
        /// The number of the pool, as in [`PoolId`](crate::PoolId).
        pool: u64,
        /// The device of the pool.
        device: DeviceSnapshot,
        /// The memory class, in words.
        class: String,
        /// The ordinals of other devices that may read and write the memory.
        peers: Vec<u32>,
        /// The most the pool may hold.
        limit_bytes: u64,
        /// The pressure level: "low", "normal", "moderate", "high" or "critical".
        pressure: String,
        /// All settings in effect.
        settings: Vec<SettingSnapshot>,
        /// The counters.
        statistics: Statistics,
        /// The live blocks, largest first, at most [`Snapshot::MAX_BLOCKS`].
        blocks: Vec<BlockSnapshot>,
        /// The number of live blocks beyond those.
        blocks_left_out: u64,
        /// Addresses with memory, lowest first: what the pool mapped, without gaps. At most
        /// [`Snapshot::MAX_RANGES`], the largest; none with `guard_pages`.
        spans: Vec<RangeSnapshot>,
        /// The number of spans beyond those.
        spans_left_out: u64,
        /// Free memory by address, lowest first. Neighbours that are free in the order of different streams are
        /// separate; blocks cached by threads are not included. At most [`Snapshot::MAX_RANGES`], the largest.
        holes: Vec<RangeSnapshot>,
        /// The number of holes beyond those.
        holes_left_out: u64,
        /// The call stacks that blocks and the refused request refer to by index, one line per frame.
        stacks: Vec<String>,
        /// The refused request; `None` unless the snapshot was taken for one, by the setting `oom_report`.
        refusal: Option<RefusalSnapshot>,
    }

    /// A range of addresses on one side.
    struct RangeSnapshot {
        /// The first address.
        address: u64,
        /// The size of the range.
        size_bytes: u64,
        #[serde(default)]
        /// What lies there: "small" blocks, up to 256 KiB, or "large" ones.
        side: Cow<'static, str>,
    }

    /// A refused request, with the figures of the pool at that moment: see [`Shortage`](crate::report::Shortage).
    #[serde(default)]
    struct RefusalSnapshot {
        /// The bytes that were requested.
        requested_bytes: u64,
        /// The contiguous bytes that the request needs.
        needed_bytes: u64,
        /// Which side it is for: "small" or "large".
        side: Cow<'static, str>,
        /// The alignment that was requested.
        alignment_bytes: u64,
        /// The stream that it was for.
        stream: u64,
        /// The tag that it was made under.
        tag: String,
        /// The index of its call stack.
        stack: Option<usize>,
        /// What kept the pool from serving it: "limit", "device_too_small", "device_full", "fragmented", "busy" or
        /// "driver".
        cause: Cow<'static, str>,
        /// The message of the error.
        message: String,
        /// What would have helped, one sentence per remedy.
        remedies: Vec<String>,
        /// The most the pool may hold.
        limit_bytes: u64,
        /// Bytes the pool holds.
        held_bytes: u64,
        /// Of those, bytes in live blocks.
        live_bytes: u64,
        /// Of those, bytes in free blocks that threads have cached.
        cached_bytes: u64,
        /// Of those, bytes in no live block.
        free_bytes: u64,
        /// Of those, bytes in whole free pages.
        free_pages_bytes: u64,
        /// The largest hole on the side of the request.
        largest_free_bytes: u64,
        /// The largest request that would have been served.
        fits_bytes: u64,
        /// A limit that would have been enough; `None` if no limit would.
        enough_limit_bytes: Option<u64>,
        /// Bytes the device has free.
        device_free_bytes: u64,
        /// Bytes of the device that are neither free nor held by this pool.
        held_elsewhere_bytes: u64,
        /// Of those, bytes in pools that share the limit.
        held_by_group_bytes: u64,
        /// The other pools of this process on the device.
        other_pools: Vec<OtherPoolSnapshot>,
    }

    /// Another pool of the process on the same device.
    #[serde(default)]
    struct OtherPoolSnapshot {
        /// Its number.
        pool: u64,
        /// Bytes it holds from the device.
        held_bytes: u64,
        /// Of those, bytes in no live block.
        free_bytes: u64,
        /// Whether it has the same limit.
        shares_limit: bool,
    }

    /// The device of a pool.
    #[serde(default)]
    struct DeviceSnapshot {
        /// The kind of device, as commands take it.
        kind: Cow<'static, str>,
        /// The number of the device among those of its kind.
        ordinal: u32,
        /// The name that the vendor or the system gives it.
        name: String,
        /// Its total memory; `None` if the device does not report it.
        total_bytes: Option<u64>,
        /// Its free memory, for all programs; `None` if the device does not report it.
        free_bytes: Option<u64>,
    }

    /// A setting in effect.
    #[serde(default)]
    struct SettingSnapshot {
        /// Its name.
        name: Cow<'static, str>,
        /// Its value, as settings write it.
        value: String,
        /// The kind of source the value came from.
        source: Cow<'static, str>,
        /// The exact source: the line of a file, or the name of a variable.
        whence: String,
        /// Whether it can change while the pool lives.
        changeable: bool,
    }

    /// A live block.
    struct BlockSnapshot {
        /// Its address.
        address: u64,
        #[serde(default)]
        /// Its size, after rounding up.
        size_bytes: u64,
        /// The size that was requested.
        requested_bytes: u64,
        #[serde(default)]
        /// The tag it was allocated under.
        tag: String,
        #[serde(default)]
        /// The stream it was allocated on; `None` if unknown, and in memory maps. Known while the setting `stacks` is
        /// on, and as far back as the setting `history` reaches.
        stream: Option<u64>,
        #[serde(default)]
        /// How long it has been live; known whenever the stream is.
        age_ms: Option<u64>,
        #[serde(default)]
        /// The index of the call stack that allocated it, with the setting `stacks`.
        stack: Option<usize>,
    }
}

impl Snapshot {
    /// The name and version of the schema. A version may gain fields; no field is removed or changes its meaning.
    pub const SCHEMA: &str = "forebay.pool.v1";

    /// The most blocks that a snapshot lists: the largest ones.
    pub const MAX_BLOCKS: usize = 4096;

    /// The most spans, and the most holes, that a snapshot lists: the largest ones.
    pub const MAX_RANGES: usize = 4096;

    /// The most call stacks that a snapshot names: those with the most bytes. Naming one can take milliseconds.
    pub const MAX_STACKS: usize = 256;

    /// Formats the snapshot as one line of JSON.
    ///
    /// ```
    /// use forebay::Pool;
    ///
    /// let json = Pool::open("host")?.snapshot().to_json();
    /// assert!(json.starts_with("{\"schema\":\"forebay.pool.v1\","));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_json(&self) -> String {
        // Cannot fail: it consists of integers, strings and lists of them.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// Takes a snapshot of a pool, with `settings` as those in force.
pub(in crate::pool) fn of(shared: &PoolInner, settings: &Settings) -> Snapshot {
    let descriptor = shared.source.descriptor();
    let here = !shared.is_from_parent();
    let memory = here.then(|| shared.source.memory_info().ok()).flatten();
    let device = DeviceSnapshot {
        kind: descriptor.kind.name().into(),
        ordinal: descriptor.ordinal.0,
        name: descriptor.name.clone(),
        total_bytes: memory.map(|memory| memory.total.get()),
        free_bytes: memory.map(|memory| memory.free.get()),
    };
    let settings = settings.entries().map(|entry| SettingSnapshot {
        name: entry.key.name().into(),
        value: entry.value,
        source: entry.source.name().into(),
        whence: entry.source.to_string(),
        changeable: entry.key.is_changeable(),
    });
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut stacks = StackNames::default();
    let (blocks, blocks_left_out) = blocks_of(shared, &mut stacks);
    let (spans, holes) = if here { ranges_of(shared) } else { Default::default() };
    let ((spans, spans_left_out), (holes, holes_left_out)) = (largest(spans), largest(holes));
    Snapshot {
        schema: Snapshot::SCHEMA.into(),
        taken_unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
        pool: shared.id.0,
        device,
        class: shared.options.class.to_string(),
        peers: shared.options.peers.iter().map(|peer| peer.0).collect(),
        limit_bytes: shared.group.limits.limit().get(),
        pressure: shared.pressure().to_string(),
        settings: settings.collect(),
        statistics: statistics::of(shared),
        blocks,
        blocks_left_out,
        spans,
        spans_left_out,
        holes,
        holes_left_out,
        stacks: stacks.texts,
        refusal: None,
    }
}

impl Snapshot {
    /// Adds a call stack; its index.
    pub(in crate::pool) fn add_stack(&mut self, stack: Stack) -> Option<usize> {
        let text = Some(stack.to_string()).filter(|text| !text.is_empty())?;
        let known = self.stacks.iter().position(|known| *known == text);
        known.or_else(|| {
            self.stacks.push(text);
            self.stacks.len().checked_sub(1)
        })
    }
}

/// The stacks of a snapshot, each named once.
#[derive(Default)]
struct StackNames {
    texts: Vec<String>,
    indices: HashMap<Stack, usize>,
}

impl StackNames {
    /// The index of a stack; `None` for no stack, and once there are too many.
    fn index(&mut self, stack: Stack) -> Option<usize> {
        if stack.is_none() {
            return None;
        }
        if let Some(&index) = self.indices.get(&stack) {
            return Some(index);
        }
        let index = self.texts.len();
        if index >= Snapshot::MAX_STACKS {
            return None;
        }
        self.texts.push(stack.to_string());
        self.indices.insert(stack, index);
        Some(index)
    }
}

/// The largest live blocks, and the number of others.
fn blocks_of(shared: &PoolInner, stacks: &mut StackNames) -> (Vec<BlockSnapshot>, u64) {
    if shared.is_from_parent() {
        return (Vec::new(), 0);
    }
    let map = shared.context().map;
    let live = map.live_blocks();
    let left_out = live.len().saturating_sub(Snapshot::MAX_BLOCKS) as u64;
    let (_, live) = report::largest(live, Snapshot::MAX_BLOCKS);
    let origins = shared.origins();
    // The largest come first, so that their stacks are named if there are too many.
    let blocks = still_live(map, &live).map(|(address, known)| {
        let mut block = BlockSnapshot::new(address, known);
        if let Some((origin, age)) = origins.of(address, known.generation()) {
            block.stream = Some(origin.stream.0);
            block.age_ms = Some(u64::try_from(age.as_millis()).unwrap_or(u64::MAX));
            block.stack = stacks.index(origin.stack);
        }
        block
    });
    (blocks.collect(), left_out)
}

/// All spans, and all holes, lowest first.
fn ranges_of(shared: &PoolInner) -> (Vec<RangeSnapshot>, Vec<RangeSnapshot>) {
    let (mut spans, mut holes) = (Vec::new(), Vec::new());
    let heap = shared.heap();
    for (space, side) in
        [(heap.spaces.of(Side::Small), "small"), (heap.spaces.of(Side::Large), "large")]
    {
        let range = |(address, size): (u64, Bytes)| RangeSnapshot {
            address,
            size_bytes: size.get(),
            side: side.into(),
        };
        let pages = space.page_table().pages().map(|(address, _, size)| range((address, size)));
        for page in pages {
            match spans.last_mut() {
                Some(RangeSnapshot { address, size_bytes, side: before })
                    if *before == side && *address + *size_bytes == page.address =>
                {
                    *size_bytes += page.size_bytes;
                }
                _ => spans.push(page),
            }
        }
        holes.extend(space.holes().iter().map(range));
    }
    (spans, holes)
}

/// The largest of some ranges, lowest first, and the number of others.
fn largest(mut ranges: Vec<RangeSnapshot>) -> (Vec<RangeSnapshot>, u64) {
    ranges.sort_unstable_by_key(|range| (core::cmp::Reverse(range.size_bytes), range.address));
    let left_out = ranges.len().saturating_sub(Snapshot::MAX_RANGES) as u64;
    ranges.truncate(Snapshot::MAX_RANGES);
    ranges.sort_unstable_by_key(|range| range.address);
    (ranges, left_out)
}

/// The blocks that are still live, with their states: one freed in between no longer has a tag.
pub(in crate::pool) fn still_live(
    map: &AddressMap,
    live: &[LiveBlock],
) -> impl Iterator<Item = (Address, BlockState)> {
    live.iter().filter_map(|&LiveBlock { address, .. }| {
        let known = map.slot(address)?.state_at(address).filter(|known| known.live())?;
        Some((address, known))
    })
}

impl BlockSnapshot {
    /// A live block of unknown origin.
    pub(super) fn new(address: Address, known: BlockState) -> Self {
        Self {
            address: address.get(),
            size_bytes: known.size().get(),
            requested_bytes: known.requested(),
            tag: Tag::of(known).name(),
            stream: None,
            age_ms: None,
            stack: None,
        }
    }
}
