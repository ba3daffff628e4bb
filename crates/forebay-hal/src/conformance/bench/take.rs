//! Taking memory, pages and addresses, and giving them back.

use forebay_core::{Address, Alignment, Bytes, Span};

use super::super::data::HostBytes;
use super::super::verdict::{Step, Verdict};
use super::{Bench, Resource, locked};
use crate::{Access, Call, PageHandle, PageOptions, PinnedFlags};

impl Bench {
    pub(crate) fn allocate(&self, size: u64) -> Step<Address> {
        self.allocate_aligned(size, Alignment::ONE)
    }

    pub(crate) fn allocate_aligned(&self, size: u64, alignment: Alignment) -> Step<Address> {
        self.last.set(Call::Allocate);
        let address = self.device.allocate(Bytes::new(size), alignment)?;
        self.record(Resource::Memory(address));
        Ok(address)
    }

    /// Gives memory back; the case has synchronized what used it.
    pub(crate) fn free(&self, address: Address) -> Verdict {
        self.last.set(Call::Free);
        self.forget(Resource::Memory(address));
        // SAFETY: the case has synchronized the streams that used the memory, and drops the
        // address.
        Ok(unsafe { self.device.free(address) }?)
    }

    pub(crate) fn allocate_pinned(&self, size: u64, flags: PinnedFlags) -> Step<Address> {
        self.last.set(Call::AllocatePinned);
        let address = self.pinned_memory()?.allocate_pinned(Bytes::new(size), flags)?;
        self.record(Resource::Pinned(address));
        Ok(address)
    }

    pub(crate) fn free_pinned(&self, address: Address) -> Verdict {
        self.last.set(Call::FreePinned);
        self.forget(Resource::Pinned(address));
        // SAFETY: as for `free`.
        Ok(unsafe { self.pinned_memory()?.free_pinned(address) }?)
    }

    /// Pins host memory of this bench, which stays to the end of the case.
    pub(crate) fn register(&self, bytes: &HostBytes) -> Step<Span> {
        self.last.set(Call::Register);
        let span = Span::new(bytes.address(), bytes.size())?;
        // SAFETY: the bench keeps the bytes until `finish` has unregistered them.
        unsafe { self.pinned_memory()?.register(span, PinnedFlags::empty()) }?;
        self.record(Resource::Registered(span.start()));
        Ok(span)
    }

    pub(crate) fn unregister(&self, start: Address) -> Verdict {
        self.last.set(Call::Unregister);
        self.forget(Resource::Registered(start));
        // SAFETY: as for `free`.
        Ok(unsafe { self.pinned_memory()?.unregister(start) }?)
    }

    pub(crate) fn allocate_managed(&self, size: u64) -> Step<Address> {
        self.last.set(Call::AllocateManaged);
        let address = self.managed_memory()?.allocate_managed(Bytes::new(size))?;
        self.record(Resource::Managed(address));
        Ok(address)
    }

    pub(crate) fn free_managed(&self, address: Address) -> Verdict {
        self.last.set(Call::FreeManaged);
        self.forget(Resource::Managed(address));
        // SAFETY: as for `free`.
        Ok(unsafe { self.managed_memory()?.free_managed(address) }?)
    }

    /// The least size of a page, and what mapping addresses are multiples of.
    pub(crate) fn grain(&self) -> Step<u64> {
        Ok(self.virtual_memory()?.granularity().minimum.bytes().get())
    }

    /// Reserves `size` addresses.
    pub(crate) fn region(&self, size: u64) -> Step<Span> {
        self.last.set(Call::Reserve);
        let region = self.virtual_memory()?.reserve(Bytes::new(size), Alignment::ONE)?;
        self.record(Resource::Region(region.start()));
        Ok(region)
    }

    pub(crate) fn release_region(&self, region: Span) -> Verdict {
        self.last.set(Call::ReleaseRegion);
        self.forget(Resource::Region(region.start()));
        // SAFETY: as for `free`.
        Ok(unsafe { self.virtual_memory()?.release_region(region.start()) }?)
    }

    pub(crate) fn page(&self, size: u64) -> Step<PageHandle> {
        self.page_with(size, PageOptions::default())
    }

    pub(crate) fn page_with(&self, size: u64, options: PageOptions) -> Step<PageHandle> {
        self.last.set(Call::CreatePage);
        let page = self.virtual_memory()?.create_page(Bytes::new(size), options)?;
        self.record(Resource::Page(page));
        Ok(page)
    }

    /// Takes note of a page that a call of the case's own gave.
    #[cfg(unix)]
    pub(crate) fn adopt(&self, page: PageHandle) -> PageHandle {
        self.record(Resource::Page(page));
        page
    }

    pub(crate) fn release_page(&self, page: PageHandle) -> Verdict {
        self.last.set(Call::ReleasePage);
        self.forget(Resource::Page(page));
        Ok(self.virtual_memory()?.release_page(page)?)
    }

    /// Maps a page of `size` bytes, with no access yet.
    pub(crate) fn map(&self, at: Address, page: PageHandle, size: u64) -> Step<Span> {
        self.last.set(Call::Map);
        let span = Span::new(at, Bytes::new(size))?;
        self.virtual_memory()?.map(at, page)?;
        self.record(Resource::Mapping(span));
        Ok(span)
    }

    /// Maps a page of `size` bytes for reading and writing.
    pub(crate) fn map_open(&self, at: Address, page: PageHandle, size: u64) -> Step<Span> {
        let span = self.map(at, page, size)?;
        self.grant(span, Access::ReadWrite)?;
        Ok(span)
    }

    /// Sets this device's access.
    pub(crate) fn grant(&self, span: Span, access: Access) -> Verdict {
        self.last.set(Call::SetAccess);
        // SAFETY: the case has synchronized the work that used the span.
        Ok(unsafe { self.virtual_memory()?.set_access(span, access, self.ordinal()) }?)
    }

    /// Takes away one mapping, or several side by side.
    pub(crate) fn unmap(&self, span: Span) -> Verdict {
        self.last.set(Call::Unmap);
        locked(&self.things).retain(
            |thing| !matches!(thing, Resource::Mapping(known) if span.contains_span(*known)),
        );
        // SAFETY: the case has synchronized the work that used the span.
        Ok(unsafe { self.virtual_memory()?.unmap(span) }?)
    }
}
