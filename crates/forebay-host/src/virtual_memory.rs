//! Addresses apart from the memory behind them: ranges of addresses, and parts of memory files.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::{
    Access, Call, Error, Granularity, PageHandle, PageOptions, Result, VirtualMemory, invalid,
    nonzero, valid_span,
};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::backing::{Refusal, advise_huge};
use crate::mapping::{AddressRange, MemoryFile};
use crate::page::{DeadPage, PageBacking, prepare};
use crate::region::{Mapping, Region};
use crate::space::{Account, Entry, Occupant, Space};
use crate::{HostDevice, errno};

/// The addresses a process of a 64-bit Linux has by default: 47 bits.
const ADDRESSES: Bytes = Bytes::new(1 << 47);

// SAFETY: regions are ranges the system reserved, so they overlap nothing. Every change of what is
// mapped is made under the table's lock after the table was asked, so the table and the system
// agree. One page at two places is one part of one file.
unsafe impl VirtualMemory for HostDevice {
    fn granularity(&self) -> Granularity {
        self.space.settings.granularity()
    }

    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span> {
        self.descriptor.check_process(Call::Reserve)?;
        self.check_multiple(Call::Reserve, "size", nonzero(Call::Reserve, "size", size)?)?;
        let alignment = alignment.max(self.space.settings.unit());
        let range = AddressRange::reserve(size, alignment).map_err(|errno| match errno {
            Errno::NOMEM => no_addresses(size),
            _ => errno::refused(Call::Reserve, errno),
        })?;
        let span = range.span();
        let occupant = Occupant::Region(Region::new(range));
        self.space.table().insert(Entry { span, occupant });
        Ok(span)
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        let call = Call::ReleaseRegion;
        self.descriptor.check_process(call)?;
        let mut table = self.space.table();
        if let Some(region) = table.region_mut(start)
            && region.range.span().start() == start
            && region.mapping_count() > 0
        {
            let what = format!(
                "{} mappings in region {}; unmap them first",
                region.mapping_count(),
                region.range.span()
            );
            return Err(Error::Busy { call, what: what.into() });
        }
        let is_region = |occupant: &Occupant| matches!(occupant, Occupant::Region(_));
        let removed = table.remove(call, "start", start, "a region", is_region)?;
        drop(table);
        // Outside the lock: this is where the addresses go back to the system.
        drop(removed);
        Ok(())
    }

    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle> {
        let call = Call::CreatePage;
        self.descriptor.check_process(call)?;
        self.check_multiple(call, "size", nonzero(call, "size", size)?)?;
        if options.pinned {
            let missing = "pages that are locked in place: pinned memory can be allocated";
            return Err(Error::Unsupported { call, missing: missing.into() });
        }
        let space = &self.space;
        space.charge(call, size, size, Account::Held)?;
        let made = if options.shareable {
            MemoryFile::sparse(size, space.settings.grain).map(Arc::new).map(PageBacking::Whole)
        } else {
            space.table().pages.take_part(size, space.settings.grain)
        };
        let substance = made.map_err(|errno| {
            space.discharge(size, Account::Held);
            page_refused(space, size, Refusal::Memory(errno))
        })?;
        if let Err(refusal) = prepare(&substance, size, &space.settings) {
            bury(space, DeadPage::unborn(size, substance));
            return Err(page_refused(space, size, refusal));
        }
        Ok(space.table().pages.insert(size, substance))
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        self.descriptor.check_process(Call::ReleasePage)?;
        let mut table = self.space.table();
        if table.pages.open(page).is_none() {
            return Err(not_a_page(Call::ReleasePage, page));
        }
        let dead = table.pages.release(page);
        drop(table);
        if let Some(dead) = dead {
            bury(&self.space, dead);
        }
        Ok(())
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        let call = Call::Map;
        self.descriptor.check_process(call)?;
        let unit = self.space.settings.unit();
        if !at.is_aligned_to(unit) {
            return Err(invalid(call, "at", at, format!("a multiple of {unit}")));
        }
        let mut table = self.space.table();
        let Some(found) = table.pages.open(page) else {
            return Err(not_a_page(call, page));
        };
        let span = valid_span(call, "at", at, found.size)?;
        let substance = found.substance.clone();
        let region = match table.region_mut(at) {
            Some(region) => region,
            None => {
                let given = format!("{span}, {}", table.describe(at));
                return Err(invalid(call, "at", given, "addresses inside a region"));
            }
        };
        let whole = region.range.span();
        if !whole.contains_span(span) {
            let given = format!("{span}, which passes the end of region {whole}");
            return Err(invalid(call, "at", given, "addresses inside one region"));
        }
        if let Some(other) = region.overlapping(span) {
            let given = format!("{span}, where {} lies at {}", other.page, other.span);
            return Err(invalid(call, "at", given, "addresses where nothing is mapped"));
        }
        let (file, from) = substance.place();
        let part = (from, span.size());
        // SAFETY: nothing is mapped there, so nobody can be using it: the check above and this
        // change are under one lock.
        unsafe { region.range.place_part(region.offset(at), file, part, Access::None) }
            .map_err(|errno| errno::refused(call, errno))?;
        advise_huge(span, self.space.settings.huge_pages);
        region.insert(Mapping { span, page, access: Access::None });
        table.pages.mapped(page);
        Ok(())
    }

    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()> {
        let call = Call::SetAccess;
        self.descriptor.check_process(call)?;
        if device != self.descriptor.ordinal {
            let allowed = format!("{}, the host's own", self.descriptor.ordinal);
            return Err(invalid(call, "device", device, allowed));
        }
        let mut table = self.space.table();
        let tiles = whole_mappings(call, &table, span)?;
        let Some(region) = table.region_mut(span.start()) else {
            return Err(invalid(call, "span", span, "whole mappings in a region"));
        };
        let offset = region.offset(span.start());
        // SAFETY: the caller promises that nobody uses the span in a way this takes away.
        if let Err(errno) = unsafe { region.range.protect(offset, span.size(), access) } {
            // The system may have changed some of the mappings before it refused.
            for tile in &tiles {
                let offset = region.offset(tile.span.start());
                // SAFETY: this brings back the access that everyone counts on. Where that fails
                // too there is nothing left to try.
                let _ = unsafe { region.range.protect(offset, tile.span.size(), tile.access) };
            }
            return Err(errno::refused(call, errno));
        }
        for tile in tiles {
            region.insert(Mapping { access, ..tile });
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        let call = Call::Unmap;
        self.descriptor.check_process(call)?;
        let mut table = self.space.table();
        let tiles = whole_mappings(call, &table, span)?;
        let Some(region) = table.region_mut(span.start()) else {
            return Err(invalid(call, "span", span, "whole mappings in a region"));
        };
        let offset = region.offset(span.start());
        // SAFETY: the caller promises that nobody uses the span from now on.
        unsafe { region.range.clear(offset, span.size()) }
            .map_err(|errno| errno::refused(call, errno))?;
        for tile in &tiles {
            region.remove(tile);
        }
        let dead: Vec<DeadPage> =
            tiles.iter().filter_map(|tile| table.pages.unmapped(tile.page)).collect();
        drop(table);
        for page in dead {
            bury(&self.space, page);
        }
        Ok(())
    }
}

impl HostDevice {
    /// Refuses a size that is not a multiple of the granularity.
    pub(crate) fn check_multiple(
        &self,
        call: Call,
        argument: &'static str,
        size: Bytes,
    ) -> Result<()> {
        let unit = self.space.settings.unit();
        if size.is_aligned_to(unit) {
            return Ok(());
        }
        let allowed = format!("a multiple of {unit} ({} B)", unit.get());
        Err(invalid(call, argument, format!("{} B", size.get()), allowed))
    }
}

/// The mappings that `span` is made of, or a refusal that says where it is not.
fn whole_mappings(call: Call, table: &crate::space::Table, span: Span) -> Result<Vec<Mapping>> {
    let allowed = "one mapping, or several side by side in one region, each of them whole";
    nonzero(call, "span", span.size())?;
    let region = table.find(span.start()).and_then(|entry| match &entry.occupant {
        Occupant::Region(region) => Some(region),
        _ => None,
    });
    let tiling = region.ok_or(span.start()).and_then(|region| region.tiling(span));
    tiling.map_err(|at| {
        let given = format!("{span}, in which {at} is {}", table.describe(at));
        invalid(call, "span", given, allowed)
    })
}

/// Gives the memory of a page nobody can reach back, and takes it out of the books.
fn bury(space: &Space, page: DeadPage) {
    let charged = page.charged();
    if let Some((size, offset)) = page.give_back() {
        space.table().pages.return_part(size, offset);
    }
    space.discharge(charged, Account::Held);
}

/// What to say where a page could not be made.
fn page_refused(space: &Space, size: Bytes, refusal: Refusal) -> Error {
    match refusal {
        Refusal::Policy(errno) => space.settings.numa.refused(Call::CreatePage, errno),
        Refusal::Memory(errno) => errno::no_memory(Call::CreatePage, size, space.info(), errno),
    }
}

/// The refusal of a page handle that is not good.
pub(crate) fn not_a_page(call: Call, page: PageHandle) -> Error {
    invalid(call, "page", page, "a page of this device, created or imported and not released")
}

/// The refusal of more addresses than the system has, with how many there are and are taken.
fn no_addresses(requested: Bytes) -> Error {
    let limit = rustix::process::getrlimit(Resource::As).current.map_or(ADDRESSES, Bytes::new);
    let total = limit.min(ADDRESSES);
    let taken = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok())
        .and_then(|pages| crate::mapping::system_page().bytes().checked_mul(pages));
    let free = total.saturating_sub(taken.unwrap_or_default());
    Error::OutOfMemory { call: Call::Reserve, requested, free, total }
}

#[cfg(test)]
mod tests;
