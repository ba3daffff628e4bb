//! Where everything lies: the memory of a pool by address, and the blocks in it.

use forebay_core::Span;

use super::heap::{SideHeap, span_of};
use super::shared::Shared;
use super::snapshot::named;
use super::{BlockSnapshot, Pool};

/// The memory of a pool by address, at a moment. Made by [`Pool::memory_map`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryMap {
    /// Addresses behind which there is memory, each stretch as long as it is without a gap, the lowest
    /// first. Together they are what the pool holds.
    pub spans: Vec<Span>,
    /// All live blocks, the lowest first. What lies in no block is free, at hand in a magazine, or
    /// waits for work that still uses it.
    pub blocks: Vec<BlockSnapshot>,
}

impl Pool {
    /// Where the memory of the pool lies, and every block in it. The blocks are of a moment soon after
    /// that of the memory, where other threads go on. Looks at every page and at every block there ever
    /// was: for now and then, not for every step.
    ///
    /// With the setting `guard_pages` each block lies in pages of its own, which are not among the spans.
    /// Empty in a forked child, of its parent's pool.
    pub fn memory_map(&self) -> MemoryMap {
        if self.shared.is_inherited() {
            return MemoryMap { spans: Vec::new(), blocks: Vec::new() };
        }
        memory_map_of(&self.shared)
    }

    /// How many pages the pool holds, or segments on a device that has no pages. 0 in a forked child, of its
    /// parent's pool.
    pub fn page_count(&self) -> u64 {
        if self.shared.is_inherited() {
            return 0;
        }
        let heap = self.shared.heap();
        [&heap.small, &heap.large]
            .map(|side_heap| side_heap.space.pages().count() as u64)
            .iter()
            .sum()
    }
}

fn memory_map_of(shared: &Shared) -> MemoryMap {
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

/// The addresses of the pages of one side.
fn pages_of(side_heap: &SideHeap) -> impl Iterator<Item = Span> {
    side_heap.space.pages().map(|(at, _, size)| span_of(at, size))
}
