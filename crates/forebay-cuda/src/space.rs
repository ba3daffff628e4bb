//! What lies where: the books of a device.
//!
//! ```text
//!   entries    start ─> [plain]   [region: mapping, mapping, ...]   [pinned]  [managed]  [registered]
//!   pages      handle ─> the driver's handle, its size, how often it is mapped
//! ```
//!
//! The driver trusts what it is given; the contract does not. So every address and handle is looked
//! up here before the driver sees it. The lock is held for a moment only: never across a call.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{
    Access, Call, Error, PageHandle, PinnedFlags, PointerClass, PointerKind, Result, invalid,
};
use forebay_host::PrefaultedPages;

use crate::sys::RawPage;

/// What lies where.
#[derive(Debug, Default)]
pub(crate) struct Space {
    /// By first address; no two overlap.
    pub(crate) entries: BTreeMap<Address, Entry>,
    pub(crate) pages: HashMap<u64, Page>,
    pub(crate) held: Bytes,
    pub(crate) managed: Bytes,
}

/// A stretch of addresses and what it is.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// What the caller asked for.
    pub(crate) span: Span,
    /// What the driver gave: more, where an alignment was asked for that it does not keep.
    pub(crate) taken: Span,
    pub(crate) occupant: Occupant,
}

impl Entry {
    /// Whether `span` of it is memory the device copies to and from on its own, as a host's side.
    pub(crate) fn is_pinned(&self, span: Span) -> bool {
        match &self.occupant {
            Occupant::Pinned(..) | Occupant::Registered(_) | Occupant::Managed => {
                self.span.contains_span(span)
            }
            Occupant::Region(mappings) => {
                first_not_matching(mappings, span, |mapping| mapping.pinned).is_none()
            }
            Occupant::Plain => false,
        }
    }

    /// The first address of `span` that work on the device is not to use so, and why.
    pub(crate) fn first_unusable(&self, span: Span, usage: Use) -> Option<(Address, &'static str)> {
        match &self.occupant {
            Occupant::Region(mappings) => {
                let usable = |mapping: &Mapping| usage.allowed_by(mapping.access);
                first_not_matching(mappings, span, usable).map(|at| (at, " and not accessible"))
            }
            _ if self.span.contains_span(span) => None,
            _ => Some((self.span.end(), ", past the end of the allocation")),
        }
    }

    /// Whether kernels use it by the very address that it has here. The driver promises that of all pinned memory but
    /// write-combined, and of registered memory if the device has an attribute. Managed memory they would move.
    pub(crate) const fn is_for_kernels(&self, registered: bool) -> bool {
        match &self.occupant {
            Occupant::Plain | Occupant::Region(_) => true,
            Occupant::Pinned(flags, _) => !flags.contains(PinnedFlags::WRITE_COMBINED),
            Occupant::Registered(_) => registered,
            Occupant::Managed => false,
        }
    }
}

/// What lies at a stretch of addresses.
#[derive(Clone, Debug)]
pub(crate) enum Occupant {
    /// Plain memory.
    Plain,
    /// Managed memory.
    Managed,
    /// Pinned memory the device made.
    Pinned(PinnedFlags, PinnedBy),
    /// The caller's memory, pinned where it lies.
    Registered(PinnedFlags),
    /// A reserved range, and the pages mapped in it by their first address.
    Region(BTreeMap<Address, Mapping>),
}

/// Who made pinned memory. Clones share it.
#[derive(Clone, Debug)]
pub(crate) enum PinnedBy {
    /// The driver.
    Driver,
    /// This process; the driver has registered it. The last clone unmaps it.
    Process(Arc<PrefaultedPages>),
}

impl Occupant {
    /// Leaves memory of this process mapped for good: the driver did not unregister it, and work may use it.
    pub(crate) fn leak_pages(&self) {
        if let Self::Pinned(_, PinnedBy::Process(pages)) = self {
            core::mem::forget(Arc::clone(pages));
        }
    }

    /// In words, for errors.
    const fn name(&self) -> &'static str {
        match self {
            Self::Plain => "plain memory",
            Self::Managed => "managed memory",
            Self::Pinned(..) => "pinned memory",
            Self::Registered(_) => "registered memory",
            Self::Region(_) => "a region",
        }
    }
}

