//! Devices that give wrong memory, wrong figures or wrong answers.

use std::collections::BTreeMap;
use std::sync::Mutex;

use forebay_core::{Address, Alignment, Bytes, DeviceOrdinal, Span};
use forebay_hal::{
    Access, Call, Device, Error, MemoryInfo, PageHandle, PageOptions, PinnedFlags, PointerClass,
    Result, VirtualMemory,
};
use std::os::fd::{BorrowedFd, OwnedFd};

use super::tamper::Tamper;

/// The inner device's virtual memory, which the simulated device always has.
fn pages(inner: &dyn Device) -> &dyn VirtualMemory {
    inner.virtual_memory().expect("the simulated device has virtual memory")
}

/// What is given out is still said to be free.
#[derive(Debug)]
pub(crate) struct WrongFreeMemory;

impl Tamper for WrongFreeMemory {
    fn memory_info(&self, inner: &dyn Device) -> Result<MemoryInfo> {
        inner.memory_info().map(|info| MemoryInfo { free: info.total, ..info })
    }
}

/// Nothing is ever said to be held.
#[derive(Debug)]
pub(crate) struct HeldForgotten;

impl Tamper for HeldForgotten {
    fn memory_info(&self, inner: &dyn Device) -> Result<MemoryInfo> {
        inner.memory_info().map(|info| MemoryInfo {
            held: Bytes::ZERO,
            managed: Bytes::ZERO,
            ..info
        })
    }
}

/// No bytes are given a place all the same.
#[derive(Debug)]
pub(crate) struct ZeroAllocationTakesMemory;

impl Tamper for ZeroAllocationTakesMemory {
    fn allocate(&self, inner: &dyn Device, size: Bytes, alignment: Alignment) -> Result<Address> {
        inner.allocate(size.max(Bytes::new(1)), alignment)
    }
}

/// The alignment asked for is not looked at.
#[derive(Debug)]
pub(crate) struct AlignmentIgnored;

impl Tamper for AlignmentIgnored {
    fn allocate(&self, inner: &dyn Device, size: Bytes, _: Alignment) -> Result<Address> {
        inner.allocate(size, Alignment::ONE)
    }
}

/// A refused allocation leaves something behind.
#[derive(Debug)]
pub(crate) struct RefusalsLeak;

impl Tamper for RefusalsLeak {
    fn allocate(&self, inner: &dyn Device, size: Bytes, alignment: Alignment) -> Result<Address> {
        inner.allocate(size, alignment).inspect_err(|_| {
            let _ = inner.allocate(Bytes::new(512), Alignment::BLOCK);
        })
    }
}

/// Out of memory is told without the size asked for.
#[derive(Debug)]
pub(crate) struct ErrorsForgetTheSize;

impl Tamper for ErrorsForgetTheSize {
    fn allocate(&self, inner: &dyn Device, size: Bytes, alignment: Alignment) -> Result<Address> {
        inner.allocate(size, alignment).map_err(|error| match error {
            Error::OutOfMemory { call, free, total, .. } => {
                Error::OutOfMemory { call, requested: Bytes::ZERO, free, total }
            }
            other => other,
        })
    }
}

/// Errors name another call.
#[derive(Debug)]
pub(crate) struct ErrorsNameAnotherCall;

impl Tamper for ErrorsNameAnotherCall {
    unsafe fn free(&self, inner: &dyn Device, address: Address) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.free(address) }.map_err(|error| match error {
            Error::Invalid { argument, given, allowed, .. } => {
                Error::Invalid { call: Call::Allocate, argument, given, allowed }
            }
            other => other,
        })
    }
}

/// Whatever is freed, the answer is yes.
#[derive(Debug)]
pub(crate) struct DoubleFreeAccepted;

impl Tamper for DoubleFreeAccepted {
    unsafe fn free(&self, inner: &dyn Device, address: Address) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        let _ = unsafe { inner.free(address) };
        Ok(())
    }
}

