//! The device's address table and memory figures.
//!
//! ```text
//!   book       what is where: plain, managed, pinned and registered memory, regions, pages
//!   figures    held (plain, pages)  +  managed  +  pinned   <=   limit
//! ```
//!
//! One lock guards the tables. It is held across calls that change the mappings of a region, which must agree with the
//! table, but never while waiting for a stream or running a task.
//!
//! A stream's worker keeps the space alive until its last command has run: if a device is dropped while copies are
//! enqueued, its memory is freed after them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::{AddressBook, Entry, Figures, MemoryEntry, MemoryKind, Page};
use forebay_hal::{Call, Error, MemoryInfo, PageHandle, PinnedFlags, Result};

use crate::backing::{Backing, MapError};
use crate::errno;
use crate::lock::LockedSpan;
use crate::mapping::AddressRange;
use crate::page::{PageBacking, PageStore};
use crate::settings::Settings;
use crate::system::System;

/// From this size on the system is asked what it has before memory is given out. Below it the
/// device's limit alone decides: reading the system's figures takes longer than making a page.
const ASK_SYSTEM_FROM: Bytes = Bytes::mib(64);

/// All memory of a device.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) settings: Settings,
    table: Mutex<MappingTable>,
}

/// The address book, and how much was given out.
#[derive(Debug, Default)]
pub(crate) struct MappingTable {
    pub(crate) book: AddressBook<MemoryBacking, AddressRange, PageBacking>,
    pub(crate) store: PageStore,
    /// Pinned memory is outside what the contract calls held, but inside the limit.
    figures: Figures,
}

/// What memory is made of. The lock comes first, so that it goes before the memory.
#[derive(Debug)]
pub(crate) struct MemoryBacking {
    /// Pinned and registered memory.
    pub(crate) lock: Option<LockedSpan>,
    /// Longer than what the caller asked for, to the end of its last page. Registered memory is the caller's.
    pub(crate) backing: Option<Backing>,
}

impl Space {
    pub(crate) fn new(settings: Settings) -> Self {
        Self { settings, table: Mutex::default() }
    }

    /// The tables. A thread that panicked with the lock left them whole: every change is made
    /// after the system has agreed to it, in one piece.
    pub(crate) fn table(&self) -> MutexGuard<'_, MappingTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts `amount` as given out, or refuses what the limit or the system does not allow.
    pub(crate) fn charge(
        &self,
        call: Call,
        requested: Bytes,
        amount: Bytes,
        kind: MemoryKind,
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
        table.figures.add(kind, amount);
        Ok(())
    }

    /// Undoes [`charge`](Self::charge).
    pub(crate) fn discharge(&self, amount: Bytes, kind: MemoryKind) {
        self.table().figures.subtract(kind, amount);
    }

    /// How much there is, what could still be had, and what was given out.
    pub(crate) fn info(&self) -> MemoryInfo {
        let system = self.settings.system_free(&System::here());
        let total = self.settings.limit;
        let table = self.table();
        let free = total.saturating_sub(table.given_out()).min(system);
        MemoryInfo { total, free, held: table.figures.held, managed: table.figures.managed }
    }

    /// `requested` rounded up to what memory comes in; what does not fit in 64 bits is more than
    /// there is.
    pub(crate) fn rounded(&self, call: Call, requested: Bytes) -> Result<Bytes> {
        let rounded = requested.checked_align_up(self.settings.unit());
        rounded.ok_or_else(|| self.info().out_of_memory(call, requested))
    }

    /// Makes memory of its own for an allocation and counts it.
    pub(crate) fn obtain(
        &self,
        call: Call,
        requested: Bytes,
        alignment: Alignment,
        kind: MemoryKind,
    ) -> Result<Backing> {
        let size = self.rounded(call, requested)?;
        self.charge(call, requested, size, kind)?;
        Backing::create(size, alignment, &self.settings).map_err(|refusal| {
            self.discharge(size, kind);
            match refusal {
                MapError::Memory(errno) => errno::no_memory(call, requested, self.info(), errno),
                MapError::Policy(errno) => self.settings.numa.refused(call, errno),
            }
        })
    }

    /// Gives an allocation's memory back to the system, then out of the figures: in the
    /// other order another call could be promised memory that is not there yet.
    pub(crate) fn give_back(&self, backing: Backing, kind: MemoryKind) {
        let size = backing.span().size();
        drop(backing);
        self.discharge(size, kind);
    }

    /// Enters memory of `size` bytes that the caller asked for.
    pub(crate) fn enter(
        &self,
        backing: Backing,
        size: Bytes,
        kind: MemoryKind,
        pinned: Option<(LockedSpan, PinnedFlags)>,
    ) -> Address {
        let start = backing.span().start();
        // The backing is at least as long, so this span exists.
        let span = Span::new(start, size).unwrap_or_else(|_| backing.span());
        let (lock, flags) = pinned.unzip();
        let (flags, owner) =
            (flags.unwrap_or_default(), MemoryBacking { lock, backing: Some(backing) });
        self.table().book.insert(Entry::Memory(MemoryEntry { span, kind, flags, owner }));
        start
    }

    /// Enters a page under a new handle.
    pub(crate) fn enter_page(&self, size: Bytes, backing: PageBacking) -> PageHandle {
        let handle = PageHandle(forebay_hal::fresh_handle());
        self.table().book.insert_page(handle, Page::new(size, false, backing));
        handle
    }

    /// Takes memory that starts at `address` out of the book, and gives it back to the system outside the lock.
    pub(crate) fn free(
        &self,
        (call, argument): (Call, &'static str),
        address: Address,
        kind: MemoryKind,
    ) -> Result<()> {
        let memory = self.table().book.remove_memory(call, argument, address, kind)?;
        let MemoryBacking { lock, backing } = memory.owner;
        drop(lock);
        if let Some(backing) = backing {
            self.give_back(backing, kind);
        }
        Ok(())
    }
}

impl MappingTable {
    /// All that counts against the limit.
    fn given_out(&self) -> Bytes {
        let Figures { held, managed, pinned } = self.figures;
        held.saturating_add(managed).saturating_add(pinned)
    }
}
