//! The device's addresses: what lies where, and how much of it there is.
//!
//! ```text
//!   entries    start ─> [plain]   [region: mapping, mapping, ...]   [pinned]  [managed]  [registered]
//!   pages      handle ─> substance, how often it is mapped
//!   accounts   held (plain, pages)  +  managed  +  pinned   <=   limit
//! ```
//!
//! One lock over the tables. It is held across calls that change what is mapped in a region, which
//! must agree with the table, and across nothing that waits for a stream or runs a task.
//!
//! A stream's worker keeps the space alive until its last command has run: a device that is dropped
//! with copies still enqueued takes the memory away after them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    Access, Call, Error, MemoryInfo, PinnedFlags, PointerClass, PointerKind, Result, invalid,
};

use crate::backing::{Backing, Refusal};
use crate::errno;
use crate::lock::LockedSpan;
use crate::page::PageTable;
use crate::region::Region;
use crate::settings::Settings;
use crate::system::System;

/// From this size on the system is asked what it has before memory is given out. Below it the
/// device's limit alone decides: reading the system's figures takes longer than making a page.
const ASK_SYSTEM_FROM: Bytes = Bytes::mib(64);

/// All memory of a device.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) settings: Settings,
    table: Mutex<Table>,
}

/// What lies where.
#[derive(Debug, Default)]
pub(crate) struct Table {
    /// By first address; no two overlap.
    entries: BTreeMap<Address, Entry>,
    pub(crate) pages: PageTable,
    held: Bytes,
    managed: Bytes,
    pinned: Bytes,
}

/// A stretch of addresses and what it is.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What the caller asked for: the backing may be longer, to the end of its last page.
    pub(crate) span: Span,
    pub(crate) occupant: Occupant,
}

/// What lies at a stretch of addresses.
#[derive(Debug)]
pub(crate) enum Occupant {
    /// Plain memory.
    Plain(Backing),
    /// Managed memory.
    Managed(Backing),
    /// Pinned memory the device made. The lock comes first, so that it goes before the memory.
    Pinned(LockedSpan, Backing, PinnedFlags),
    /// The caller's memory, pinned where it lies.
    Registered(LockedSpan, PinnedFlags),
    /// A reserved range, with or without pages in it.
    Region(Region),
}

impl Occupant {
    /// In words, for errors.
    const fn name(&self) -> &'static str {
        match self {
            Self::Plain(_) => "plain memory",
            Self::Managed(_) => "managed memory",
            Self::Pinned(..) => "pinned memory",
            Self::Registered(..) => "registered memory",
            Self::Region(_) => "a region",
        }
    }
}

/// Which account memory is counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Account {
    /// Plain memory and pages: what the contract calls held.
    Held,
    /// Managed memory: apart in the figures, inside the limit.
    Managed,
    /// Pinned memory the device made: outside what is called held, inside the limit.
    Pinned,
}

/// What an operation does to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

impl Use {
    /// Whether `access` allows it.
    pub(crate) const fn allowed_by(self, access: Access) -> bool {
        match self {
            Self::Read => matches!(access, Access::Read | Access::ReadWrite),
            Self::Write => matches!(access, Access::ReadWrite),
        }
    }
}

impl Space {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, table: Mutex::default() }
    }

    /// The tables. A thread that panicked with the lock left them whole: every change is made
    /// after the system has agreed to it, in one piece.
    pub(crate) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `amount` as given out, or refuses what the limit or the system does not allow.
    pub(crate) fn charge(
        &self,
        call: Call,
        requested: Bytes,
        amount: Bytes,
        account: Account,
    ) -> Result<()> {
        let system = if amount < ASK_SYSTEM_FROM {
            Bytes::MAX
        } else {
            self.settings.system_free(&System::here())
        };
        let total = self.settings.limit;
        let mut table = self.table();
        let free = total.saturating_sub(table.given_out()).min(system);
        if amount > free {
            return Err(Error::OutOfMemory { call, requested, free, total });
        }
        let sum = table.account(account).saturating_add(amount);
        *table.account(account) = sum;
        Ok(())
    }

    /// Undoes [`charge`](Self::charge).
    pub(crate) fn discharge(&self, amount: Bytes, account: Account) {
        let mut table = self.table();
        let rest = table.account(account).saturating_sub(amount);
        *table.account(account) = rest;
    }

    /// How much there is, what could still be had, and what was given out.
    pub(crate) fn info(&self) -> MemoryInfo {
        let system = self.settings.system_free(&System::here());
        let total = self.settings.limit;
        let table = self.table();
        let free = total.saturating_sub(table.given_out()).min(system);
        MemoryInfo { total, free, held: table.held, managed: table.managed }
    }

    /// `requested` rounded up to what memory comes in; what does not fit in 64 bits is more than
    /// there is.
    pub(crate) fn rounded(&self, call: Call, requested: Bytes) -> Result<Bytes> {
        requested.checked_align_up(self.settings.unit()).ok_or_else(|| {
            let MemoryInfo { free, total, .. } = self.info();
            Error::OutOfMemory { call, requested, free, total }
        })
    }

    /// Makes memory of its own for an allocation and counts it.
    pub(crate) fn obtain(
        &self,
        call: Call,
        requested: Bytes,
        alignment: Alignment,
        account: Account,
    ) -> Result<Backing> {
        let size = self.rounded(call, requested)?;
        self.charge(call, requested, size, account)?;
        Backing::create(size, alignment, &self.settings).map_err(|refusal| {
            self.discharge(size, account);
            match refusal {
                Refusal::Memory(errno) => errno::no_memory(call, requested, self.info(), errno),
                Refusal::Policy(errno) => self.settings.numa.refused(call, errno),
            }
        })
    }

    /// Gives an allocation's memory back to the system, then takes it out of the books: in the
    /// other order somebody could be promised memory that is not there yet.
    pub(crate) fn give_back(&self, backing: Backing, account: Account) {
        let size = backing.span().size();
        drop(backing);
        self.discharge(size, account);
    }

    /// Enters memory of `size` bytes that the caller asked for.
    pub(crate) fn enter(
        &self,
        backing: Backing,
        size: Bytes,
        occupant: impl FnOnce(Backing) -> Occupant,
    ) -> Address {
        let start = backing.span().start();
        // The backing is at least as long, so this span exists.
        let span = Span::new(start, size).unwrap_or_else(|_| backing.span());
        self.table().insert(Entry { span, occupant: occupant(backing) });
        start
    }
}

