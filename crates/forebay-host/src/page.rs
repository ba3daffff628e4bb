//! Physical memory without an address.
//!
//! ```text
//!   store, one sparse file   |[page 1]..[page 2][page 3].....................|   most pages
//!   own file                 [page 4]                                            shareable, imported
//! ```
//!
//! A page that may leave the process needs a file of its own. The others are parts of one file that
//! is as large as files can be and takes memory only where there are pages: a process may have a
//! thousand open files on many systems, and two gigabytes in pages of 2 MiB would be the end.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Alignment, Bytes, Span};
use forebay_hal::{Access, PageHandle};
use rustix::io::Errno;

use crate::backing::Refusal;
use crate::mapping::{AddressRange, MemoryFile, PageKind, largest_file};
use crate::settings::Settings;

/// The size of the file of parts, where files may be that large: the largest power of two a file
/// offset can express. Places in it are not reused across sizes, so it must outlast any program.
const STORE_SIZE: Bytes = Bytes::new(1 << 62);

/// What a page is made of.
#[derive(Clone, Debug)]
pub(crate) enum PageBacking {
    /// The part of the store that begins there. It cannot leave the process.
    Part(Arc<MemoryFile>, Bytes),
    /// A file of its own, which can.
    Whole(Arc<MemoryFile>),
    /// A file of another's making. It is in its creator's books.
    Imported(Arc<MemoryFile>),
}

impl PageBacking {
    /// The file, and where in it the page begins.
    pub(crate) fn place(&self) -> (&MemoryFile, Bytes) {
        match self {
            Self::Part(file, offset) => (file, *offset),
            Self::Whole(file) | Self::Imported(file) => (file, Bytes::ZERO),
        }
    }
}

/// Whether a page's handle is still good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// Given out.
    Open,
    /// Given back, and alive only where it is mapped.
    Released,
}

/// One page.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) size: Bytes,
    pub(crate) substance: PageBacking,
    pub(crate) life: PageState,
    /// At how many places it is mapped.
    pub(crate) mappings: u64,
}

/// A page that nobody can reach any more, to be given back to the system.
#[derive(Debug)]
#[must_use = "its memory is still in the books"]
pub(crate) struct DeadPage {
    pub(crate) size: Bytes,
    substance: PageBacking,
}

/// The pages of a device.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    pages: BTreeMap<PageHandle, Page>,
    store: Option<Arc<MemoryFile>>,
    /// Where the store has not been used yet.
    fresh: Bytes,
    /// Parts of the store that are free again, by size.
    spare: BTreeMap<Bytes, Vec<Bytes>>,
}

impl PageTable {
    /// The page, where the handle is good.
    pub(crate) fn open(&self, handle: PageHandle) -> Option<&Page> {
        self.pages.get(&handle).filter(|page| page.life == PageState::Open)
    }

    /// How many pages live, released ones that are still mapped included.
    pub(crate) fn count(&self) -> usize {
        self.pages.len()
    }

    /// Enters a page under a new handle.
    pub(crate) fn insert(&mut self, size: Bytes, substance: PageBacking) -> PageHandle {
        let handle = PageHandle(forebay_hal::fresh_handle());
        self.pages.insert(handle, Page { size, substance, life: PageState::Open, mappings: 0 });
        handle
    }

    /// Counts a mapping.
    pub(crate) fn mapped(&mut self, handle: PageHandle) {
        if let Some(page) = self.pages.get_mut(&handle) {
            page.mappings += 1;
        }
    }

    /// Counts a mapping less; gives the page where that was the last thing that kept it.
    pub(crate) fn unmapped(&mut self, handle: PageHandle) -> Option<DeadPage> {
        let page = self.pages.get_mut(&handle)?;
        page.mappings = page.mappings.saturating_sub(1);
        self.bury(handle)
    }

