//! Virtual memory.
//!
//! None of these calls waits for running work. They are made one at a time, under a separate lock, so that the tables
//! and the driver agree; the tables' lock is free meanwhile.

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::address_book::{Mapping, MemoryKind, Region};
use forebay_hal::{
    Access, Asked, Call, Capabilities, DriverErrorKind, Error, Granularity, PageHandle,
    PageOptions, Result, VirtualMemory, fresh_handle, invalid, multiple, valid_span,
};
use forebay_sync::lock;

use crate::device::{CudaDevice, host_location, properties};
use crate::refusal::{meaning, words};
use crate::space::{DriverPage, Entry, Page, PageOrigin};
use crate::sys::values::{access, location};
use crate::sys::{AccessDescription, DriverError, MemoryLocation, Outcome, RawPage};
use crate::vendor::Unmaps;

/// How often unmapping is tried again where it failed after other mappings were unmapped.
const RETRIES: usize = 2;

impl CudaDevice {
    pub(crate) fn grain(&self) -> Alignment {
        self.granularity.minimum.alignment()
    }

    /// Reserves addresses, as the driver does it.
    fn reserve_raw(&self, size: Bytes, alignment: Alignment) -> Outcome<Address> {
        let mut start = 0;
        self.context.call(|table| {
            // SAFETY: the address is written to a place of our own.
            unsafe { table.mem_address_reserve(&raw mut start, size.get(), alignment.get(), 0, 0) }
        })?;
        Ok(Address::new(start))
    }

    fn free_raw(&self, span: Span) -> Outcome {
        // SAFETY: a range the driver reserved, with nothing mapped in it.
        self.context
            .call(|table| unsafe { table.mem_address_free(span.start().get(), span.size().get()) })
    }

    /// Enters a page of the driver's.
    pub(crate) fn enter_page(&self, raw: RawPage, size: Bytes, origin: PageOrigin) -> PageHandle {
        let handle = PageHandle(fresh_handle());
        let mut space = self.space();
        if origin.is_charged() {
            space.figures.add(MemoryKind::Plain, size);
        }
        let pinned = origin == PageOrigin::Pinned;
        space.book.insert_page(handle, Page::new(size, pinned, DriverPage { raw, origin }));
        handle
    }

    /// A page that can still be used.
    pub(crate) fn open_page(&self, call: Call, page: PageHandle) -> Result<Page> {
        self.space().book.live_page(call, page).copied()
    }

    /// The mappings that cover `span` exactly.
    fn tiles(&self, call: Call, span: Span) -> Result<Vec<Mapping>> {
        Ok(self.space().book.whole(call, span)?.1.into_iter().copied().collect())
    }

    /// Unmaps the mappings that cover `span`, in as many calls as the driver needs. Where one fails after others, it is made
    /// again; if that does not help, gives how many are unmapped.
    fn unmap_raw(
        &self,
        span: Span,
        tiles: &[Mapping],
    ) -> core::result::Result<(), (usize, DriverError)> {
        let spans: Vec<Span> = match self.context.vendor.unmaps {
            Unmaps::All => vec![span],
            Unmaps::One => tiles.iter().map(|tile| tile.span).collect(),
        };
        for (done, span) in spans.iter().enumerate() {
            let unmap = || {
                // SAFETY: whole mappings side by side, or one, which nobody uses, as the caller promised.
                self.context
                    .call(|table| unsafe { table.mem_unmap(span.start().get(), span.size().get()) })
            };
            let mut unmapped = unmap();
            for _ in 0..if done == 0 { 0 } else { RETRIES } {
                unmapped = unmapped.or_else(|_| unmap());
            }
            unmapped.map_err(|refusal| (done, refusal))?;
        }
        Ok(())
    }

    /// Whether `device` has a place among the devices; the own one has.
    fn check_device(&self, call: Call, device: DeviceOrdinal) -> Result<core::ffi::c_int> {
        if device == self.context.ordinal {
            return Ok(self.context.device);
        }
        self.driver.checked_ordinal(call, "device", device)
    }
}

