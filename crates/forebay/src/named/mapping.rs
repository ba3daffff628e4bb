//! The memory: one shareable page of a device, mapped. Common to the host, the simulated device and CUDA.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    self as hal, Access, Call, Capabilities, Copy, Device, DeviceKind, Fill, Location, PageHandle,
    PageOptions, Pattern, Sharing, StreamHandle, VirtualMemory,
};

use super::words;
use crate::retry::retry_once;
use crate::{Error, Result};

/// Bytes copied at once between a device and a staging buffer.
const STAGE: usize = 4 << 20;

/// A mapped page. Dropping it unmaps it.
#[derive(Debug)]
pub(super) struct Mapping {
    device: Arc<dyn Device>,
    span: Span,
    /// Whether the address was handed out, so that work of the program may use the memory.
    address_given: AtomicBool,
    /// Whether a failed copy may have left the device using the memory.
    in_doubt: AtomicBool,
}

/// The device interfaces that sharing needs.
fn groups(device: &dyn Device) -> Result<(&dyn VirtualMemory, &dyn Sharing)> {
    device.virtual_memory().zip(device.sharing()).ok_or_else(|| {
        let missing = format!("{} cannot share memory with other processes", device.descriptor());
        hal::Error::Unsupported { call: Call::ExportPage, missing: missing.into() }.into()
    })
}

impl Mapping {
    /// Allocates at least `size` bytes of zeroed memory, and a descriptor for other processes to map it by.
    pub(super) fn create(
        device: &Arc<dyn Device>,
        size: u64,
        alignment: Alignment,
    ) -> Result<(Self, OwnedFd)> {
        device.descriptor().check_process(Call::CreatePage)?;
        let (pages, sharing) = groups(&**device)?;
        let grain = pages.granularity().minimum.alignment();
        let mapped = Bytes::new(size.max(1)).checked_align_up(grain).ok_or_else(|| {
            let given = format!("{size} B");
            hal::invalid(Call::CreatePage, "size", given, "less than all addresses")
        })?;
        let page = pages.create_page(mapped, PageOptions::shareable())?;
        let made = sharing.export_page(page).map_err(Error::from).and_then(|memory| {
            Ok((Self::place(device, pages, page, (mapped, alignment))?, memory))
        });
        // The mapping and the descriptor keep the page alive.
        let released = retry_once(|| pages.release_page(page));
        let (mapping, memory) = made?;
        released?;
        mapping.clear()?;
        Ok((mapping, memory))
    }

    /// Maps the memory of a descriptor from another process.
    pub(super) fn open(
        device: &Arc<dyn Device>,
        memory: BorrowedFd<'_>,
        mapped: u64,
        alignment: Alignment,
    ) -> Result<Self> {
        device.descriptor().check_process(Call::ImportPage)?;
        let (pages, sharing) = groups(&**device)?;
        let mapped = Bytes::new(mapped);
        let page = sharing.import_page(memory, mapped)?;
        let made = Self::place(device, pages, page, (mapped, alignment));
        let released = retry_once(|| pages.release_page(page));
        let mapping = made?;
        released?;
        Ok(mapping)
    }

    fn place(
        device: &Arc<dyn Device>,
        pages: &dyn VirtualMemory,
        page: PageHandle,
        (size, alignment): (Bytes, Alignment),
    ) -> Result<Self> {
        let alignment = alignment.max(pages.granularity().minimum.alignment());
        let span = pages.reserve(size, alignment)?;
        if let Err(error) = pages.map(span.start(), page) {
            // SAFETY: reserved just now, and nobody knows it.
            let _ = retry_once(|| unsafe { pages.release_region(span.start()) });
            return Err(error.into());
        }
        let (address_given, in_doubt) = (AtomicBool::new(false), AtomicBool::new(false));
        // From here on, dropping the mapping undoes everything.
        let mapping = Self { device: Arc::clone(device), span, address_given, in_doubt };
        let ordinal = device.descriptor().ordinal;
        // SAFETY: access is only added.
        unsafe { pages.set_access(span, Access::ReadWrite, ordinal) }?;
        Ok(mapping)
    }

    /// Zeroes new memory. Host memory is already zero.
    fn clear(&self) -> Result<()> {
        if self.device.descriptor().kind == DeviceKind::Host {
            return Ok(());
        }
        let fill = Fill::linear(self.span.start(), self.span.size(), Pattern::U32(0))?;
        // SAFETY: the memory is this mapping's, which waits for the fill or, where it cannot, is never unmapped.
        let filled = unsafe { self.device.fill(&fill, StreamHandle::DEFAULT) };
        // A failed fill may still be partly in flight.
        self.wait()?;
        Ok(filled?)
    }