/// A page behind addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) span: Span,
    pub(crate) page: PageHandle,
    /// Whether the page is pinned memory of the host.
    pub(crate) pinned: bool,
    /// What this device may do there.
    pub(crate) access: Access,
}

/// A physical handle of the driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    pub(crate) raw: RawPage,
    pub(crate) size: Bytes,
    pub(crate) mappings: u64,
    pub(crate) state: PageState,
    pub(crate) origin: PageOrigin,
}

/// Whether a page can still be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageState {
    /// The caller has it.
    Open,
    /// Given back; here only while it is mapped somewhere.
    Released,
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

/// What an operation does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Use {
    const fn allowed_by(self, access: Access) -> bool {
        match self {
            Self::Read => matches!(access, Access::Read | Access::ReadWrite),
            Self::Write => matches!(access, Access::ReadWrite),
        }
    }
}

/// What the books say of a span that work is to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpanCheck {
    /// Memory of this device.
    Usable,
    /// Not in the books: another library's, or nobody's.
    Unknown,
    /// In the books, and not to be used so.
    Refused(Error),
}

/// What device addresses of copies and fills must be.
pub(crate) const USABLE: &str = "plain, managed or pinned memory inside one allocation, or mapped \
                                 pages side by side in one region with access";

impl Space {
    /// The entry `address` lies in.
    pub(crate) fn find(&self, address: Address) -> Option<&Entry> {
        let (_, entry) = self.entries.range(..=address).next_back()?;
        entry.span.contains(address).then_some(entry)
    }