// SAFETY: every address and handle is held against the books before the driver sees it, and one
// lock over these calls keeps the two in agreement. The driver keeps a released page's memory while
// it is mapped, and gives mappings no access until it is set.
unsafe impl VirtualMemory for CudaDevice {
    fn granularity(&self) -> Granularity {
        self.granularity
    }

    fn reserve(&self, size: Bytes, alignment: Alignment) -> Result<Span> {
        let call = Call::Reserve;
        multiple(call, "size", size, self.grain())?;
        let alignment = alignment.max(self.grain());
        let refused = |refusal: DriverError| match meaning(refusal) {
            // More addresses than there are, whichever way the driver puts it.
            DriverErrorKind::Invalid | DriverErrorKind::OutOfMemory => {
                self.out_of_memory(call, size)
            }
            _ => self.refused(call, refusal, &Asked::size(size)),
        };
        let of = |start, size| valid_span(call, "size", start, size);
        let first = self.reserve_raw(size, alignment);
        let (span, taken) = match first {
            Ok(start) if start.is_aligned_to(alignment) => (of(start, size)?, of(start, size)?),
            // A driver that does not keep the alignment, or does not know such large ones: more
            // addresses than asked for have an aligned place among them.
            Ok(_) | Err(_) if alignment > self.grain() => {
                if let Ok(start) = first {
                    self.free_raw(of(start, size)?).map_err(refused)?;
                }
                let whole = size.checked_add(alignment.bytes());
                let whole = whole.ok_or_else(|| self.out_of_memory(call, size))?;
                let start = self.reserve_raw(whole, self.grain()).map_err(refused)?;
                let aligned = start.checked_align_up(alignment).unwrap_or(start);
                (of(aligned, size)?, of(start, whole)?)
            }
            Ok(start) => (of(start, size)?, of(start, size)?),
            Err(refusal) => return Err(refused(refusal)),
        };
        self.space().book.insert(Entry::Region(Region::new(span, taken)));
        Ok(span)
    }

    unsafe fn release_region(&self, start: Address) -> Result<()> {
        let call = Call::ReleaseRegion;
        let _order = lock(&self.mapping);
        let region = self.space().book.remove_region(start)?;
        self.free_raw(region.owner).map_err(|refusal| {
            if meaning(refusal) != DriverErrorKind::Lost {
                self.space().book.insert(Entry::Region(region));
            }
            self.refused(call, refusal, &Asked::of("start", start, "the start of a region"))
        })
    }

    fn create_page(&self, size: Bytes, options: PageOptions) -> Result<PageHandle> {
        let call = Call::CreatePage;
        multiple(call, "size", size, self.grain())?;
        let unsupported =
            |missing: &'static str| Error::Unsupported { call, missing: missing.into() };
        let origin = match (options.pinned, options.shareable) {
            (true, true) => return Err(unsupported("pages of host memory that leave the process")),
            (true, false) if !self.has(Capabilities::PINNED_PAGES) => {
                return Err(unsupported("pages of host memory: pinned memory can be allocated"));
            }
            (true, false) => PageOrigin::Pinned,
            (false, true) if !self.shares() => {
                let missing = "pages that leave the process: this device or driver exports none";
                return Err(unsupported(missing));
            }
            (false, true) => PageOrigin::Shareable,
            (false, false) => PageOrigin::Private,
        };
        let (mut raw, properties) = (RawPage::NULL, properties(self.context, origin));
        let created = self.context.call(|table| {
            // SAFETY: the page is written to a place of our own.
            unsafe { table.mem_create(&raw mut raw, size.get(), &raw const properties, 0) }
        });
        created.map_err(|refusal| match origin {
            PageOrigin::Pinned => self.no_host_memory(call, refusal, size),
            _ => self.no_memory(call, refusal, size),
        })?;
        Ok(self.enter_page(raw, size, origin))
    }

