//! A pool at one moment, from its snapshot: the post-mortem of a refused request, or the state at any other time. It
//! has no time line, because a snapshot has no history.

use std::collections::HashMap;

use forebay::snapshot::{
    BlockSnapshot, DeviceSnapshot, RangeSnapshot, RefusalSnapshot, SettingSnapshot,
};
use forebay_core::{Bytes, counted};
use forebay_trace::format::PoolSnapshot;
use serde::Serialize;

use super::data::Bar;
use super::lives::bars;
use super::map::Used;

/// The id of the format. Existing keys keep their meaning.
const SCHEMA: &str = "forebay.postmortem.v1";

/// How many owners are named; the rest is one row.
const OWNERS: usize = 40;

/// How many holes are listed.
const HOLES: usize = 40;

/// The data of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PostMortem {
    /// Always "forebay.postmortem.v1".
    pub schema: &'static str,
    /// The version of the program.
    pub forebay: &'static str,
    /// The title: the file's name, and what it shows.
    pub title: String,
    /// The time of the snapshot, in milliseconds since 1970.
    pub taken_unix_ms: u64,
    /// The number of the pool.
    pub pool: u64,
    /// Its memory class.
    pub class: String,
    /// Its device.
    pub device: DeviceSnapshot,
    /// Settings that are not the defaults.
    pub settings: Vec<SettingSnapshot>,
    /// What happened, in a sentence or two.
    pub why: String,
    /// The refused request; null if none was.
    pub refusal: Option<RefusalSnapshot>,
    /// Its tag as displayed.
    pub refused_tag: String,
    /// The figures of the pool.
    pub figures: Figures,
    /// Who held memory.
    pub owners: MomentOwners,
    /// The live blocks, the largest first, with tags as displayed.
    pub blocks: Vec<BlockSnapshot>,
    /// The holes.
    pub holes: Holes,
    /// The address map.
    pub map: MomentMap,
    /// Call stacks by index.
    pub stacks: Vec<String>,
}

/// The figures of the pool: of the refusal, or else of the snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Figures {
    /// The pool's limit.
    pub limit_bytes: u64,
    /// The bytes it holds.
    pub held_bytes: u64,
    /// Bytes of that in live blocks.
    pub live_bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes in no live block.
    pub free_bytes: u64,
    /// Bytes of those that threads have cached.
    pub cached_bytes: u64,
    /// The largest hole; with a refusal, that on the side of the request.
    pub largest_free_bytes: u64,
}

/// Who held memory. The rows of each list add up to the live bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MomentOwners {
    /// By tag, the most bytes first.
    pub by_tag: Vec<OwnerRow>,
    /// By call stack, the most bytes first.
    pub by_stack: Vec<OwnerRow>,
}

/// Blocks of one owner.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OwnerRow {
    /// The tag or the call stack.
    pub owner: String,
    /// How many blocks, as far as they are listed.
    pub blocks: u64,
    /// How many bytes they take, after rounding up.
    pub bytes: u64,
    /// The age of the oldest; null if no age is known.
    pub oldest_ms: Option<u64>,
}

/// Free memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Holes {
    /// How many holes.
    pub count: u64,
    /// The bytes of those that the snapshot lists.
    pub bytes: u64,
    /// The largest, at most 40.
    pub largest: Vec<RangeSnapshot>,
    /// By size.
    pub sizes: Vec<Bar>,
}

/// The map of addresses. Those without memory are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MomentMap {
    /// The end of the offsets.
    pub end: u64,
    /// Contiguous addresses, the lowest first.
    pub regions: Vec<Region>,
    /// Blocks and holes, by columns of one length.
    pub blocks: MomentBlocks,
    /// What the pool held, as offsets and sizes: one entry, as the moment is one.
    pub held: [HeldOffsets; 1],
    /// Blocks that are not drawn.
    pub blocks_left_out: u64,
    /// Holes that are not drawn.
    pub holes_left_out: u64,
    /// Spans that are not drawn.
    pub spans_left_out: u64,
}

