//! The table that tells every device what lies at an address.
//!
//! ```text
//!   entries    start ─> [plain]   [region: mapping, mapping, ...]   [pinned]  [managed]  [registered]
//!   pages      handle ─> size, how often it is mapped, whether it was released
//! ```
//!
//! Drivers trust their arguments, which the contract forbids. So a device looks up every address and handle here before
//! its driver sees it. Lookups take time logarithmic in the number of entries and of the region's mappings.
//!
//! The book has no lock and calls no driver: the device guards it, and records a change once its driver has made it.

mod entry;
mod span_map;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use forebay_core::{Address, Alignment, Bytes, Span};

pub use self::entry::{
    Entry, Figures, Mapping, MemoryEntry, MemoryKind, Page, Reason, Region, Unusable,
};
use self::span_map::SpanMap;
use crate::{
    Access, Call, Error, PageHandle, PointerClass, PointerKind, Result, invalid, nonzero,
    valid_span,
};

/// The memory, regions and pages of one device. `T`, `R`, `P` and `M` are what the device attaches to memory, regions,
/// pages and mappings.
#[derive(Debug)]
pub struct AddressBook<T, R = (), P = (), M = ()> {
    entries: SpanMap<Entry<T, R, M>>,
    pages: BTreeMap<PageHandle, Page<P>>,
}

impl<T, R, P, M> Default for AddressBook<T, R, P, M> {
    fn default() -> Self {
        Self { entries: SpanMap::default(), pages: BTreeMap::new() }
    }
}

/// A region and some of its mappings, or what is missing: the first address without one, or an error.
pub type Whole<'a, R, M, E = Address> =
    core::result::Result<(&'a Region<R, M>, Vec<&'a Mapping<M>>), E>;

/// Lookups.
impl<T, R, P, M> AddressBook<T, R, P, M> {
    /// The entry that contains `address`.
    pub fn find(&self, address: Address) -> Option<&Entry<T, R, M>> {
        self.entries.at(address)
    }

    /// Like [`find`](Self::find), for many addresses in few entries: `near` is the entry found last.
    pub fn find_near<'a>(
        &'a self,
        near: &mut Option<&'a Entry<T, R, M>>,
        address: Address,
    ) -> Option<&'a Entry<T, R, M>> {
        if near.is_none_or(|entry| !entry.span().contains(address)) {
            *near = self.find(address);
        }
        *near
    }

    /// The last entry that shares a byte with `span`.
    pub fn overlapping(&self, span: Span) -> Option<&Entry<T, R, M>> {
        self.entries.overlapping(span).next_back()
    }

    /// The memory that contains `address`; `None` inside a region.
    pub fn memory_at(&self, address: Address) -> Option<&MemoryEntry<T>> {
        self.find(address)?.memory()
    }

    /// What the device attached to the memory that contains `address`.
    pub fn memory_owner_mut(&mut self, address: Address) -> Option<&mut T> {
        match self.entries.at_mut(address)? {
            Entry::Memory(memory) => Some(&mut memory.owner),
            Entry::Region(_) => None,
        }
    }

    /// What the device attached to the mapping that contains `address`.
    pub fn mapping_owner_mut(&mut self, address: Address) -> Option<&mut M> {
        match self.entries.at_mut(address)? {
            Entry::Memory(_) => None,
            Entry::Region(region) => Some(&mut region.mappings.at_mut(address)?.owner),
        }
    }

    /// The memory that contains all of `span`.
    pub fn memory_of(&self, span: Span) -> Option<&MemoryEntry<T>> {
        self.memory_at(span.start()).filter(|memory| memory.span.contains_span(span))
    }

    /// The region that contains `address`.
    pub fn region_at(&self, address: Address) -> Option<&Region<R, M>> {
        self.find(address)?.region()
    }

    /// The adjacent mappings that cover `span` exactly, and their region; or the first address where they do not.
    pub fn whole_mappings(&self, span: Span) -> Whole<'_, R, M> {
        let region = self.region_at(span.start()).ok_or(span.start())?;
        let (mut found, mut next) = (Vec::new(), span.start());
        while next < span.end() || found.is_empty() {
            let mapping = region.mappings.at(next).filter(|one| one.span.start() == next);
            let mapping = mapping.filter(|one| span.contains_span(one.span)).ok_or(next)?;
            found.push(mapping);
            next = mapping.span.end();
        }
        Ok((region, found))
    }

    /// All entries, by address.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &Entry<T, R, M>> {
        self.entries.values()
    }

    /// The page, if its handle is valid.
    pub fn page(&self, page: PageHandle) -> Option<&Page<P>> {
        self.pages.get(&page).filter(|page| page.open)
    }

    /// The page of a mapping, which may have been released.
    pub fn mapped_page(&self, mapping: &Mapping<M>) -> Option<&Page<P>> {
        self.pages.get(&mapping.page)
    }

    /// All pages, including released ones that are still mapped.
    pub fn pages(&self) -> impl ExactSizeIterator<Item = &Page<P>> {
        self.pages.values()
    }
}

