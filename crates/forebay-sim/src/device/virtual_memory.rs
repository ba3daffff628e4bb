//! Virtual memory.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::{Entry, MemoryKind, Page};
use forebay_hal::{
    Access, Call, Capabilities, Granularity, PageHandle, PageOptions, Result, VirtualMemory,
    multiple, valid_span,
};
use forebay_host::mapping::AddressRange;

use super::SimDevice;
use crate::checker::{Removal, Uses};
use crate::engine::{PageStore, Region, State, Store, system_refused, unknown_device};
use crate::machine::MemoryModel;

impl SimDevice {
    /// Enters a page in the table.
    pub(super) fn add_page(
        &self,
        state: &mut State,
        call: Call,
        (size, charged): (Bytes, Bytes),
        store: Arc<Store>,
        options: PageOptions,
    ) -> Result<PageHandle> {
        let handle = PageHandle(state.serial.take());
        let space = state.space(call, self.ordinal)?;
        space.figures.add(MemoryKind::Plain, charged);
        let page = Page::new(size, options.pinned, PageStore { store, options, charged });
        space.book.insert_page(handle, page);
        Ok(handle)
    }
}

// SAFETY: regions are ranges the system reserved, or phantom addresses from a counter that only
// rises, so none overlap. The table of mappings is looked up before every change: a page goes whole
// where nothing is mapped, and only whole mappings are unmapped. Stores are held by pages and
// mappings both, so a released page lives while it is mapped.
unsafe impl VirtualMemory for SimDevice {
    fn granularity(&self) -> Granularity {
        let minimum = self.engine.lock().options.granularity;
        Granularity { minimum, recommended: minimum }
    }

    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span> {
        let call = Call::Reserve;
        let mut state = self.engine.enter(self.ordinal, call, size)?;
        multiple(call, "size", size, state.options.granularity.alignment())?;
        let alignment = alignment.max(state.options.granularity.alignment());
        let no_room = state.out_of_memory(self.ordinal, call, size);
        let range = match state.options.memory {
            MemoryModel::Phantom => None,
            // Too many addresses for this process is no fault of the device's memory, but to the
            // caller it is the same: there is not that much.
            MemoryModel::Backed => {
                Some(AddressRange::reserve(size, alignment).map_err(|_| no_room.clone())?)
            }
        };
        let space = state.space(call, self.ordinal)?;
        let start = match &range {
            Some(range) => range.span().start(),
            None => space.phantom(size, alignment).ok_or(no_room)?,
        };
        let span = valid_span(call, "size", start, size)?;
        space.book.insert(Entry::Region(Region::new(span, range)));
        state.charge(call, size);
        Ok(span)
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        let call = Call::ReleaseRegion;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        state.space(call, self.ordinal)?.book.remove_region(start)?;
        verdict
    }

    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle> {
        let call = Call::CreatePage;
        let mut state = self.engine.enter(self.ordinal, call, size)?;
        multiple(call, "size", size, state.options.granularity.alignment())?;
        if options.shareable {
            self.descriptor.check_capability(call, Capabilities::SHARE_BY_FD)?;
        }
        if options.pinned {
            self.descriptor.check_capability(call, Capabilities::PINNED_PAGES)?;
        }
        // Pages of host memory take none of the device's.
        let charged = if options.pinned { Bytes::ZERO } else { size };
        state.room(self.ordinal, call, charged)?;
        let info = state.memory_info(self.ordinal);
        let store = match state.options.memory {
            MemoryModel::Phantom => Store::phantom(),
            MemoryModel::Backed => {
                Store::page(size).map_err(|errno| system_refused(call, size, info, errno))?
            }
        };
        let page = self.add_page(&mut state, call, (size, charged), store, options)?;
        state.charge(if options.pinned { Call::AllocatePinned } else { call }, size);
        Ok(page)
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        let call = Call::ReleasePage;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        let space = state.space(call, self.ordinal)?;
        let size = space.book.live_page(call, page)?.size;
        let dead = space.book.release_page(page);
        space.settle_pages(dead);
        state.charge(call, size);
        verdict
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        let call = Call::Map;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let unit = state.options.granularity.alignment();
        let info = state.memory_info(self.ordinal);
        let space = state.space(call, self.ordinal)?;
        let found = space.book.live_page(call, page)?;
        let size = found.size;
        let (span, region) = space.book.place_for(at, size, unit)?;
        if let (Some(range), Some(file)) = (&region.owner, found.owner.store.file()) {
            // SAFETY: the span lies in the region, and the table says nothing is mapped there, so
            // nobody can be using it.
            unsafe { range.place(region.offset(at), file, Access::None) }
                .map_err(|errno| system_refused(call, size, info, errno))?;
        }
        space.book.map(span, page, Uses::default());
        state.charge(call, size);
        Ok(())
    }

    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()> {
        let call = Call::SetAccess;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let count = state.spaces.len();
        if device.0 as usize >= count {
            return Err(unknown_device(call, device, count));
        }
        let info = state.memory_info(self.ordinal);
        let space = state.space(call, self.ordinal)?;
        let (region, _) = space.book.whole(call, span)?;
        if let (Some(range), true) = (&region.owner, device == self.ordinal) {
            // SAFETY: the span is whole mappings of this region, and the caller promised that
            // nobody uses them in a way that is taken away.
            unsafe { range.protect(region.offset(span.start()), span.size(), access) }
                .map_err(|errno| system_refused(call, span.size(), info, errno))?;
        }
        let granted = region.overlapping(span).map(|one| (one.span, one.owner.clone()));
        let granted: Vec<_> = granted.collect();
        // What another device may do here is never asked: it has a book of its own.
        if device == self.ordinal {
            space.book.set_access(span, access);
        }
        for (span, uses) in granted {
            match access {
                Access::ReadWrite => {}
                Access::Read => state.check_taken(call, span, Removal::Writing, &uses),
                _ => state.check_taken(call, span, Removal::All, &uses),
            }
            state.charge(call, span.size());
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        let call = Call::Unmap;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        let info = state.memory_info(self.ordinal);
        let space = state.space(call, self.ordinal)?;
        let (region, _) = space.book.whole(call, span)?;
        if let Some(range) = &region.owner {
            // SAFETY: the span is whole mappings of this region, and the caller promised that
            // nobody uses them from now on. The simulation itself uses the stores' own addresses.
            unsafe { range.clear(region.offset(span.start()), span.size()) }
                .map_err(|errno| system_refused(call, span.size(), info, errno))?;
        }
        let (taken, dead) = space.book.unmap(span);
        space.settle_pages(dead);
        for mapping in &taken {
            state.check_taken(call, mapping.span, Removal::All, &mapping.owner);
            state.charge(call, mapping.span.size());
        }
        verdict
    }
}
