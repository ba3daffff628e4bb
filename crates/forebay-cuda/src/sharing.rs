//! Pages shared with other processes, as the driver's own descriptors.

use core::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use forebay_core::{Bytes, Span};
use forebay_hal::{
    Asked, Call, DriverErrorKind, Error, PageHandle, Result, Sharing, invalid, multiple,
};
use rustix::io::FdFlags;

use crate::device::CudaDevice;
use crate::refusal::meaning;
use crate::space::PageOrigin;
use crate::sys::values::handle_type;
use crate::sys::{DriverError, Outcome, RawPage};

/// What a descriptor must be.
const A_PAGE: &str = "a descriptor that export_page gave, with the size its page was created with";

impl CudaDevice {
    /// Whether an imported page has this size: the driver does not tell sizes, but maps a page whole
    /// or not at all.
    fn has_size(&self, raw: RawPage, size: Bytes) -> Outcome {
        self.context.call(|table| {
            let (mut start, bytes) = (0, size.get());
            // SAFETY: the address is written to a place of our own; what is reserved and mapped is
            // undone before anybody else knows of it.
            unsafe {
                table.mem_address_reserve(&raw mut start, bytes, 0, 0, 0)?;
                let mapped = table.mem_map(start, bytes, 0, raw, 0);
                if mapped.is_ok() {
                    table.mem_unmap(start, bytes)?;
                }
                table.mem_address_free(start, bytes)?;
                mapped
            }
        })
    }
}

// SAFETY: the driver's handles name one memory in every process that imports them, which lives until
// the last has let it go. The size is found out before a page is given, and the descriptor is set to
// close on exec before anybody gets it.
unsafe impl Sharing for CudaDevice {
    fn export_page(&self, page: PageHandle) -> Result<OwnedFd> {
        let call = Call::ExportPage;
        let found = self.open_page(call, page)?;
        if matches!(found.owner.origin, PageOrigin::Private | PageOrigin::Pinned) {
            return Err(invalid(call, "page", page, "a page that was created shareable"));
        }
        let mut descriptor: c_int = -1;
        let exported = self.context.call(|table| {
            let place = (&raw mut descriptor).cast::<c_void>();
            // SAFETY: for this kind of handle the driver writes one int, to a place of our own.
            unsafe { table.mem_export(place, found.owner.raw, handle_type::FILE_DESCRIPTOR, 0) }
        });
        exported
            .map_err(self.refusing(call, || Asked::of("page", page, "a page of this device")))?;
        // SAFETY: the driver opened it for us, and nobody else has it.
        let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
        rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC).map_err(|errno| {
            let reason = format!("the descriptor cannot be set to close on exec: {errno}");
            Error::Transient { call, reason: reason.into() }
        })?;
        Ok(descriptor)
    }

    fn import_page(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<PageHandle> {
        let call = Call::ImportPage;
        multiple(call, "size", size, self.grain())?;
        Span::new(forebay_core::Address::NULL, size)
            .map_err(|error| Error::quantity(call, "size", &error))?;
        let raw_descriptor = descriptor.as_raw_fd();
        let handle = core::ptr::without_provenance_mut::<c_void>(
            usize::try_from(raw_descriptor).unwrap_or(usize::MAX),
        );
        let mut raw = RawPage::NULL;
        let imported = self.context.call(|table| {
            // SAFETY: for this kind the handle is the descriptor itself, which is open; the page is
            // written to a place of our own.
            unsafe { table.mem_import(&raw mut raw, handle, handle_type::FILE_DESCRIPTOR) }
        });
        let not_a_page = |refusal: DriverError| {
            let said = crate::refusal::words(refusal, Some(self.context.table()));
            let given = format!("descriptor {raw_descriptor} as {} B; {said}", size.get());
            invalid(call, "descriptor", given, A_PAGE)
        };
        imported.map_err(|refusal| match meaning(refusal) {
            DriverErrorKind::OutOfMemory | DriverErrorKind::Transient => {
                self.refused(call, refusal, &Asked::size(size))
            }
            // A descriptor that is none is answered in several ways, as an unknown error among them.
            _ => not_a_page(refusal),
        })?;
        if let Err(refusal) = self.has_size(raw, size) {
            // SAFETY: just imported, and nobody knows of it.
            let _ = self.context.call(|table| unsafe { table.mem_release(raw) });
            return Err(not_a_page(refusal));
        }
        Ok(self.enter_page(raw, size, PageOrigin::Imported))
    }
}