impl Table {
    /// All that counts against the limit.
    fn given_out(&self) -> Bytes {
        self.held.saturating_add(self.managed).saturating_add(self.pinned)
    }

    fn account(&mut self, account: Account) -> &mut Bytes {
        match account {
            Account::Held => &mut self.held,
            Account::Managed => &mut self.managed,
            Account::Pinned => &mut self.pinned,
        }
    }

    pub(crate) fn insert(&mut self, entry: Entry) {
        self.entries.insert(entry.span.start(), entry);
    }

    /// Every entry, by address.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values()
    }

    /// The entry `address` lies in.
    pub(crate) fn find(&self, address: Address) -> Option<&Entry> {
        let (_, entry) = self.entries.range(..=address).next_back()?;
        entry.span.contains(address).then_some(entry)
    }

    /// An entry that shares a byte with `span`.
    pub(crate) fn overlapping(&self, span: Span) -> Option<&Entry> {
        let (_, entry) = self.entries.range(..span.end()).next_back()?;
        entry.span.overlaps(span).then_some(entry)
    }

    /// The region `address` lies in.
    pub(crate) fn region_mut(&mut self, address: Address) -> Option<&mut Region> {
        let (_, entry) = self.entries.range_mut(..=address).next_back()?;
        match &mut entry.occupant {
            Occupant::Region(region) if entry.span.contains(address) => Some(region),
            _ => None,
        }
    }

    /// Removes the entry that starts at `address`, where `wanted` says it is of the right kind.
    pub(crate) fn remove(
        &mut self,
        call: Call,
        argument: &'static str,
        address: Address,
        what: &str,
        wanted: impl FnOnce(&Occupant) -> bool,
    ) -> Result<Occupant> {
        match self.entries.get(&address) {
            Some(entry) if wanted(&entry.occupant) => {}
            _ => {
                let given = format!("{address}, {}", self.describe(address));
                let allowed =
                    format!("the first address of {what} that was allocated and not freed");
                return Err(invalid(call, argument, given, allowed));
            }
        }
        match self.entries.remove(&address) {
            Some(entry) => Ok(entry.occupant),
            // It was found above, under the same lock.
            None => Err(invalid(call, argument, address, what)),
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
            Occupant::Region(region) => match region.mapping_at(address) {
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
            Occupant::Plain(_) => (PointerKind::Device, entry.span),
            Occupant::Managed(_) => (PointerKind::Managed, entry.span),
            Occupant::Pinned(..) | Occupant::Registered(..) => (PointerKind::Pinned, entry.span),
            Occupant::Region(region) => match region.mapping_at(address) {
                Some(mapping) => (PointerKind::Mapped, mapping.span),
                None => (PointerKind::Reserved, entry.span),
            },
        };
        Some(PointerClass { kind, span })
    }

    /// Refuses a span that is not live memory of the device, or not accessible for `usage`.
    pub(crate) fn check_use(
        &self,
        call: Call,
        argument: &'static str,
        span: Span,
        usage: Use,
    ) -> Result<()> {
        let refuse = |at: Address, why: &str| {
            let given = format!("{span}, of which {at} is {}{why}", self.describe(at));
            let allowed = "plain, managed or mapped pinned memory of this device inside one \
                           allocation, or mapped pages side by side in one region with access";
            Err(invalid(call, argument, given, allowed))
        };
        let Some(entry) = self.find(span.start()) else {
            return refuse(span.start(), "");
        };
        match &entry.occupant {
            Occupant::Region(region) => match region.first_unusable(span, usage) {
                None => Ok(()),
                Some(at) => refuse(at, " and not accessible"),
            },
            Occupant::Pinned(_, _, flags) | Occupant::Registered(_, flags)
                if !flags.contains(PinnedFlags::MAPPED) =>
            {
                refuse(span.start(), ", which was not asked to be mapped")
            }
            _ if entry.span.contains_span(span) => Ok(()),
            _ => refuse(entry.span.end(), ", past the end of the allocation"),
        }
    }
}
