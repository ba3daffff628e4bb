//! The address table of one simulated device.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::{self, AddressBook, Entry, Figures, Mapping, MemoryKind, Page};
use forebay_hal::{Access, Call, PageOptions, Result};
use forebay_host::mapping::AddressRange;

use super::store::Store;
use crate::checker::Uses;

/// Memory whose address and substance come together.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) store: Arc<Store>,
    pub(crate) uses: Uses,
}

/// Physical memory that can be mapped.
#[derive(Debug)]
pub(crate) struct PageStore {
    pub(crate) store: Arc<Store>,
    pub(crate) options: PageOptions,
    /// What it counts for in the device's memory: nothing for a page from elsewhere.
    pub(crate) charged: Bytes,
}

/// A reserved range, with its addresses on the host; `None` on a phantom device.
pub(crate) type Region = address_book::Region<Option<AddressRange>, Uses>;

/// A part of an operation's span that lies in one memory.
#[derive(Clone, Debug)]
pub(crate) struct PageRun {
    pub(crate) store: Arc<Store>,
    pub(crate) offset: Bytes,
    pub(crate) size: Bytes,
    /// The first address, by which its uses are noted.
    pub(crate) at: Address,
}

impl PageRun {
    /// The part of `whole`, where `store` is mapped, that is in `span`.
    pub(crate) fn of(store: &Arc<Store>, whole: Span, span: Span) -> Self {
        let (at, end) = (span.start().max(whole.start()), span.end().min(whole.end()));
        let offset = at.offset_from(whole.start()).unwrap_or_default();
        let size = end.offset_from(at).unwrap_or_default();
        Self { store: Arc::clone(store), offset, size, at }
    }

    /// Where the mapping it goes through puts the memory's first byte.
    pub(crate) fn through(&self) -> Address {
        Address::new(self.at.get().wrapping_sub(self.offset.get()))
    }
}

/// A direction of the wire between host and device; copies in one direction share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wire {
    /// Host to device.
    In,
    /// Device to host.
    Out,
}

/// Each device has 64 PiB of phantom addresses.
const PHANTOM_LOG2: u32 = 56;

/// Everything one device knows about its addresses.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// What is where.
    pub(crate) book: AddressBook<Block, Option<AddressRange>, PageStore, Uses>,
    pub(crate) figures: Figures,
    /// When the wire to the device, and that to the host, are free, on the simulation's clock.
    pub(crate) wires: BTreeMap<Wire, Duration>,
    /// When all work that was ever enqueued on the device ends, on the simulation's clock.
    pub(crate) busy_until: Duration,
    /// Where the next phantom address may lie: a counter that only rises.
    phantom: u64,
}

impl Space {
    /// The addresses of device `ordinal`. Phantom ones begin far above what the system gives out,
    /// so that one dereferenced by mistake faults and is recognised, and each device has its own.
    pub(crate) fn new(ordinal: DeviceOrdinal) -> Self {
        Self { phantom: (u64::from(ordinal.0) + 1) << PHANTOM_LOG2, ..Self::default() }
    }

    /// Phantom addresses nobody has had; `None` where the device's own have run out.
    pub(crate) fn phantom(&mut self, size: Bytes, alignment: Alignment) -> Option<Address> {
        let start = Address::new(self.phantom).checked_align_up(alignment)?;
        let end = start.checked_add(size)?;
        if end.get() >> PHANTOM_LOG2 != self.phantom >> PHANTOM_LOG2 {
            return None;
        }
        self.phantom = end.get();
        Some(start)
    }

    /// The memories behind `span`, for the device to use with `need`: part of one allocation, or
    /// mappings side by side in one region. What lies beyond the end of either is another's, even
    /// where it is next door.
    pub(crate) fn resolve(
        &self,
        call: Call,
        argument: &'static str,
        span: Span,
        need: Access,
    ) -> Result<Vec<PageRun>> {
        self.book.check_use(call, argument, span, need)?;
        let piece = |mapping: &Mapping<Uses>| {
            let page = self.book.mapped_page(mapping)?;
            Some(PageRun::of(&page.owner.store, mapping.span, span))
        };
        Ok(match self.book.find(span.start()) {
            Some(Entry::Memory(memory)) => {
                vec![PageRun::of(&memory.owner.store, memory.span, span)]
            }
            Some(Entry::Region(region)) => region.overlapping(span).filter_map(piece).collect(),
            None => Vec::new(),
        })
    }

    /// The record of uses of the block or mapping at `at`.
    pub(crate) fn uses_at(&mut self, at: Address) -> Option<&mut Uses> {
        if self.book.memory_at(at).is_some() {
            return self.book.memory_owner_mut(at).map(|block| &mut block.uses);
        }
        self.book.mapping_owner_mut(at)
    }

    /// All regions.
    pub(crate) fn regions(&self) -> impl Iterator<Item = &Region> {
        self.book.entries().filter_map(Entry::region)
    }

    /// No longer counts pages that went.
    pub(crate) fn settle_pages(&mut self, pages: impl IntoIterator<Item = Page<PageStore>>) {
        for page in pages {
            self.figures.subtract(MemoryKind::Plain, page.owner.charged);
        }
    }
}