/// Contiguous addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Region {
    /// Where they are drawn.
    pub offset: u64,
    /// Where they begin.
    pub address: u64,
    /// How many there are.
    pub size_bytes: u64,
}

/// Blocks and holes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct MomentBlocks {
    /// Where each is drawn.
    pub offset: Vec<u64>,
    /// How large it is.
    pub bytes: Vec<u64>,
    /// 0 for a block, 1 for a hole.
    pub stream: Vec<u8>,
    /// The index of the block among the blocks, or of the hole among the drawn holes.
    pub label: Vec<u64>,
}

/// What the pool held.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct HeldOffsets {
    /// Pairs of offset and size.
    pub ranges: Vec<(u64, u64)>,
}

impl PostMortem {
    /// What a snapshot tells.
    pub fn of(snapshot: &PoolSnapshot) -> Self {
        let mut blocks: Vec<&BlockSnapshot> = snapshot.blocks.iter().collect();
        blocks.sort_by_key(|block| (core::cmp::Reverse(size(block)), block.address));
        let figures = figures(snapshot);
        let refusal = snapshot.refusal.clone();
        let what = match &refusal {
            Some(refused) => format!("{} refused", Bytes::new(refused.requested_bytes)),
            None => format!("pool {}", snapshot.pool),
        };
        Self {
            schema: SCHEMA,
            forebay: env!("CARGO_PKG_VERSION"),
            title: format!("{}: {what}", snapshot.name),
            taken_unix_ms: snapshot.taken_unix_ms,
            pool: snapshot.pool,
            class: snapshot.class.clone(),
            device: snapshot.device.clone(),
            settings: changed(&snapshot.settings),
            why: why(snapshot, &figures),
            refused_tag: refusal
                .as_ref()
                .map_or_else(String::new, |of| PoolSnapshot::shown_tag(&of.tag).to_owned()),
            refusal,
            figures,
            owners: MomentOwners {
                by_tag: by_tag(snapshot, figures.live_bytes),
                by_stack: by_stack(snapshot, figures.live_bytes),
            },
            map: map(snapshot, &blocks),
            blocks: blocks.into_iter().map(row).collect(),
            holes: holes(snapshot),
            stacks: snapshot.stacks.clone(),
        }
    }
}

/// A file without sizes after rounding has those that were requested.
fn size(block: &BlockSnapshot) -> u64 {
    block.size_bytes.max(block.requested_bytes)
}

fn row(block: &BlockSnapshot) -> BlockSnapshot {
    let mut row = block.clone();
    row.size_bytes = size(block);
    row.tag = PoolSnapshot::shown_tag(&block.tag).to_owned();
    row
}

/// Settings that someone set.
fn changed(settings: &[SettingSnapshot]) -> Vec<SettingSnapshot> {
    settings.iter().filter(|setting| setting.source != "default").cloned().collect()
}

fn figures(snapshot: &PoolSnapshot) -> Figures {
    let of = &snapshot.statistics;
    let listed = snapshot.blocks.iter().map(size).fold(0_u64, u64::saturating_add);
    let blocks = of.blocks.max(snapshot.blocks.len() as u64);
    match &snapshot.refusal {
        Some(refused) => Figures {
            limit_bytes: refused.limit_bytes,
            held_bytes: refused.held_bytes,
            live_bytes: refused.live_bytes,
            blocks,
            free_bytes: refused.free_bytes,
            cached_bytes: refused.cached_bytes,
            largest_free_bytes: refused.largest_free_bytes,
        },
        // An old file has no counters: what its blocks take is held at least.
        None => Figures {
            limit_bytes: snapshot.limit_bytes,
            held_bytes: of.held.get().max(of.live.get()).max(listed),
            live_bytes: of.live.get().max(listed),
            blocks,
            free_bytes: of.free.get(),
            cached_bytes: of.cached.get(),
            largest_free_bytes: of.largest_free.get(),
        },
    }
}

