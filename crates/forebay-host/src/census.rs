//! Counts of everything a device has given out.

use forebay_hal::address_book::{Entry, MemoryKind};

use crate::HostDevice;
use crate::stream::{EVENTS, Queue};

/// Counts of a [`HostDevice`]'s live objects. All zero if nothing leaked.
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
    /// Pages, including released ones that are still mapped.
    pub pages: usize,
    /// Streams created and not destroyed, without the default stream.
    pub streams: usize,
    /// Destroyed streams whose work is not done yet.
    pub draining: usize,
    /// Events.
    pub events: usize,
    /// Commands enqueued or running, on all streams.
    pub queued: u64,
}

impl HostDevice {
    /// Counts live objects. Not for hot paths: it visits everything. In a forked child, objects of a device that the
    /// parent opened are not counted.
    pub fn census(&self) -> Census {
        let mut census = Census::default();
        if self.descriptor.is_from_parent() {
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
        let mut streams = self.streams();
        streams.settle(Queue::is_done);
        (census.streams, census.draining) = streams.counts();
        // The default stream was not created by anyone.
        census.streams = census.streams.saturating_sub(1);
        census.queued = streams.all().iter().map(|queue| queue.pending()).sum();
        census.events = EVENTS.count_of(self.serial);
        census
    }
}