/// Freed memory is still known.
#[derive(Debug, Default)]
pub(crate) struct FreedMemoryStaysKnown {
    seen: Mutex<BTreeMap<Address, PointerClass>>,
}

impl Tamper for FreedMemoryStaysKnown {
    unsafe fn free(&self, inner: &dyn Device, address: Address) -> Result<()> {
        if let Some(class) = inner.classify(address)? {
            self.seen.lock().unwrap().insert(address, class);
        }
        // SAFETY: the caller keeps the contract of the call itself.
        unsafe { inner.free(address) }
    }

    fn classify(&self, inner: &dyn Device, address: Address) -> Result<Option<PointerClass>> {
        let known = inner.classify(address)?;
        Ok(known.or_else(|| self.seen.lock().unwrap().get(&address).copied()))
    }
}

/// Every mapping after the first gets the first one's page.
#[derive(Debug, Default)]
pub(crate) struct OverlapsMappings {
    first: Mutex<Option<PageHandle>>,
}

impl Tamper for OverlapsMappings {
    fn map(&self, inner: &dyn Device, at: Address, page: PageHandle) -> Result<()> {
        let first = *self.first.lock().unwrap().get_or_insert(page);
        pages(inner).map(at, first)
    }
}

/// A page put where another lies takes its place.
#[derive(Debug)]
pub(crate) struct MapsOverMappings;

impl Tamper for MapsOverMappings {
    fn map(&self, inner: &dyn Device, at: Address, page: PageHandle) -> Result<()> {
        let Err(error) = pages(inner).map(at, page) else { return Ok(()) };
        let Some(class) = inner.classify(at)? else { return Err(error) };
        // SAFETY: the suite has no work under way where it maps.
        unsafe { pages(inner).unmap(class.span) }?;
        pages(inner).map(at, page)
    }
}

/// Whatever is unmapped, the answer is yes.
#[derive(Debug)]
pub(crate) struct PartialUnmapAccepted;

impl Tamper for PartialUnmapAccepted {
    unsafe fn unmap(&self, inner: &dyn Device, span: Span) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        let _ = unsafe { pages(inner).unmap(span) };
        Ok(())
    }
}

/// A mapping can be used before anyone was granted access.
#[derive(Debug, Default)]
pub(crate) struct MappingsAreBornOpen {
    sizes: Mutex<BTreeMap<PageHandle, Bytes>>,
}

impl Tamper for MappingsAreBornOpen {
    fn create_page(
        &self,
        inner: &dyn Device,
        size: Bytes,
        options: PageOptions,
    ) -> Result<PageHandle> {
        let page = pages(inner).create_page(size, options)?;
        self.sizes.lock().unwrap().insert(page, size);
        Ok(page)
    }

    fn map(&self, inner: &dyn Device, at: Address, page: PageHandle) -> Result<()> {
        pages(inner).map(at, page)?;
        let size = self.sizes.lock().unwrap().get(&page).copied().unwrap_or_default();
        let (Ok(span), ordinal) = (Span::new(at, size), inner.descriptor().ordinal) else {
            return Ok(());
        };
        // SAFETY: the mapping is new: nobody uses it.
        unsafe { pages(inner).set_access(span, Access::ReadWrite, ordinal) }
    }
}

/// Whatever access is asked for, all is granted.
#[derive(Debug)]
pub(crate) struct AccessNotChecked;

impl Tamper for AccessNotChecked {
    unsafe fn set_access(
        &self,
        inner: &dyn Device,
        span: Span,
        _: Access,
        device: DeviceOrdinal,
    ) -> Result<()> {
        // SAFETY: nothing is taken away.
        unsafe { pages(inner).set_access(span, Access::ReadWrite, device) }
    }
}

/// Releasing a page takes its mappings away.
#[derive(Debug, Default)]
pub(crate) struct ReleasedPageDies {
    mapped: Mutex<Vec<(PageHandle, Address)>>,
}