    /// The same for many addresses in few entries: `near` is the entry found last.
    pub(crate) fn find_near<'a>(
        &'a self,
        near: &mut Option<&'a Entry>,
        address: Address,
    ) -> Option<&'a Entry> {
        if near.is_none_or(|entry| !entry.span.contains(address)) {
            *near = self.find(address);
        }
        *near
    }

    /// An entry that shares a byte with `span`.
    pub(crate) fn overlapping(&self, span: Span) -> Option<&Entry> {
        let (_, entry) = self.entries.range(..span.end()).next_back()?;
        entry.span.overlaps(span).then_some(entry)
    }

    /// Enters memory, and counts it.
    pub(crate) fn insert(&mut self, entry: Entry) {
        match entry.occupant {
            Occupant::Plain => self.held = self.held.saturating_add(entry.taken.size()),
            Occupant::Managed => self.managed = self.managed.saturating_add(entry.taken.size()),
            _ => {}
        }
        self.entries.insert(entry.span.start(), entry);
    }

    /// Removes the entry that starts at `address`, where `wanted` says it is of the right kind. It
    /// still counts until [`settle`](Self::settle).
    pub(crate) fn remove(
        &mut self,
        call: Call,
        argument: &'static str,
        address: Address,
        what: &str,
        wanted: impl FnOnce(&Occupant) -> bool,
    ) -> Result<Entry> {
        let right = self.entries.get(&address).is_some_and(|entry| wanted(&entry.occupant));
        match if right { self.entries.remove(&address) } else { None } {
            Some(entry) => Ok(entry),
            None => {
                let given = format!("{address}, {}", self.describe(address));
                let allowed =
                    format!("the first address of {what} that was allocated and not freed");
                Err(invalid(call, argument, given, allowed))
            }
        }
    }

    /// No longer counts what was removed, now that the driver has it back.
    pub(crate) fn settle(&mut self, entry: &Entry) {
        match entry.occupant {
            Occupant::Plain => self.held = self.held.saturating_sub(entry.taken.size()),
            Occupant::Managed => self.managed = self.managed.saturating_sub(entry.taken.size()),
            _ => {}
        }
    }

    /// Puts back what was removed, since the driver did not take it.
    pub(crate) fn put_back(&mut self, entry: Entry) {
        self.entries.insert(entry.span.start(), entry);
    }

    /// The mappings of the region `address` lies in, and its span.
    pub(crate) fn region(&self, address: Address) -> Option<(Span, &BTreeMap<Address, Mapping>)> {
        let entry = self.find(address)?;
        match &entry.occupant {
            Occupant::Region(mappings) => Some((entry.span, mappings)),
            _ => None,
        }
    }

    /// The same, to be changed.
    pub(crate) fn region_mut(
        &mut self,
        address: Address,
    ) -> Option<&mut BTreeMap<Address, Mapping>> {
        let (_, entry) = self.entries.range_mut(..=address).next_back()?;
        match &mut entry.occupant {
            Occupant::Region(mappings) if entry.span.contains(address) => Some(mappings),
            _ => None,
        }
    }

    /// What is at `address`, in words.
    pub(crate) fn describe(&self, address: Address) -> String {
        let Some(entry) = self.find(address) else {
            return "where this device has no memory".to_owned();
        };
        let offset = address.offset_from(entry.span.start()).unwrap_or_default();
        let place = if offset.is_zero() {
            "the start of".to_owned()
        } else {
            format!("{} B into", offset.get())
        };
        let inside = match &entry.occupant {
            Occupant::Region(mappings) => match mapping_at(mappings, address) {
                Some(mapping) => format!(", where {} is mapped", mapping.page),
                None => ", where nothing is mapped".to_owned(),
            },
            _ => String::new(),
        };
        format!("{place} {} {}{inside}", entry.occupant.name(), entry.span)
    }

    /// What kind of memory is at `address`.
    pub(crate) fn classify(&self, address: Address) -> Option<PointerClass> {
        let entry = self.find(address)?;
        let (kind, span) = match &entry.occupant {
            Occupant::Plain => (PointerKind::Device, entry.span),
            Occupant::Managed => (PointerKind::Managed, entry.span),
            Occupant::Pinned(..) | Occupant::Registered(_) => (PointerKind::Pinned, entry.span),
            Occupant::Region(mappings) => match mapping_at(mappings, address) {
                Some(mapping) if mapping.pinned => (PointerKind::Pinned, mapping.span),
                Some(mapping) => (PointerKind::Mapped, mapping.span),
                None => (PointerKind::Reserved, entry.span),
            },
        };
        Some(PointerClass { kind, span })
    }

    /// Whether `span` is memory the device copies to and from on its own, as a host's side.
    pub(crate) fn is_pinned(&self, span: Span) -> bool {
        self.find(span.start()).is_some_and(|entry| entry.is_pinned(span))
    }

    /// What the books say of a span that work on the device is to use.
    pub(crate) fn check(
        &self,
        call: Call,
        argument: &'static str,
        span: Span,
        usage: Use,
    ) -> SpanCheck {
        let Some(entry) = self.find(span.start()) else { return SpanCheck::Unknown };
        let Some((at, why)) = entry.first_unusable(span, usage) else { return SpanCheck::Usable };
        let given = format!("{span}, of which {at} is {}{why}", self.describe(at));
        SpanCheck::Refused(invalid(call, argument, given, USABLE))
    }
}

/// The mapping `address` lies in.
pub(crate) fn mapping_at(
    mappings: &BTreeMap<Address, Mapping>,
    address: Address,
) -> Option<&Mapping> {
    let (_, mapping) = mappings.range(..=address).next_back()?;
    mapping.span.contains(address).then_some(mapping)
}

/// The first address of `span` that lies in no mapping that `fits`.
fn first_not_matching(
    mappings: &BTreeMap<Address, Mapping>,
    span: Span,
    fits: impl Fn(&Mapping) -> bool,
) -> Option<Address> {
    let mut next = span.start();
    while next < span.end() {
        match mapping_at(mappings, next) {
            Some(mapping) if fits(mapping) => next = mapping.span.end(),
            _ => return Some(next),
        }
    }
    None
}

/// The mappings that cover `span` exactly, side by side; or the first address where they do not.
pub(crate) fn tiling(
    mappings: &BTreeMap<Address, Mapping>,
    span: Span,
) -> core::result::Result<Vec<Mapping>, Address> {
    let mut tiles = Vec::new();
    let mut next = span.start();
    while next < span.end() {
        match mappings.get(&next) {
            Some(mapping) if mapping.span.end() <= span.end() => {
                tiles.push(*mapping);
                next = mapping.span.end();
            }
            _ => return Err(next),
        }
    }
    if tiles.is_empty() { Err(span.start()) } else { Ok(tiles) }
}
