//! The memory map: the memory of a pool by address, and the blocks in it.

use forebay_core::Span;

use crate::pool::heap::{SideHeap, span_of};
use crate::pool::shared::Shared;
use crate::pool::views::snapshot::{BlockSnapshot, named};

/// The memory of a pool by address, at one moment. Made by [`Pool::memory_map`](crate::Pool::memory_map).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryMap {
    /// Mapped addresses in maximal contiguous spans, the lowest first. Together they are the bytes the pool holds.
    pub spans: Vec<Span>,
    /// All live blocks, the lowest first. Memory outside them is free, cached by a thread, or waiting for work that
    /// still uses it.
    pub blocks: Vec<BlockSnapshot>,
}

/// Builds the memory map of a pool.
pub(in crate::pool) fn of(shared: &Shared) -> MemoryMap {
    if shared.is_inherited() {
        return MemoryMap { spans: Vec::new(), blocks: Vec::new() };
    }
    let mut pages: Vec<Span> = {
        let heap = shared.heap();
        [&heap.small, &heap.large].into_iter().flat_map(pages_of).collect()
    };
    pages.sort_unstable_by_key(|page| page.start());
    let mut spans: Vec<Span> = Vec::new();
    for page in pages {
        let joined = spans
            .last()
            .filter(|last| last.end() == page.start())
            .and_then(|last| Span::new(last.start(), last.size().saturating_add(page.size())).ok());
        match (joined, spans.last_mut()) {
            (Some(joined), Some(last)) => *last = joined,
            _ => spans.push(page),
        }
    }
    let mut live = shared.map.live_blocks();
    live.sort_unstable_by_key(|block| block.address);
    MemoryMap { spans, blocks: named(&shared.map, &live).collect() }
}

/// The spans of the pages of one side.
fn pages_of(side_heap: &SideHeap) -> impl Iterator<Item = Span> {
    side_heap.space.pages().map(|(at, _, size)| span_of(at, size))
}