/// What happened, with the figures that show it.
fn why(snapshot: &PoolSnapshot, figures: &Figures) -> String {
    let [limit, held, live, free, largest] = [
        figures.limit_bytes,
        figures.held_bytes,
        figures.live_bytes,
        figures.free_bytes,
        figures.largest_free_bytes,
    ]
    .map(Bytes::new);
    let Some(refused) = &snapshot.refusal else {
        return format!(
            "The state of pool {} at one moment: {live} live of {held} held. No request was refused.",
            snapshot.pool
        );
    };
    let needed = Bytes::new(refused.needed_bytes.max(refused.requested_bytes));
    let device_free = Bytes::new(refused.device_free_bytes);
    let elsewhere = Bytes::new(refused.held_elsewhere_bytes);
    let count =
        counted((snapshot.holes.len() as u64).saturating_add(snapshot.holes_left_out), "hole");
    let reason = match &*refused.cause {
        "limit" => {
            let group = match Bytes::new(refused.held_by_group_bytes) {
                Bytes::ZERO => String::new(),
                group => format!(", and the {group} of pools that share the limit"),
            };
            format!(
                "Together with the {live} in live blocks{group} it exceeds the limit of {limit}."
            )
        }
        "device_too_small" => format!(
            "Together with the {live} in live blocks it exceeds the memory of the whole device, {}.",
            held.saturating_add(device_free).saturating_add(elsewhere)
        ),
        "device_full" => {
            format!("The device has {device_free} free: others hold {elsewhere} of it.")
        }
        "fragmented" => format!(
            "{free} were free, but in {count}, the largest of them {largest}, and there was no room to grow: the pool held \
             {held} of at most {limit}, and the device had {device_free} free."
        ),
        "busy" => format!(
            "A hole of {largest} was there, but work of another stream still used it when the wait ended, or another thread \
             freed it just then."
        ),
        "driver" => format!(
            "Limit and device left room, but the driver, which reports {device_free} free, did not provide it."
        ),
        _ => "The snapshot does not say why.".to_owned(),
    };
    format!("A request for {needed} was refused. {reason}")
}

/// Sums by owner; the most bytes first, and the rest of `live` as a row, so that the rows add up to it.
fn rows(sums: HashMap<String, OwnerRow>, live: u64) -> Vec<OwnerRow> {
    let mut rows: Vec<OwnerRow> =
        sums.into_iter().map(|(owner, row)| OwnerRow { owner, ..row }).collect();
    rows.sort_by(|one, two| two.bytes.cmp(&one.bytes).then_with(|| one.owner.cmp(&two.owner)));
    if rows.len() > OWNERS + 1 {
        let rest = rows.split_off(OWNERS);
        let mut others =
            OwnerRow { owner: format!("({} others)", rest.len()), ..OwnerRow::default() };
        rest.iter().for_each(|row| others.add(row.blocks, row.bytes, row.oldest_ms));
        rows.push(others);
    }
    let listed = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.bytes));
    if let Some(bytes) = live.checked_sub(listed).filter(|&bytes| bytes > 0) {
        let owner = "(blocks that the snapshot does not list)".to_owned();
        rows.push(OwnerRow { owner, bytes, ..OwnerRow::default() });
    }
    rows
}

impl OwnerRow {
    fn add(&mut self, blocks: u64, bytes: u64, age_ms: Option<u64>) {
        self.blocks = self.blocks.saturating_add(blocks);
        self.bytes = self.bytes.saturating_add(bytes);
        self.oldest_ms = self.oldest_ms.max(age_ms);
    }
}

/// The counters know the bytes of every tag; blocks and ages are those of the listed blocks.
fn by_tag(snapshot: &PoolSnapshot, live: u64) -> Vec<OwnerRow> {
    let mut sums: HashMap<String, OwnerRow> = HashMap::new();
    let name = |tag: &str| PoolSnapshot::shown_tag(tag).to_owned();
    for block in &snapshot.blocks {
        sums.entry(name(&block.tag)).or_default().add(1, size(block), block.age_ms);
    }
    for tag in &snapshot.statistics.tags {
        sums.entry(name(&tag.tag)).or_default().bytes = tag.live.get();
    }
    rows(sums, live)
}

