//! Memory that is allocated together with its address: plain, managed and pinned.

use forebay_core::{Alignment, Bytes, Span};
use forebay_hal::Access;
use rustix::io::Errno;
use rustix::mm::Advice;

use crate::HugePages;
use crate::mapping::{AddressRange, MemoryFile, PageKind, pointer, system_page};
use crate::settings::Settings;

/// Memory of one allocation. Dropping it gives addresses and memory back to the system.
#[derive(Debug)]
pub(crate) struct Backing {
    /// Dropped to unmap everything.
    _range: AddressRange,
    span: Span,
}

/// Why no memory was made.
#[derive(Debug)]
pub(crate) enum MapError {
    /// The system has no addresses or no memory for it.
    Memory(Errno),
    /// The system did not take the NUMA policy.
    Policy(Errno),
}

impl Backing {
    /// `size` bytes, a multiple of the settings' unit, from a multiple of `alignment`.
    pub(crate) fn create(
        size: Bytes,
        alignment: Alignment,
        settings: &Settings,
    ) -> Result<Self, MapError> {
        let alignment = alignment.max(settings.alignment_for(size));
        let range = AddressRange::reserve(size, alignment).map_err(MapError::Memory)?;
        Self::within(range, Bytes::ZERO, size, settings)
    }

    /// As [`create`](Self::create), with a page before and behind it that nothing is mapped at. The
    /// system merges neighbouring mappings that are alike, and then tells figures of both as one.
    pub(crate) fn create_apart(
        size: Bytes,
        alignment: Alignment,
        settings: &Settings,
    ) -> Result<Self, MapError> {
        let alignment = alignment.max(settings.alignment_for(size)).max(system_page());
        let reserved = size.checked_add(alignment.bytes());
        let reserved = reserved.and_then(|sum| sum.checked_add(system_page().bytes()));
        let reserved = reserved.ok_or(MapError::Memory(Errno::NOMEM))?;
        let range = AddressRange::reserve(reserved, alignment).map_err(MapError::Memory)?;
        Self::within(range, alignment.bytes(), size, settings)
    }

    /// Puts memory at `offset` of `range`.
    fn within(
        range: AddressRange,
        offset: Bytes,
        size: Bytes,
        settings: &Settings,
    ) -> Result<Self, MapError> {
        let no_addresses = || MapError::Memory(Errno::NOMEM);
        let start = range.span().start().checked_add(offset).ok_or_else(no_addresses)?;
        let span = Span::new(start, size).map_err(|_| no_addresses())?;
        match settings.grain {
            PageKind::System => {
                // SAFETY: the range was made just now, and nobody else knows it.
                unsafe { range.commit(offset, size, Access::ReadWrite) }
                    .map_err(MapError::Memory)?;
                // SAFETY: the span is of this range, committed just now.
                unsafe { settings.numa.apply(span) }.map_err(MapError::Policy)?;
                advise_huge(span, settings.huge_pages);
            }
            PageKind::Huge2M | PageKind::Huge1G => {
                let file = MemoryFile::sparse(size, settings.grain).map_err(MapError::Memory)?;
                // SAFETY: the range was made just now, and nobody else knows it.
                unsafe { range.place(offset, &file, Access::ReadWrite) }
                    .map_err(MapError::Memory)?;
                // SAFETY: the span is of this range, placed just now.
                unsafe { settings.numa.apply(span) }.map_err(MapError::Policy)?;
                // After the policy, so that the pages come from the right nodes; before the first
                // touch, so that an empty pool is an error and not a signal.
                file.back(Bytes::ZERO, size).map_err(MapError::Memory)?;
            }
        }
        Ok(Self { _range: range, span })
    }

    /// The addresses, whole pages.
    pub(crate) fn span(&self) -> Span {
        self.span
    }
}

/// Tells the system whether `span` is to have huge pages.
///
/// `span` must be mapped memory the caller owns; nothing is changed but what it is made of. A
/// system that knows no huge pages says so with an error, which changes nothing either.
pub(crate) fn advise_huge(span: Span, huge_pages: HugePages) {
    let advice = match huge_pages {
        HugePages::Never => Advice::LinuxNoHugepage,
        HugePages::Transparent => Advice::LinuxHugepage,
        HugePages::Explicit2M | HugePages::Explicit1G => return,
    };
    // Below one huge page the advice has nothing to act on.
    if span.size() < Alignment::DEVICE_PAGE.bytes() {
        return;
    }
    let Ok(length) = span.size().to_usize() else { return };
    // SAFETY: this advice does not change what the memory holds, whoever uses it.
    let _ = unsafe { rustix::mm::madvise(pointer(span.start()).cast(), length, advice) };
}
