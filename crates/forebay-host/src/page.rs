//! Physical memory without an address.
//!
//! ```text
//!   store, one sparse file   |[page 1]..[page 2][page 3].....................|   most pages
//!   own file                 [page 4]                                            shareable, imported
//! ```
//!
//! A shareable page needs its own file. All other pages are parts of one file, as large as files can be, which takes
//! memory only where it has pages. Many systems limit a process to a thousand open files, which would allow only two
//! gigabytes in 2 MiB pages.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Alignment, Bytes, Span};
use forebay_hal::Access;
use rustix::io::Errno;

use crate::backing::MapError;
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

    /// What a page of `size` made of this is charged for.
    pub(crate) fn charged(&self, size: Bytes) -> Bytes {
        match self {
            Self::Part(..) | Self::Whole(_) => size,
            Self::Imported(_) => Bytes::ZERO,
        }
    }

    /// Gives the memory of a page of `size` back to the system; where it was a part of the store, gives its place there.
    pub(crate) fn give_back(self, size: Bytes) -> Option<Bytes> {
        match self {
            Self::Whole(_) | Self::Imported(_) => None,
            Self::Part(file, offset) => {
                // A system that refuses keeps the memory for the next page of this size.
                let _ = file.punch(offset, size);
                Some(offset)
            }
        }
    }
}

/// The file that most pages are parts of.
#[derive(Debug, Default)]
pub(crate) struct PageStore {
    file: Option<Arc<MemoryFile>>,
    /// Where the file has not been used yet.
    fresh: Bytes,
    /// Parts of the file that are free again, by size.
    spare: BTreeMap<Bytes, Vec<Bytes>>,
}

impl PageStore {
    /// A part of the store for a page of `size`, with nothing behind it yet.
    pub(crate) fn take_part(&mut self, size: Bytes, grain: PageKind) -> Result<PageBacking, Errno> {
        let store = match &self.file {
            Some(file) => Arc::clone(file),
            None => {
                let size = STORE_SIZE.min(largest_file().align_down(grain.alignment()));
                let made = Arc::new(MemoryFile::sparse(size, grain)?);
                Arc::clone(self.file.insert(made))
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

/// Sees to it that the memory of a new page comes from where the settings say, and at once where
/// they ask for explicit huge pages.
pub(crate) fn prepare(
    substance: &PageBacking,
    size: Bytes,
    settings: &Settings,
) -> Result<(), MapError> {
    let (file, offset) = substance.place();
    if !settings.numa.nodes().is_empty() {
        // A policy is set on addresses but stays with the file: map it once, in passing.
        let unit = settings.unit();
        let passing = AddressRange::reserve(size, unit).map_err(MapError::Memory)?;
        // SAFETY: the range was made just now, and nobody else knows it.
        unsafe { passing.place_part(Bytes::ZERO, file, (offset, size), Access::None) }
            .map_err(MapError::Memory)?;
        let span =
            Span::new(passing.span().start(), size).map_err(|_| MapError::Memory(Errno::NOMEM))?;
        // SAFETY: the span was placed just now and is this function's own.
        unsafe { settings.numa.apply(span) }.map_err(MapError::Policy)?;
    }
    if settings.grain != PageKind::System {
        file.back(offset, size).map_err(MapError::Memory)?;
    }
    Ok(())
}