impl Tamper for ReleasedPageDies {
    fn map(&self, inner: &dyn Device, at: Address, page: PageHandle) -> Result<()> {
        pages(inner).map(at, page)?;
        self.mapped.lock().unwrap().push((page, at));
        Ok(())
    }

    fn release_page(&self, inner: &dyn Device, page: PageHandle) -> Result<()> {
        for &(of, at) in self.mapped.lock().unwrap().iter() {
            if let (true, Some(class)) = (of == page, inner.classify(at)?) {
                // SAFETY: the suite has no work under way where it releases. What was unmapped
                // already is refused, and stays so.
                let _ = unsafe { pages(inner).unmap(class.span) };
            }
        }
        pages(inner).release_page(page)
    }
}

/// A region in use is said to be released.
#[derive(Debug)]
pub(crate) struct RegionsAreNeverBusy;

impl Tamper for RegionsAreNeverBusy {
    unsafe fn release_region(&self, inner: &dyn Device, start: Address) -> Result<()> {
        // SAFETY: the caller keeps the contract of the call itself.
        match unsafe { pages(inner).release_region(start) } {
            Err(Error::Busy { .. }) => Ok(()),
            result => result,
        }
    }
}

/// Every page can leave the process.
#[derive(Debug)]
pub(crate) struct EveryPageIsShareable;

impl Tamper for EveryPageIsShareable {
    fn create_page(&self, inner: &dyn Device, size: Bytes, _: PageOptions) -> Result<PageHandle> {
        pages(inner).create_page(size, PageOptions::shareable())
    }
}

/// An import is not looked at for its size.
#[derive(Debug, Default)]
pub(crate) struct ImportsAnySize {
    last: Mutex<Bytes>,
}

impl Tamper for ImportsAnySize {
    fn create_page(
        &self,
        inner: &dyn Device,
        size: Bytes,
        options: PageOptions,
    ) -> Result<PageHandle> {
        *self.last.lock().unwrap() = size;
        pages(inner).create_page(size, options)
    }

    fn import_page(
        &self,
        inner: &dyn Device,
        descriptor: BorrowedFd<'_>,
        _: Bytes,
    ) -> Result<PageHandle> {
        let sharing = inner.sharing().expect("the simulated device shares");
        sharing.import_page(descriptor, *self.last.lock().unwrap())
    }
}

/// An export gives a page of its own, with nothing of the first in it.
#[derive(Debug, Default)]
pub(crate) struct ExportsACopy {
    sizes: Mutex<BTreeMap<PageHandle, Bytes>>,
}

impl Tamper for ExportsACopy {
    fn create_page(
        &self,
        inner: &dyn Device,
        size: Bytes,
        options: PageOptions,
    ) -> Result<PageHandle> {
        let page = pages(inner).create_page(size, options)?;
        self.sizes.lock().unwrap().insert(page, size);
        Ok(page)
    }

    fn export_page(&self, inner: &dyn Device, page: PageHandle) -> Result<OwnedFd> {
        let sharing = inner.sharing().expect("the simulated device shares");
        sharing.export_page(page)?;
        let size = self.sizes.lock().unwrap().get(&page).copied().unwrap_or_default();
        let other = pages(inner).create_page(size, PageOptions::shareable())?;
        let descriptor = sharing.export_page(other);
        pages(inner).release_page(other)?;
        descriptor
    }
}

/// Memory registered twice is registered once more.
#[derive(Debug)]
pub(crate) struct RegistersTwice;

impl Tamper for RegistersTwice {
    unsafe fn register(&self, inner: &dyn Device, span: Span, flags: PinnedFlags) -> Result<()> {
        let pinned = inner.pinned_memory().expect("the simulated device pins");
        // SAFETY: the caller keeps the contract of the call itself.
        let _ = unsafe { pinned.register(span, flags) };
        Ok(())
    }
}