    /// Ends a handle; gives the page where it is mapped nowhere. The handle must be good.
    pub(crate) fn release(&mut self, handle: PageHandle) -> Option<DeadPage> {
        self.pages.get_mut(&handle)?.life = PageState::Released;
        self.bury(handle)
    }

    fn bury(&mut self, handle: PageHandle) -> Option<DeadPage> {
        let page = self.pages.get(&handle)?;
        if page.life == PageState::Open || page.mappings > 0 {
            return None;
        }
        let page = self.pages.remove(&handle)?;
        Some(DeadPage { size: page.size, substance: page.substance })
    }

    /// A part of the store for a page of `size`, with nothing behind it yet.
    pub(crate) fn take_part(&mut self, size: Bytes, grain: PageKind) -> Result<PageBacking, Errno> {
        let store = match &self.store {
            Some(store) => Arc::clone(store),
            None => {
                let size = STORE_SIZE.min(largest_file().align_down(grain.alignment()));
                let made = Arc::new(MemoryFile::sparse(size, grain)?);
                Arc::clone(self.store.insert(made))
            }
        };
        if let Some(offset) = self.spare.get_mut(&size).and_then(Vec::pop) {
            return Ok(PageBacking::Part(store, offset));
        }
        // The system makes huge pages of a file only where address and place in the file agree.
        let huge = Alignment::DEVICE_PAGE;
        let step = if size >= huge.bytes() { huge } else { Alignment::ONE };
        let offset = self.fresh.checked_align_up(step).ok_or(Errno::NOSPC)?;
        let end = offset.checked_add(size).filter(|&end| end <= store.size()).ok_or(Errno::FBIG)?;
        self.fresh = end;
        Ok(PageBacking::Part(store, offset))
    }

    /// Takes a part back whose memory is with the system again.
    pub(crate) fn return_part(&mut self, size: Bytes, offset: Bytes) {
        self.spare.entry(size).or_default().push(offset);
    }
}

impl DeadPage {
    /// What it was charged for.
    pub(crate) fn charged(&self) -> Bytes {
        match self.substance {
            PageBacking::Part(..) | PageBacking::Whole(_) => self.size,
            PageBacking::Imported(_) => Bytes::ZERO,
        }
    }

    /// What is left of a page that could not be finished.
    pub(crate) fn unborn(size: Bytes, substance: PageBacking) -> Self {
        Self { size, substance }
    }

    /// Gives the memory back to the system; the part of the store to return, where it was one.
    pub(crate) fn give_back(self) -> Option<(Bytes, Bytes)> {
        match self.substance {
            PageBacking::Whole(_) | PageBacking::Imported(_) => None,
            PageBacking::Part(file, offset) => {
                // A system that refuses keeps the memory for the next page of this size.
                let _ = file.punch(offset, self.size);
                Some((self.size, offset))
            }
        }
    }
}

/// Sees to it that the memory of a new page comes from where the settings say, and at once where
/// they ask for explicit huge pages.
pub(crate) fn prepare(
    substance: &PageBacking,
    size: Bytes,
    settings: &Settings,
) -> Result<(), Refusal> {
    let (file, offset) = substance.place();
    if !settings.numa.nodes().is_empty() {
        // A policy is set on addresses but stays with the file: map it once, in passing.
        let unit = settings.unit();
        let passing = AddressRange::reserve(size, unit).map_err(Refusal::Memory)?;
        // SAFETY: the range was made just now, and nobody else knows it.
        unsafe { passing.place_part(Bytes::ZERO, file, (offset, size), Access::None) }
            .map_err(Refusal::Memory)?;
        let span =
            Span::new(passing.span().start(), size).map_err(|_| Refusal::Memory(Errno::NOMEM))?;
        // SAFETY: the span was placed just now and is this function's own.
        unsafe { settings.numa.apply(span) }.map_err(Refusal::Policy)?;
    }
    if settings.grain != PageKind::System {
        file.back(offset, size).map_err(Refusal::Memory)?;
    }
    Ok(())
}