/// Answers in the contract's terms and in error messages.
impl<T, R, P, M> AddressBook<T, R, P, M> {
    /// The kind of memory at `address`.
    pub fn classify(&self, address: Address) -> Option<PointerClass> {
        let (kind, span) = match self.find(address)? {
            Entry::Memory(memory) => (memory.kind.class(), memory.span),
            Entry::Region(region) => match region.mappings.at(address) {
                Some(mapping) if mapping.pinned => (PointerKind::Pinned, mapping.span),
                Some(mapping) => (PointerKind::Mapped, mapping.span),
                None => (PointerKind::Reserved, region.span),
            },
        };
        Some(PointerClass { kind, span })
    }

    /// Describes what is at `address`, for errors.
    pub fn describe(&self, address: Address) -> String {
        let Some(entry) = self.find(address) else {
            return "where this device has no memory".to_owned();
        };
        let span = entry.span();
        let offset = address.offset_from(span.start()).unwrap_or_default();
        let place = match offset.get() {
            0 => "the start of".to_owned(),
            offset => format!("{offset} B into"),
        };
        match entry {
            Entry::Memory(memory) => format!("{place} {} {span}", memory.kind.name()),
            Entry::Region(region) => match region.mappings.at(address) {
                Some(mapping) => {
                    format!("{place} a region {span}, where {} is mapped", mapping.page)
                }
                None => format!("{place} a region {span}, where nothing is mapped"),
            },
        }
    }

    /// Whether work that needs `need` may use all of `span`: see [`Entry::check`].
    pub fn check(&self, span: Span, need: Access) -> core::result::Result<(), Unusable> {
        let unknown = Unusable { at: span.start(), why: Reason::Unknown };
        self.find(span.start()).ok_or(unknown)?.check(span, need)
    }

    /// Like [`check`](Self::check), for devices that use pinned memory only if it was requested as mapped.
    pub fn check_mapped(&self, span: Span, need: Access) -> core::result::Result<(), Unusable> {
        match self.memory_at(span.start()) {
            Some(memory) if memory.is_host() && !memory.is_mapped_host() => {
                Err(Unusable { at: span.start(), why: Reason::NotMapped })
            }
            _ => self.check(span, need),
        }
    }

    /// Like [`check_mapped`](Self::check_mapped), but returns the contract's error.
    pub fn check_use(
        &self,
        call: Call,
        argument: &'static str,
        span: Span,
        need: Access,
    ) -> Result<()> {
        let allowed = "plain, managed or mapped pinned memory of this device inside one \
                       allocation, or mapped pages side by side in one region with access";
        self.check_mapped(span, need)
            .map_err(|unusable| invalid(call, argument, self.explain(span, unusable), allowed))
    }

    /// Explains why `span` may not be used, for errors.
    pub fn explain(&self, span: Span, Unusable { at, why }: Unusable) -> String {
        format!("{span}, of which {at} is {}{}", self.describe(at), why.suffix())
    }

