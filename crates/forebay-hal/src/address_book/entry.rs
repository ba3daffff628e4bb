//! The contents of an address book: memory, regions, their mappings, and pages.

use forebay_core::{Address, Bytes, Span};

use super::span_map::{SpanMap, Spanned};
use crate::{Access, PageHandle, PinnedFlags, PointerKind};

/// The kind of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Memory of the device.
    Plain,
    /// Memory that migrates between host and device.
    Managed,
    /// Pinned memory that the device allocated.
    Pinned,
    /// The caller's memory, pinned in place.
    Registered,
}

impl MemoryKind {
    /// The name for errors.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain memory",
            Self::Managed => "managed memory",
            Self::Pinned => "pinned memory",
            Self::Registered => "registered memory",
        }
    }

    /// The kind that a device reports when it classifies an address.
    pub const fn class(self) -> PointerKind {
        match self {
            Self::Plain => PointerKind::Device,
            Self::Managed => PointerKind::Managed,
            Self::Pinned | Self::Registered => PointerKind::Pinned,
        }
    }
}

/// How much memory a device has given out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Plain memory, and pages of the device.
    pub held: Bytes,
    /// Managed memory.
    pub managed: Bytes,
    /// Pinned memory, which is the host's.
    pub pinned: Bytes,
}

impl Figures {
    /// Counts memory.
    pub fn add(&mut self, kind: MemoryKind, size: Bytes) {
        *self.figure(kind) = self.figure(kind).saturating_add(size);
    }

    /// Stops counting memory.
    pub fn subtract(&mut self, kind: MemoryKind, size: Bytes) {
        *self.figure(kind) = self.figure(kind).saturating_sub(size);
    }

    fn figure(&mut self, kind: MemoryKind) -> &mut Bytes {
        match kind {
            MemoryKind::Plain => &mut self.held,
            MemoryKind::Managed => &mut self.managed,
            MemoryKind::Pinned | MemoryKind::Registered => &mut self.pinned,
        }
    }
}

/// Memory that was allocated together with its address. `owner` is what the device attaches.
#[derive(Clone, Debug)]
pub struct MemoryEntry<T> {
    /// The span that the caller requested or registered.
    pub span: Span,
    /// What it is.
    pub kind: MemoryKind,
    /// Empty unless it is pinned or registered.
    pub flags: PinnedFlags,
    /// What the device attaches.
    pub owner: T,
}

impl<T> MemoryEntry<T> {
    /// Whether it is pinned or registered memory.
    pub fn is_host(&self) -> bool {
        self.kind.class() == PointerKind::Pinned
    }

    /// Whether it is pinned or registered memory that was requested as mapped.
    pub fn is_mapped_host(&self) -> bool {
        self.is_host() && self.flags.contains(PinnedFlags::MAPPED)
    }
}

/// A reserved range and the pages mapped in it. `owner` is what the device attaches.
#[derive(Clone, Debug)]
pub struct Region<R = (), M = ()> {
    /// All of its addresses.
    pub span: Span,
    /// What the device attaches.
    pub owner: R,
    pub(super) mappings: SpanMap<Mapping<M>>,
}

impl<R, M> Region<R, M> {
    /// A region with nothing mapped in it.
    pub fn new(span: Span, owner: R) -> Self {
        Self { span, owner, mappings: SpanMap::default() }
    }

    /// The offset of `address` in the region.
    pub fn offset(&self, address: Address) -> Bytes {
        address.offset_from(self.span.start()).unwrap_or_default()
    }

    /// The mappings, by address.
    pub fn mappings(&self) -> impl ExactSizeIterator<Item = &Mapping<M>> {
        self.mappings.values()
    }

    /// The mappings that share a byte with `span`, by address.
    pub fn overlapping(&self, span: Span) -> impl DoubleEndedIterator<Item = &Mapping<M>> {
        self.mappings.overlapping(span)
    }

    /// The first address of `span` outside every mapping that `fits` accepts.
    pub fn first_not(&self, span: Span, fits: impl Fn(&Mapping<M>) -> bool) -> Option<Address> {
        let mut next = span.start();
        while next < span.end() {
            match self.mappings.at(next) {
                Some(mapping) if fits(mapping) => next = mapping.span.end(),
                _ => return Some(next),
            }
        }
        None
    }
}

