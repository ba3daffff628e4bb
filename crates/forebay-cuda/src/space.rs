//! The address book of a device, and what the device attaches to its entries.
//!
//! Its lock is held briefly, and never across a call of the driver.

use std::sync::Arc;

use forebay_core::Span;
use forebay_hal::PinnedFlags;
use forebay_hal::address_book::{self, AddressBook, Figures, MemoryEntry, MemoryKind};
use forebay_host::PrefaultedPages;

use crate::sys::RawPage;

/// What is where, and how much of it the device holds.
#[derive(Debug, Default)]
pub(crate) struct Space {
    pub(crate) book: AddressBook<Taken, Span, DriverPage>,
    pub(crate) figures: Figures,
}

/// Memory, or a region with the span that the driver gave for it.
pub(crate) type Entry = address_book::Entry<Taken, Span>;

/// A page of the driver's.
pub(crate) type Page = address_book::Page<DriverPage>;

/// What the driver gave for memory.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    /// More than the caller asked for, where the driver does not keep the alignment.
    pub(crate) span: Span,
    /// Pinned memory that this process made and the driver registered. The last clone unmaps it.
    pub(crate) own_pages: Option<Arc<PrefaultedPages>>,
}

impl Taken {
    /// What the driver made.
    pub(crate) const fn by_driver(span: Span) -> Self {
        Self { span, own_pages: None }
    }

    /// Leaves memory of this process mapped for good: the driver did not unregister it, and work may use it.
    pub(crate) fn leak_pages(&self) {
        core::mem::forget(self.own_pages.clone());
    }
}

/// A physical handle of the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriverPage {
    pub(crate) raw: RawPage,
    pub(crate) origin: PageOrigin,
}

/// Where a page comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageOrigin {
    /// Created here, for this process alone.
    Private,
    /// Created here, and may be exported.
    Shareable,
    /// Pinned memory of the host, created here.
    Pinned,
    /// Another's.
    Imported,
}

impl PageOrigin {
    /// Whether such a page is memory of the device that this process holds.
    pub(crate) fn is_charged(self) -> bool {
        matches!(self, Self::Private | Self::Shareable)
    }
}

/// What device addresses of copies and fills must be.
pub(crate) const USABLE: &str = "plain, managed or pinned memory inside one allocation, or mapped \
                                 pages side by side in one region with access";

impl Space {
    /// Enters memory, and counts it.
    pub(crate) fn insert(
        &mut self,
        span: Span,
        kind: MemoryKind,
        flags: PinnedFlags,
        owner: Taken,
    ) {
        self.figures.add(kind, owner.span.size());
        self.book.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
    }

    /// No longer counts memory that was removed, now that the driver has it back.
    pub(crate) fn settle(&mut self, memory: &MemoryEntry<Taken>) {
        self.figures.subtract(memory.kind, memory.owner.span.size());
    }

    /// No longer counts pages that went.
    pub(crate) fn settle_pages(&mut self, pages: impl IntoIterator<Item = Page>) {
        let charged = pages.into_iter().filter(|page| page.owner.origin.is_charged());
        charged.for_each(|page| self.figures.subtract(MemoryKind::Plain, page.size));
    }

    /// Whether `span` is memory the device copies to and from on its own, as a host's side.
    pub(crate) fn is_pinned(&self, span: Span) -> bool {
        self.book.find(span.start()).is_some_and(|entry| is_pinned(entry, span))
    }
}

/// Whether `span` of an entry is memory the device copies to and from on its own, as a host's side.
pub(crate) fn is_pinned(entry: &Entry, span: Span) -> bool {
    match entry {
        Entry::Memory(memory) => {
            memory.kind != MemoryKind::Plain && memory.span.contains_span(span)
        }
        Entry::Region(region) => region.first_not(span, |mapping| mapping.pinned).is_none(),
    }
}

/// Whether kernels use it by the very address that it has here. The driver promises that of all pinned memory but
/// write-combined, and of registered memory if the device has an attribute. Managed memory they would move.
pub(crate) const fn is_for_kernels(entry: &Entry, registered: bool) -> bool {
    let Entry::Memory(memory) = entry else { return true };
    match memory.kind {
        MemoryKind::Plain => true,
        MemoryKind::Pinned => !memory.flags.contains(PinnedFlags::WRITE_COMBINED),
        MemoryKind::Registered => registered,
        MemoryKind::Managed => false,
    }
}
