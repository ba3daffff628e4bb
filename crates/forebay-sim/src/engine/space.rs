//! The addresses of one simulated device: what lies where.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::{Access, PageOptions, PointerClass, PointerKind};
use forebay_host::mapping::AddressRange;

use super::store::Store;
use crate::checker::Uses;

/// Memory whose address and substance come together.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) kind: PointerKind,
    pub(crate) span: Span,
    pub(crate) store: Arc<Store>,
    pub(crate) uses: Uses,
    /// Whether the device may use it: pinned memory that is not mapped it may not.
    pub(crate) on_device: bool,
}

/// One page at one place.
#[derive(Debug)]
pub(crate) struct Mapping {
    pub(crate) span: Span,
    pub(crate) page: u64,
    pub(crate) store: Arc<Store>,
    pub(crate) uses: Uses,
    /// Who may do what; a device not named may do nothing.
    pub(crate) access: BTreeMap<DeviceOrdinal, Access>,
}

/// A reserved range.
#[derive(Debug)]
pub(crate) struct Region {
    pub(crate) span: Span,
    /// The addresses on the host; `None` on a phantom device.
    pub(crate) range: Option<AddressRange>,
    pub(crate) mappings: BTreeMap<Address, Mapping>,
}

/// Physical memory that can be mapped.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) size: Bytes,
    pub(crate) store: Arc<Store>,
    pub(crate) mapped: usize,
    pub(crate) state: PageState,
    pub(crate) options: PageOptions,
    /// What it counts for in the device's memory: nothing for a page from elsewhere.
    pub(crate) charged: Bytes,
}

/// Whether a page can still be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// It can.
    Live,
    /// It was released and lives on only where it is mapped.
    Released,
}

/// A part of an operation's span that lies in one memory.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) store: Arc<Store>,
    pub(crate) offset: Bytes,
    pub(crate) size: Bytes,
    /// The first address, by which its uses are noted.
    pub(crate) at: Address,
}

impl Piece {
    /// The part of `whole`, where `store` is mapped, that is `part`.
    pub(crate) fn of(store: &Arc<Store>, whole: Span, part: Span) -> Self {
        let offset = part.start().offset_from(whole.start()).unwrap_or_default();
        Self { store: Arc::clone(store), offset, size: part.size(), at: part.start() }
    }

    /// Where the mapping it goes through puts the memory's first byte.
    pub(crate) fn through(&self) -> Address {
        Address::new(self.at.get().wrapping_sub(self.offset.get()))
    }
}

/// Why an address cannot be used, for the error.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) at: Address,
    pub(crate) because: &'static str,
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
    pub(crate) blocks: BTreeMap<Address, Block>,
    pub(crate) regions: BTreeMap<Address, Region>,
    pub(crate) pages: BTreeMap<u64, Page>,
    /// Bytes given out: plain memory and pages created here.
    pub(crate) held: Bytes,
    /// Bytes given out as managed memory.
    pub(crate) managed: Bytes,
    /// When the wire to the device, and that to the host, are free, on the simulation's clock.
    pub(crate) wires: BTreeMap<Wire, Duration>,
    /// When all work that was ever enqueued on the device ends, on the simulation's clock.
    pub(crate) busy_until: Duration,
    /// Where the next phantom address may lie: a counter that only rises.
    phantom: u64,
}