    fn release_page(&self, page: PageHandle) -> Result<()> {
        let call = Call::ReleasePage;
        let _order = lock(&self.mapping);
        let found = self.open_page(call, page)?;
        // SAFETY: a page that was created or imported and not released.
        let released = self.context.call(|table| unsafe { table.mem_release(found.owner.raw) });
        if let Err(refusal) = released
            && meaning(refusal) != DriverErrorKind::Lost
        {
            let asked = Asked::of("page", page, "a page of this device");
            return Err(self.refused(call, refusal, &asked));
        }
        let mut space = self.space();
        let dead = space.book.release_page(page);
        space.settle_pages(dead);
        drop(space);
        released.map_err(self.refusing(call, || Asked::of("page", page, "a page of this device")))
    }

    fn map(&self, at: Address, page: PageHandle) -> Result<()> {
        let call = Call::Map;
        let _order = lock(&self.mapping);
        let found = self.open_page(call, page)?;
        let (span, _) = self.space().book.place_for(at, found.size, self.grain())?;
        // SAFETY: reserved addresses with nothing mapped, and a live page of that size.
        let mapped = self.context.call(|table| unsafe {
            table.mem_map(at.get(), found.size.get(), 0, found.owner.raw, 0)
        });
        mapped.map_err(|refusal| {
            let asked = Asked::of("at", span, "reserved addresses as long as the page");
            self.refused(call, refusal, &Asked { size: found.size, ..asked })
        })?;
        self.space().book.map(span, page, ());
        Ok(())
    }

    unsafe fn set_access(&self, span: Span, access: Access, device: DeviceOrdinal) -> Result<()> {
        let call = Call::SetAccess;
        let id = self.check_device(call, device)?;
        let _order = lock(&self.mapping);
        let tiles = self.tiles(call, span)?;
        let flags = match access {
            Access::None => access::NONE,
            Access::Read => access::READ,
            Access::ReadWrite => access::READ_WRITE,
            _ => {
                let allowed = "none, reading, or reading and writing";
                return Err(invalid(call, "access", format!("{access:?}"), allowed));
            }
        };
        let ours = device == self.context.ordinal;
        let location = MemoryLocation { kind: location::DEVICE, id };
        for run in tiles.chunk_by(|one, next| one.pinned == next.pinned) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let start = first.span.start();
            let size = last.span.end().offset_from(start).unwrap_or_default();
            // Pinned memory is the host's too.
            let (host, count) = match first.pinned && ours {
                true => (host_location(self.context), 2),
                false => (location, 1),
            };
            let descriptions =
                [location, host].map(|location| AccessDescription { location, flags });
            // SAFETY: whole mappings side by side, and descriptions of our own. Nobody uses them in
            // a way that is taken away, as the caller promised.
            let set = self.context.call(|table| unsafe {
                table.mem_set_access(start.get(), size.get(), descriptions.as_ptr(), count)
            });
            set.map_err(|refusal| {
                let given = format!("{access:?} over {span} for device {device}");
                let allowed = "access the device can have";
                self.refused(call, refusal, &Asked::of("access", given, allowed))
            })?;
            if ours && let Ok(run) = Span::new(start, size) {
                self.space().book.set_access(run, access);
            }
        }
        Ok(())
    }

    unsafe fn unmap(&self, span: Span) -> Result<()> {
        let call = Call::Unmap;
        let _order = lock(&self.mapping);
        let tiles = self.tiles(call, span)?;
        let unmapped = self.unmap_raw(span, &tiles).map_err(|(done, refusal)| {
            if done == 0 {
                return self.refused(call, refusal, &Asked::of("span", span, "whole mappings"));
            }
            let said = words(refusal, Some(self.context.table()));
            let reason = format!("{said} after {done} of {} mappings", tiles.len());
            Error::Lost { call, reason: reason.into() }
        });
        if unmapped.as_ref().is_err_and(|error| !matches!(error, Error::Lost { .. })) {
            return unmapped;
        }
        let mut space = self.space();
        let (_, dead) = space.book.unmap(span);
        space.settle_pages(dead);
        drop(space);
        unmapped
    }
}