fn by_stack(snapshot: &PoolSnapshot, live: u64) -> Vec<OwnerRow> {
    let mut sums: HashMap<String, OwnerRow> = HashMap::new();
    for block in &snapshot.blocks {
        let stack = snapshot.stack(block.stack).filter(|stack| !stack.is_empty());
        let owner = stack.unwrap_or("(no stack)").to_owned();
        sums.entry(owner).or_default().add(1, size(block), block.age_ms);
    }
    rows(sums, live)
}

fn holes(snapshot: &PoolSnapshot) -> Holes {
    let mut largest = snapshot.holes.clone();
    largest.sort_by_key(|hole| (core::cmp::Reverse(hole.size_bytes), hole.address));
    let bytes = largest.iter().fold(0_u64, |sum, hole| sum.saturating_add(hole.size_bytes));
    let sizes = bars(largest.iter().map(|hole| (hole.size_bytes, hole.size_bytes, true)));
    let count = (largest.len() as u64).saturating_add(snapshot.holes_left_out);
    largest.truncate(HOLES);
    Holes { count, bytes, largest, sizes }
}

/// Blocks and holes where they were. Mapped addresses are drawn in full, so that holes keep their places.
fn map(snapshot: &PoolSnapshot, blocks: &[&BlockSnapshot]) -> MomentMap {
    let ranges = |ranges: &[RangeSnapshot]| -> Vec<(u64, u64)> {
        ranges.iter().map(|range| (range.address, range.size_bytes)).collect()
    };
    let (spans, holes) = (ranges(&snapshot.spans), ranges(&snapshot.holes));
    let placed: Vec<(u64, u64)> = blocks.iter().map(|block| (block.address, size(block))).collect();
    let all = spans.iter().chain(&holes).chain(&placed).copied();
    let used = Used::of(all.filter(|&(_, size)| size > 0).collect());
    let mut columns = MomentBlocks::default();
    for (kind, list) in [(0, &placed), (1, &holes)] {
        for (index, &(address, size)) in (0..).zip(list).filter(|(_, range)| range.1 > 0) {
            columns.offset.push(used.offset(address));
            columns.bytes.push(size);
            columns.stream.push(kind);
            columns.label.push(index);
        }
    }
    let held = spans.iter().map(|&(address, size)| (used.offset(address), size)).collect();
    let regions = used.ranges.iter().map(|&(address, end, offset)| Region {
        offset,
        address,
        size_bytes: end - address,
    });
    MomentMap {
        end: used.end,
        regions: regions.collect(),
        blocks: columns,
        held: [HeldOffsets { ranges: held }],
        blocks_left_out: snapshot.blocks_left_out,
        holes_left_out: snapshot.holes_left_out,
        spans_left_out: snapshot.spans_left_out,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forebay::{Device, Pool, PoolOptions, StreamHandle, tag};
    use forebay_sim::{MemoryModel, SimMachine};
    use forebay_trace::ReadOptions;
    use forebay_trace::format::{Recorded, read_recorded, read_recorded_path};

    use super::super::page::post_mortem_page;
    use super::*;

    const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

    fn read_moment(json: &str) -> PoolSnapshot {
        match read_recorded(json.as_bytes(), "oom", &ReadOptions::default()) {
            Ok(Recorded::Moment(snapshot)) => *snapshot,
            other => panic!("{other:?}"),
        }
    }

    fn sum(rows: &[OwnerRow]) -> u64 {
        rows.iter().map(|row| row.bytes).sum()
    }

    fn device() -> Arc<dyn Device> {
        let machine = SimMachine::builder().memory(MemoryModel::Phantom).build().unwrap();
        machine.device(0).unwrap()
    }

    /// Blocks with and without tag and stack, more than a snapshot lists: every table adds up to what is live.
    #[test]
    fn the_rows_of_owners_add_up_to_what_is_live() {
        let pool = Pool::new(&device()).unwrap();
        for number in 0..60_u64 {
            let _tag = (number % 3 == 0).then(|| tag(&format!("tag {number} of the moment")));
            pool.set("stacks", if number % 2 == 0 { "on" } else { "off" }).unwrap();
            pool.allocate(Bytes::new(1000 * (number + 1)), DEFAULT).unwrap();
        }
        for _ in 0..5000 {
            pool.allocate(Bytes::new(512), DEFAULT).unwrap();
        }
        let snapshot = pool.snapshot();
        assert!(snapshot.blocks_left_out > 0);
        let found = PostMortem::of(&read_moment(&snapshot.to_json()));
        let live = pool.statistics().live.get();
        assert_eq!(found.figures.live_bytes, live);
        assert_eq!((sum(&found.owners.by_tag), sum(&found.owners.by_stack)), (live, live));
        let owners =
            |rows: &[OwnerRow]| rows.iter().map(|row| row.owner.clone()).collect::<Vec<_>>();
        assert!(owners(&found.owners.by_tag).contains(&"(no tag)".to_owned()));
        let by_stack = owners(&found.owners.by_stack);
        for row in ["(no stack)", "(blocks that the snapshot does not list)"] {
            assert!(by_stack.iter().any(|owner| owner == row), "{row} is not in {by_stack:?}");
        }
        assert!(found.refusal.is_none() && found.why.contains("No request was refused"));
    }

    /// A refusal by fragmentation: the page knows the request, the holes at their addresses and what would have helped,
    /// and nothing of a run.
    #[test]
    fn a_refusal_is_a_post_mortem_and_no_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oom.txt");
        let options = PoolOptions::new().max_bytes(Bytes::mib(16));
        let pool = options
            .set(|set| set.stacks(true).set("oom_report", path.to_str().unwrap()).unwrap())
            .build(&device())
            .unwrap();
        let blocks: Vec<_> =
            (0..16).map(|_| pool.allocate(Bytes::mib(1), DEFAULT).unwrap()).collect();
        for block in blocks.iter().step_by(2) {
            pool.free_block(*block, DEFAULT).unwrap();
        }
        let _tag = tag("</script><script>document.title='owned'");
        pool.allocate(Bytes::mib(4), DEFAULT).unwrap_err();
        // The text stands for the snapshot beside it.
        for name in ["oom.txt", "oom.txt.json"] {
            let read = read_recorded_path(&folder.path().join(name), &ReadOptions::default());
            let Ok(Recorded::Moment(snapshot)) = read else { panic!("{name}: {read:?}") };
            let found = PostMortem::of(&snapshot);
            let refused = found.refusal.as_ref().unwrap();
            assert_eq!((refused.requested_bytes, &*refused.cause), (4 << 20, "fragmented"));
            assert_eq!((found.figures.limit_bytes, found.figures.held_bytes), (16 << 20, 16 << 20));
            assert!(found.why.contains("8.00 MiB were free, but in 8 holes"), "{}", found.why);
            let limit = format!("A limit of {} B", refused.enough_limit_bytes.unwrap());
            assert!(refused.remedies.iter().any(|said| said.starts_with(&limit)), "{refused:?}");
            // Blocks and holes fill the spans without a gap or an overlap.
            let columns = &found.map.blocks;
            let mut drawn: Vec<_> = columns.offset.iter().zip(&columns.bytes).collect();
            drawn.sort_unstable();
            let mut end = 0;
            for (&offset, &size) in drawn {
                assert_eq!(offset, end);
                end = offset + size;
            }
            assert_eq!((end, found.map.end, columns.stream.len()), (16 << 20, 16 << 20, 16));
            let page = post_mortem_page(&found).unwrap();
            for absent in ["leak", "larger batch", "Memory over time", "document.title='owned'<"] {
                assert!(!page.contains(absent), "{absent}");
            }
            assert!(page.contains("forebay.postmortem.v1") && page.len() < 1 << 20);
            assert_eq!(page.matches("<script").count(), 2);
        }
    }
}