    /// Returns an error unless `span` lies inside one managed allocation.
    pub fn check_managed(&self, call: Call, span: Span) -> Result<()> {
        if self.memory_of(span).is_some_and(|memory| memory.kind == MemoryKind::Managed) {
            return Ok(());
        }
        let given = format!("{span}, which begins {}", self.describe(span.start()));
        Err(invalid(call, "span", given, "a span inside one managed allocation"))
    }

    /// The page, or an error unless its handle is valid.
    pub fn live_page(&self, call: Call, page: PageHandle) -> Result<&Page<P>> {
        let allowed = "a page of this device, created or imported and not released";
        self.page(page).ok_or_else(|| invalid(call, "page", page, allowed))
    }

    /// Where a page of `size` bytes is mapped at `at`, a multiple of `unit`: an error unless all of it is in one region
    /// and nothing is mapped there.
    pub fn place_for(
        &self,
        at: Address,
        size: Bytes,
        unit: Alignment,
    ) -> Result<(Span, &Region<R, M>)> {
        let call = Call::Map;
        if !at.is_aligned_to(unit) {
            return Err(invalid(call, "at", at, format!("a multiple of {unit}")));
        }
        let span = valid_span(call, "at", at, size)?;
        let Some(region) = self.region_at(at) else {
            let given = format!("{span}, {}", self.describe(at));
            return Err(invalid(call, "at", given, "addresses inside a region"));
        };
        if !region.span.contains_span(span) {
            let given = format!("{span}, which passes the end of region {}", region.span);
            return Err(invalid(call, "at", given, "addresses inside one region"));
        }
        if let Some(other) = region.overlapping(span).next_back() {
            let given = format!("{span}, where {} lies at {}", other.page, other.span);
            return Err(invalid(call, "at", given, "addresses where nothing is mapped"));
        }
        Ok((span, region))
    }

    /// The region of `span` and the mappings that `span` is made of, or an error that says where it is not.
    pub fn whole(&self, call: Call, span: Span) -> Whole<'_, R, M, Error> {
        nonzero(call, "span", span.size())?;
        self.whole_mappings(span).map_err(|at| {
            let given = format!("{span}, in which {at} is {}", self.describe(at));
            let allowed = "one mapping, or several side by side in one region, each of them whole";
            invalid(call, "span", given, allowed)
        })
    }

    /// Returns an error if `span`, which is to be registered, shares a byte with something in the book.
    pub fn check_apart(&self, span: Span) -> Result<()> {
        let Some(other) = self.overlapping(span) else { return Ok(()) };
        let at = other.span().start().max(span.start());
        let given = format!("{span}, of which {at} is {}", self.describe(at));
        let allowed = "memory that is not this device's and not registered yet";
        Err(invalid(Call::Register, "span", given, allowed))
    }

    /// The pinned or registered memory at `host` that the device has an address for.
    pub fn mapped_host(&self, host: Address) -> Result<&MemoryEntry<T>> {
        self.memory_at(host).filter(|memory| memory.is_mapped_host()).ok_or_else(|| {
            let given = format!("{host}, {}", self.describe(host));
            let allowed = "an address inside pinned or registered memory that is mapped";
            invalid(Call::DeviceAddress, "host", given, allowed)
        })
    }

    /// The error for a call that expects the first address of `what` and got another.
    pub fn not_first(
        &self,
        call: Call,
        argument: &'static str,
        address: Address,
        what: &str,
    ) -> Error {
        let given = format!("{address}, {}", self.describe(address));
        let allowed = format!("the first address of {what} that was allocated and not freed");
        invalid(call, argument, given, allowed)
    }
}

/// Changes.
impl<T, R, P, M> AddressBook<T, R, P, M> {
    /// Inserts memory or a region. The driver chose its addresses, or nothing overlaps them.
    pub fn insert(&mut self, entry: Entry<T, R, M>) {
        self.entries.insert(entry);
    }

    /// Removes the entry that starts at `start`, whatever its kind.
    pub fn take(&mut self, start: Address) -> Option<Entry<T, R, M>> {
        self.entries.remove(start)
    }

