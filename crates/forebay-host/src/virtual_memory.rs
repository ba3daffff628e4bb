//! Virtual memory: address ranges, and parts of memory files mapped in them.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::{Entry, MemoryKind, Region};
use forebay_hal::{
    Access, Call, Error, Granularity, PageHandle, PageOptions, Result, VirtualMemory, invalid,
    multiple,
};
use rustix::io::Errno;
use rustix::process::Resource;

use crate::backing::{MapError, advise_huge};
use crate::mapping::{AddressRange, MemoryFile};
use crate::page::{PageBacking, prepare};
use crate::space::Space;
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
        multiple(Call::Reserve, "size", size, self.space.settings.unit())?;
        let alignment = alignment.max(self.space.settings.unit());
        let range = AddressRange::reserve(size, alignment).map_err(|errno| match errno {
            Errno::NOMEM => no_addresses(size),
            _ => errno::refused(Call::Reserve, errno),
        })?;
        let span = range.span();
        self.space.table().book.insert(Entry::Region(Region::new(span, range)));
        Ok(span)
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        self.descriptor.check_process(Call::ReleaseRegion)?;
        let mut table = self.space.table();
        let removed = table.book.remove_region(start)?;
        drop(table);
        // Outside the lock: this is where the addresses go back to the system.
        drop(removed);
        Ok(())
    }

    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle> {
        let call = Call::CreatePage;
        self.descriptor.check_process(call)?;
        multiple(call, "size", size, self.space.settings.unit())?;
        if options.pinned {
            let missing = "pages that are locked in place: pinned memory can be allocated";
            return Err(Error::Unsupported { call, missing: missing.into() });
        }
        let space = &self.space;
        space.charge(call, size, size, MemoryKind::Plain)?;
        let made = if options.shareable {
            MemoryFile::sparse(size, space.settings.grain).map(Arc::new).map(PageBacking::Whole)
        } else {
            space.table().store.take_part(size, space.settings.grain)
        };
        let substance = made.map_err(|errno| {
            space.discharge(size, MemoryKind::Plain);
            page_refused(space, size, MapError::Memory(errno))
        })?;
        if let Err(refusal) = prepare(&substance, size, &space.settings) {
            bury(space, [(size, substance)]);
            return Err(page_refused(space, size, refusal));
        }
        Ok(space.enter_page(size, substance))
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        self.descriptor.check_process(Call::ReleasePage)?;
        let mut table = self.space.table();
        table.book.live_page(Call::ReleasePage, page)?;
        let dead = table.book.release_page(page);
        drop(table);
        bury(&self.space, dead.into_iter().map(|page| (page.size, page.owner)));
        Ok(())
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        let call = Call::Map;
        self.descriptor.check_process(call)?;
        let mut table = self.space.table();
        let found = table.book.live_page(call, page)?;
        let substance = found.owner.clone();
        let unit = self.space.settings.unit();
        let (span, region) = table.book.place_for(at, found.size, unit)?;
        let (file, from) = substance.place();
        let part = (from, span.size());
        // SAFETY: nothing is mapped there, so nobody can be using it: the check above and this
        // change are under one lock.
        unsafe { region.owner.place_part(region.offset(at), file, part, Access::None) }
            .map_err(|errno| errno::refused(call, errno))?;
        advise_huge(span, self.space.settings.huge_pages);
        table.book.map(span, page, ());
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
        let (region, tiles) = table.book.whole(call, span)?;
        let offset = region.offset(span.start());
        // SAFETY: the caller promises that nobody uses the span in a way this takes away.
        if let Err(errno) = unsafe { region.owner.protect(offset, span.size(), access) } {
            // The system may have changed some of the mappings before it refused.
            for tile in &tiles {
                let offset = region.offset(tile.span.start());
                // SAFETY: this brings back the access that everyone counts on. Where that fails
                // too there is nothing left to try.
                let _ = unsafe { region.owner.protect(offset, tile.span.size(), tile.access) };
            }
            return Err(errno::refused(call, errno));
        }
        table.book.set_access(span, access);
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        let call = Call::Unmap;
        self.descriptor.check_process(call)?;
        let mut table = self.space.table();
        let (region, _) = table.book.whole(call, span)?;
        let offset = region.offset(span.start());
        // SAFETY: the caller promises that nobody uses the span from now on.
        unsafe { region.owner.clear(offset, span.size()) }
            .map_err(|errno| errno::refused(call, errno))?;
        let (_, dead) = table.book.unmap(span);
        drop(table);
        bury(&self.space, dead.into_iter().map(|page| (page.size, page.owner)));
        Ok(())
    }
}

/// Gives the memory of pages that are gone back to the system, and takes it out of the books.
fn bury(space: &Space, pages: impl IntoIterator<Item = (Bytes, PageBacking)>) {
    for (size, substance) in pages {
        let charged = substance.charged(size);
        if let Some(offset) = substance.give_back(size) {
            space.table().store.return_part(size, offset);
        }
        space.discharge(charged, MemoryKind::Plain);
    }
}

/// What to say where a page could not be made.
fn page_refused(space: &Space, size: Bytes, refusal: MapError) -> Error {
    match refusal {
        MapError::Policy(errno) => space.settings.numa.refused(Call::CreatePage, errno),
        MapError::Memory(errno) => errno::no_memory(Call::CreatePage, size, space.info(), errno),
    }
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
