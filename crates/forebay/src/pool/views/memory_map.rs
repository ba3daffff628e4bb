//! The memory map: the memory of a pool by address, and the blocks in it.

use forebay_core::address_space::AddressSpace;
use forebay_core::{Address, Bytes, Span};

use crate::pool::heap::span_of;
use crate::pool::inner::PoolInner;
use crate::pool::views::snapshot::{BlockSnapshot, still_live};
use crate::sync::map::{LiveBlock, Side};

/// The memory of a pool by address, at one moment. Made by [`Pool::memory_map`](crate::Pool::memory_map).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryMap {
    /// Mapped addresses, lowest first. Together they are the bytes the pool holds.
    pub spans: Vec<MappedSpan>,
    /// All live blocks, lowest first. Each lies in one span. Memory outside them is free, cached by a thread, or
    /// waiting for work that still uses it.
    pub blocks: Vec<BlockSnapshot>,
}

/// Contiguous addresses that the pool mapped for one request. Another span may begin where one ends; two spans that a
/// live block crosses are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappedSpan {
    /// The addresses.
    pub span: Span,
    /// Whether small or large blocks lie there.
    pub side: Side,
}

impl MappedSpan {
    /// Its first address.
    pub fn start(&self) -> Address {
        self.span.start()
    }

    /// One past its last address.
    pub fn end(&self) -> Address {
        self.span.end()
    }

    /// Its size in bytes.
    pub fn size(&self) -> Bytes {
        self.span.size()
    }
}

pub(in crate::pool) fn of(shared: &PoolInner) -> MemoryMap {
    if shared.is_from_parent() {
        return MemoryMap { spans: Vec::new(), blocks: Vec::new() };
    }
    // Under one lock: no page goes or comes between the two, so that every block lies in a segment.
    let (mut segments, mut live) = {
        let heap = shared.heap();
        let small = segments_of(heap.spaces.of(Side::Small), Side::Small);
        let both = small.chain(segments_of(heap.spaces.of(Side::Large), Side::Large));
        (both.collect::<Vec<MappedSpan>>(), shared.map.live_blocks())
    };
    segments.sort_unstable_by_key(MappedSpan::start);
    live.sort_unstable_by_key(|block| block.address);
    let mut spans: Vec<MappedSpan> = Vec::new();
    for segment in segments {
        match spans.last_mut() {
            Some(last) if last.end() == segment.start() && is_crossed(&live, segment.start()) => {
                let size = last.size().saturating_add(segment.size());
                last.span = Span::new(last.start(), size).unwrap_or(last.span);
            }
            _ => spans.push(segment),
        }
    }
    let blocks = still_live(&shared.map, &live);
    let blocks = blocks.map(|(address, known)| BlockSnapshot::new(address, known)).collect();
    MemoryMap { spans, blocks }
}

/// Whether a block of `live`, lowest first, lies on both sides of `at`.
fn is_crossed(live: &[LiveBlock], at: Address) -> bool {
    let below = live.partition_point(|block| block.address < at).checked_sub(1);
    let end =
        below.and_then(|index| live.get(index)).map(|block| block.address.checked_add(block.size));
    end.flatten().is_some_and(|end| end > at)
}

/// What one side took from the device, for one request each.
fn segments_of(space: &AddressSpace, side: Side) -> impl Iterator<Item = MappedSpan> {
    let segments = space.page_table().segments().into_iter();
    segments.map(move |(at, size)| MappedSpan { span: span_of(at, size), side })
}