    /// Removes the memory of this kind that starts at `start`.
    pub fn take_memory(&mut self, start: Address, kind: MemoryKind) -> Option<MemoryEntry<T>> {
        self.memory_at(start)
            .filter(|memory| memory.span.start() == start && memory.kind == kind)?;
        match self.take(start)? {
            Entry::Memory(memory) => Some(memory),
            Entry::Region(_) => None,
        }
    }

    /// Like [`take_memory`](Self::take_memory), but returns an error for any other address.
    pub fn remove_memory(
        &mut self,
        call: Call,
        argument: &'static str,
        start: Address,
        kind: MemoryKind,
    ) -> Result<MemoryEntry<T>> {
        let memory = self.take_memory(start, kind);
        memory.ok_or_else(|| self.not_first(call, argument, start, kind.name()))
    }

    /// Removes the region that starts at `start`.
    pub fn take_region(&mut self, start: Address) -> Option<Region<R, M>> {
        self.region_at(start).filter(|region| region.span.start() == start)?;
        match self.take(start)? {
            Entry::Region(region) => Some(region),
            Entry::Memory(_) => None,
        }
    }

    /// Like [`take_region`](Self::take_region), but returns an error for any other address, and while pages are mapped.
    pub fn remove_region(&mut self, start: Address) -> Result<Region<R, M>> {
        let call = Call::ReleaseRegion;
        if let Some(region) = self.region_at(start)
            && region.span.start() == start
            && region.mappings().len() > 0
        {
            let (count, span) = (region.mappings().len(), region.span);
            let what = format!("{count} mappings in region {span}; unmap them first");
            return Err(Error::Busy { call, what: what.into() });
        }
        self.take_region(start).ok_or_else(|| self.not_first(call, "start", start, "a region"))
    }

    /// Inserts a page under a new handle.
    pub fn insert_page(&mut self, handle: PageHandle, page: Page<P>) {
        self.pages.insert(handle, page);
    }

    /// Ends a page's handle. Returns the page if it is mapped nowhere; otherwise the page goes with its last mapping.
    pub fn release_page(&mut self, handle: PageHandle) -> Option<Page<P>> {
        self.pages.get_mut(&handle)?.open = false;
        self.take_dead(handle)
    }

    /// Inserts a mapping of a page, without access, in the region that contains `span`.
    pub fn map(&mut self, span: Span, handle: PageHandle, owner: M) {
        if let Some(Entry::Region(region)) = self.entries.at_mut(span.start())
            && let Some(page) = self.pages.get_mut(&handle)
        {
            page.mappings += 1;
            let (pinned, access) = (page.pinned, Access::None);
            region.mappings.insert(Mapping { span, page: handle, pinned, access, owner });
        }
    }

    /// Sets what the device may do with the mappings in `span`.
    pub fn set_access(&mut self, span: Span, access: Access) {
        if let Some(Entry::Region(region)) = self.entries.at_mut(span.start()) {
            region.mappings.overlapping_mut(span).for_each(|mapping| mapping.access = access);
        }
    }

    /// Removes the mappings in `span`. Returns them, and the pages that lost their last mapping.
    pub fn unmap(&mut self, span: Span) -> (Vec<Mapping<M>>, Vec<Page<P>>) {
        let Some(Entry::Region(region)) = self.entries.at_mut(span.start()) else {
            return (Vec::new(), Vec::new());
        };
        let starts: Vec<_> = region.overlapping(span).map(|mapping| mapping.span.start()).collect();
        let gone: Vec<_> =
            starts.into_iter().filter_map(|start| region.mappings.remove(start)).collect();
        let mut dead = Vec::new();
        for mapping in &gone {
            if let Some(page) = self.pages.get_mut(&mapping.page) {
                page.mappings = page.mappings.saturating_sub(1);
            }
            dead.extend(self.take_dead(mapping.page));
        }
        (gone, dead)
    }

    /// Removes a page that was released and is mapped nowhere.
    fn take_dead(&mut self, handle: PageHandle) -> Option<Page<P>> {
        self.pages.get(&handle).filter(|page| !page.open && page.mappings == 0)?;
        self.pages.remove(&handle)
    }
}