/// A page behind addresses. `owner` is what the device attaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping<M = ()> {
    /// The addresses of the mapping.
    pub span: Span,
    /// The mapped page.
    pub page: PageHandle,
    /// Whether the page is pinned host memory.
    pub pinned: bool,
    /// The device's own access.
    pub access: Access,
    /// What the device attaches.
    pub owner: M,
}

impl<M> Spanned for Mapping<M> {
    fn span(&self) -> Span {
        self.span
    }
}

/// Physical memory that can be mapped. `owner` is what the device attaches.
#[derive(Clone, Copy, Debug)]
pub struct Page<P> {
    /// The size in bytes.
    pub size: Bytes,
    /// Whether it is pinned host memory.
    pub pinned: bool,
    /// What the device attaches.
    pub owner: P,
    /// Whether its handle is valid. A page that was released lives while it is mapped.
    pub(super) open: bool,
    pub(super) mappings: u64,
}

impl<P> Page<P> {
    /// A page that is mapped nowhere.
    pub const fn new(size: Bytes, pinned: bool, owner: P) -> Self {
        Self { size, pinned, owner, open: true, mappings: 0 }
    }

    /// Whether its handle is valid, which ends with its release.
    pub const fn is_open(&self) -> bool {
        self.open
    }
}

/// What is at a span of addresses.
#[derive(Clone, Debug)]
pub enum Entry<T, R = (), M = ()> {
    /// Memory whose addresses came with it.
    Memory(MemoryEntry<T>),
    /// A reserved range.
    Region(Region<R, M>),
}

impl<T, R, M> Spanned for Entry<T, R, M> {
    fn span(&self) -> Span {
        match self {
            Self::Memory(memory) => memory.span,
            Self::Region(region) => region.span,
        }
    }
}

impl<T, R, M> Entry<T, R, M> {
    /// All of its addresses.
    pub fn span(&self) -> Span {
        Spanned::span(self)
    }

    /// The memory; `None` if it is a region.
    pub fn memory(&self) -> Option<&MemoryEntry<T>> {
        if let Self::Memory(memory) = self { Some(memory) } else { None }
    }

    /// The region; `None` if it is memory.
    pub fn region(&self) -> Option<&Region<R, M>> {
        if let Self::Region(region) = self { Some(region) } else { None }
    }

    /// Checks that work that needs `need` may use `span`, which starts in the entry: all of it lies in one allocation,
    /// or in adjacent mappings with access. The error has the first address that it may not use.
    pub fn check(&self, span: Span, need: Access) -> Result<(), Unusable> {
        match self {
            Self::Memory(memory) if memory.span.contains_span(span) => Ok(()),
            Self::Memory(memory) => Err(Unusable { at: memory.span.end(), why: Reason::PastEnd }),
            Self::Region(region) => {
                let allows = |mapping: &Mapping<M>| mapping.access.allows(need);
                let Some(at) = region.first_not(span, allows) else { return Ok(()) };
                let mapping = region.mappings.at(at);
                let why =
                    mapping.map_or(Reason::NoPage, |mapping| Reason::NoAccess(mapping.access));
                Err(Unusable { at, why })
            }
        }
    }
}

/// An address that work may not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unusable {
    /// The address.
    pub at: Address,
    /// Why not.
    pub why: Reason,
}

/// Why work may not use an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The book has nothing there.
    Unknown,
    /// It is past the end of the allocation in which the span starts.
    PastEnd,
    /// It is pinned memory that was not requested as mapped.
    NotMapped,
    /// It is in a region, or past its end, and no page is mapped there.
    NoPage,
    /// A page is mapped there with less access.
    NoAccess(Access),
}

impl Reason {
    /// The words that follow a description of the address.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Unknown => "",
            Self::PastEnd => ", past the end of the allocation",
            Self::NotMapped => ", which was not asked to be mapped",
            Self::NoPage | Self::NoAccess(_) => " and not accessible",
        }
    }
}