    /// Waits for the default stream.
    fn wait(&self) -> Result<()> {
        let waited = retry_once(|| self.device.synchronize_stream(StreamHandle::DEFAULT));
        waited.map_err(|error| {
            self.in_doubt.store(true, Ordering::Relaxed);
            error.into()
        })
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// The size of the page.
    pub(super) fn size(&self) -> u64 {
        self.span.size().get()
    }

    /// The address of the first byte, for work of the program.
    pub(super) fn address(&self) -> Address {
        self.address_given.store(true, Ordering::Relaxed);
        self.span.start()
    }

    /// The first byte in host memory; `None` if the host cannot reach the device's memory.
    pub(super) fn pointer(&self) -> Option<*mut u8> {
        let needed = Capabilities::HOST_VISIBLE | Capabilities::DATA;
        let start = usize::try_from(self.span.start().get()).ok()?;
        let visible = self.device.descriptor().capabilities.contains(needed);
        visible.then(|| core::ptr::with_exposed_provenance_mut(start))
    }

    /// Copies the bytes from `offset` on to `to`.
    pub(super) fn read(&self, offset: u64, to: &mut [u8]) -> Result<()> {
        let start = self.check(offset, to.len())?;
        if let (Some(base), Ok(offset)) = (self.words(), usize::try_from(offset)) {
            // SAFETY: the range is within the mapping, which begins and ends with a page. Safe code of this process writes
            // it by atomic words alone; who uses the raw pointer promises not to race.
            unsafe { words::load(base, offset, to) };
            return Ok(());
        }
        let mut from = start;
        for chunk in to.chunks_mut(STAGE) {
            let stage = chunk.to_vec();
            chunk.copy_from_slice(&self.pass(stage, |host| (host, Location::Device(from)))?);
            from = advance(from, chunk.len());
        }
        Ok(())
    }

    /// Copies `from` to the bytes from `offset` on.
    pub(super) fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let start = self.check(offset, from.len())?;
        if let (Some(base), Ok(offset)) = (self.words(), usize::try_from(offset)) {
            // SAFETY: as in `read`.
            unsafe { words::store(base, offset, from) };
            return Ok(());
        }
        let mut to = start;
        for chunk in from.chunks(STAGE) {
            self.pass(chunk.to_vec(), |host| (Location::Device(to), host))?;
            to = advance(to, chunk.len());
        }
        Ok(())
    }

    fn words(&self) -> Option<*const AtomicUsize> {
        self.pointer().map(|pointer| pointer.cast_const().cast())
    }

    /// The address of a range, checked to be within the mapping and in this process.
    fn check(&self, offset: u64, length: usize) -> Result<Address> {
        self.device.descriptor().check_process(Call::Copy)?;
        let end = offset.checked_add(length as u64).filter(|&end| end <= self.span.size().get());
        let start = self.span.start().checked_add(Bytes::new(offset));
        end.and(start).ok_or_else(|| {
            let given = format!("{length} B from byte {offset} on");
            let allowed = format!("a range within {} B", self.span.size().get());
            hal::invalid(Call::Copy, "range", given, allowed).into()
        })
    }

    /// Copies between a stage and the device, and waits. Leaks the stage if the device may still be using it.
    fn pass(
        &self,
        mut stage: Vec<u8>,
        ends: impl FnOnce(Location) -> (Location, Location),
    ) -> Result<Vec<u8>> {
        let (to, from) = ends(Location::Host(Address::of_pointer(stage.as_mut_ptr())));
        let copy = Copy::linear(to, from, Bytes::new(stage.len() as u64))?;
        // SAFETY: the host's side is the stage, which stays until the stream was waited for. The device's side is within
        // the mapping, which stays too; what other processes write there meanwhile is theirs to order.
        let copied = unsafe { self.device.copy(&copy, StreamHandle::DEFAULT) };
        let lost = matches!(copied, Err(hal::Error::Lost { .. }));
        // A failed copy may still be partly in flight on the device's side.
        let waited = self.wait();
        if lost || waited.is_err() {
            core::mem::forget(stage);
            copied?;
            waited?;
            return Ok(Vec::new());
        }
        copied?;
        Ok(stage)
    }
}

/// Stays within the mapping, as checked before.
fn advance(address: Address, by: usize) -> Address {
    address.checked_add(Bytes::new(by as u64)).unwrap_or(address)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.device.descriptor().is_from_parent() {
            return;
        }
        let idle = !*self.address_given.get_mut() || self.device.synchronize_device().is_ok();
        // Keep mapped what a device may still use.
        if *self.in_doubt.get_mut() || !idle {
            return;
        }
        if let Some(pages) = self.device.virtual_memory() {
            // SAFETY: the mapping is this value's alone, its copies are done, and so is all work that could have its
            // address; nobody keeps the address longer, by the rules of `SharedBuffer`.
            if retry_once(|| unsafe { pages.unmap(self.span) }).is_ok() {
                // SAFETY: as above.
                let _ = retry_once(|| unsafe { pages.release_region(self.span.start()) });
            }
        }
    }
}
