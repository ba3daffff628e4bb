//! How much of everything a device has given out.

use forebay_hal::address_book::{Entry, MemoryKind};

use crate::HostDevice;

/// What of a [`HostDevice`] is alive. All zeros where everything was given back: nothing leaked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Census {
    /// Plain allocations.
    pub allocations: usize,
    /// Managed allocations.
    pub managed: usize,
    /// Pinned allocations.
    pub pinned: usize,
    /// Registered spans.
    pub registered: usize,
    /// Regions.
    pub regions: usize,
    /// Mappings in them.
    pub mappings: usize,
    /// Pages, released ones that are still mapped included.
    pub pages: usize,
    /// Streams that were created and not destroyed; the default stream is not counted.
    pub streams: usize,
    /// Destroyed streams whose work is not done yet.
    pub draining: usize,
    /// Events.
    pub events: usize,
    /// Commands enqueued or running, on all streams.
    pub queued: u64,
}

impl HostDevice {
    /// Counts what is alive. Not for hot paths: it looks at everything. Nothing of a device that was opened
    /// before this process was forked is counted.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        if self.descriptor.is_inherited() {
            return census;
        }
        let table = self.space.table();
        census.pages = table.book.pages().len();
        for entry in table.book.entries() {
            match entry {
                Entry::Memory(memory) => match memory.kind {
                    MemoryKind::Plain => census.allocations += 1,
                    MemoryKind::Managed => census.managed += 1,
                    MemoryKind::Pinned => census.pinned += 1,
                    MemoryKind::Registered => census.registered += 1,
                },
                Entry::Region(region) => {
                    census.regions += 1;
                    census.mappings += region.mappings().len();
                }
            }
        }
        drop(table);
        (census.streams, census.draining, census.events, census.queued) = self.streams().counts();
        census
    }
}