/// The entry of `map` with the greatest key not above `at`.
fn floor<V>(map: &BTreeMap<Address, V>, at: Address) -> Option<&V> {
    map.range(..=at).next_back().map(|(_, value)| value)
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

    /// The block that `at` lies in.
    pub(crate) fn block_at(&self, at: Address) -> Option<&Block> {
        floor(&self.blocks, at).filter(|block| block.span.contains(at))
    }

    /// The region that `at` lies in.
    pub(crate) fn region_at(&self, at: Address) -> Option<&Region> {
        floor(&self.regions, at).filter(|region| region.span.contains(at))
    }

    /// The region that `at` lies in, to be changed.
    pub(crate) fn region_at_mut(&mut self, at: Address) -> Option<&mut Region> {
        let region = self.regions.range_mut(..=at).next_back().map(|(_, region)| region)?;
        region.span.contains(at).then_some(region)
    }

    /// What lies at `at`.
    pub(crate) fn classify(&self, at: Address) -> Option<PointerClass> {
        if let Some(block) = self.block_at(at) {
            return Some(PointerClass { kind: block.kind, span: block.span });
        }
        let region = self.region_at(at)?;
        Some(match region.mapping_at(at) {
            Some(mapping) => {
                let pinned = self.pages.get(&mapping.page).is_some_and(|page| page.options.pinned);
                let kind = if pinned { PointerKind::Pinned } else { PointerKind::Mapped };
                PointerClass { kind, span: mapping.span }
            }
            None => PointerClass { kind: PointerKind::Reserved, span: region.span },
        })
    }

    /// The memories behind `span`, for `device` to use with `need`: part of one allocation, or
    /// mappings side by side in one region. What lies beyond the end of either is another's, even
    /// where it is next door.
    pub(crate) fn resolve(
        &self,
        span: Span,
        need: Access,
        device: DeviceOrdinal,
    ) -> Result<Vec<Piece>, Refusal> {
        let start = span.start();
        if let Some(block) = self.block_at(start) {
            if !block.on_device {
                let because = "pinned host memory that is not mapped for the device";
                return Err(Refusal { at: start, because });
            }
            if !block.span.contains_span(span) {
                let because = "past the end of the allocation";
                return Err(Refusal { at: block.span.end(), because });
            }
            return Ok(vec![Piece::of(&block.store, block.span, span)]);
        }
        let because = "not memory of this device: never allocated, or freed";
        let region = self.region_at(start).ok_or(Refusal { at: start, because })?;
        let mut pieces = Vec::new();
        let mut at = start;
        while at < span.end() {
            let because = "a reserved address with no page behind it, or past the region's end";
            let mapping = region.mapping_at(at).ok_or(Refusal { at, because })?;
            match (mapping.access.get(&device).copied().unwrap_or(Access::None), need) {
                (Access::ReadWrite, _) | (Access::Read, Access::Read) => {}
                (Access::Read, _) => {
                    return Err(Refusal { at, because: "mapped for reading alone" });
                }
                _ => {
                    let because = "mapped, but this device was granted no access";
                    return Err(Refusal { at, because });
                }
            }
            let end = span.end().min(mapping.span.end());
            let size = end.offset_from(at).unwrap_or_default();
            let part = Span::new(at, size).unwrap_or_default();
            pieces.push(Piece::of(&mapping.store, mapping.span, part));
            at = end;
        }
        Ok(pieces)
    }

    /// The record of uses of the block or mapping at `at`.
    pub(crate) fn uses_at(&mut self, at: Address) -> Option<&mut Uses> {
        if self.block_at(at).is_some() {
            let block = self.blocks.range_mut(..=at).next_back().map(|(_, block)| block);
            return block.map(|block| &mut block.uses);
        }
        let region = self.region_at_mut(at)?;
        let mapping = region.mappings.range_mut(..=at).next_back().map(|(_, mapping)| mapping)?;
        mapping.span.contains(at).then_some(&mut mapping.uses)
    }

    /// How many mappings there are.
    pub(crate) fn mapping_count(&self) -> usize {
        self.regions.values().map(|region| region.mappings.len()).sum()
    }
}

impl Region {
    /// The mapping that `at` lies in.
    pub(crate) fn mapping_at(&self, at: Address) -> Option<&Mapping> {
        floor(&self.mappings, at).filter(|mapping| mapping.span.contains(at))
    }

    /// Whether a mapping shares a byte with `span`.
    pub(crate) fn overlaps(&self, span: Span) -> bool {
        self.mappings
            .range(..span.end())
            .next_back()
            .is_some_and(|(_, last)| last.span.overlaps(span))
    }

    /// The first addresses of the mappings that make up `span` exactly; `None` where none do.
    pub(crate) fn exactly(&self, span: Span) -> Option<Vec<Address>> {
        let mut at = span.start();
        let mut starts = Vec::new();
        while at < span.end() {
            let mapping = self.mappings.get(&at)?;
            starts.push(at);
            at = mapping.span.end();
        }
        (at == span.end() && !starts.is_empty()).then_some(starts)
    }

    /// How far `at` lies into the region.
    pub(crate) fn offset(&self, at: Address) -> Bytes {
        at.offset_from(self.span.start()).unwrap_or_default()
    }
}
