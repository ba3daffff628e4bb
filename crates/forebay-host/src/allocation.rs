//! Host memory without a device: aligned, in huge pages, on chosen NUMA nodes, and able to report what it got.
//!
//! ```text
//!   |unmapped|<------------- HostAllocation, whole pages ------------->|unmapped|
//! ```
//!
//! One process-wide lock guards the list of live allocations. Each is a separate mapping, which takes microseconds to
//! create: allocate large memory here, and small memory from a pool or the heap.

use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use forebay_core::{Alignment, Bytes, Span};
use forebay_hal::{Call, MemoryInfo, Result, invalid};
use forebay_sync::fork::ForkSafeMutex;

use crate::backing::{Backing, MapError};
use crate::mapping::pointer;
use crate::prefault::prefault;
use crate::settings::Settings;
use crate::system::{Reading, Residence, System};
use crate::{HostOptions, NumaPolicy, errno, numa};

/// Zeroed host memory, freed on drop.
///
/// ```
/// use forebay_core::{Alignment, Bytes};
/// use forebay_host::{HostAllocation, HostOptions, HugePages};
///
/// let options = HostOptions::new().huge_pages(HugePages::Transparent);
/// let mut memory = HostAllocation::new(Bytes::mib(16), Alignment::CACHE_LINE, &options)?;
/// memory.touch(4); // first touch by four threads: the system makes the pages now
/// memory.as_mut_slice()[0] = 7;
/// match memory.residence() {
///     Ok(got) => println!("{} of {} are in huge pages", got.huge, got.resident),
///     Err(unknown) => println!("this system does not tell: {unknown}"),
/// }
/// println!("on node {:?}", memory.node_of(Bytes::ZERO)?);
/// # Ok::<(), forebay_hal::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "the memory is given back when this is dropped"]
pub struct HostAllocation {
    backing: Backing,
    size: Bytes,
    number: u64,
}

/// A live allocation, as [`HostAllocation::live`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LiveAllocation {
    /// Its addresses, whole pages.
    pub span: Span,
    /// The time since its creation.
    pub age: Duration,
    /// The source location that created it.
    pub created_at: &'static Location<'static>,
}

/// The totals of all allocations of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostTotals {
    /// Live allocations.
    pub live: usize,
    /// Bytes in them, in whole pages.
    pub bytes: Bytes,
    /// The most bytes that were live at once.
    pub peak: Bytes,
    /// Allocations made so far.
    pub created: u64,
}

struct Record {
    span: Span,
    since: Instant,
    created_at: &'static Location<'static>,
}

struct Book {
    totals: HostTotals,
    live: BTreeMap<u64, Record>,
}

/// Everything live. A forked child has its copies of the memory, and this list of them.
static BOOK: ForkSafeMutex<Book> = ForkSafeMutex::new(Book {
    totals: HostTotals { live: 0, bytes: Bytes::ZERO, peak: Bytes::ZERO, created: 0 },
    live: BTreeMap::new(),
});

impl HostAllocation {
    /// Allocates `size` zeroed bytes at a multiple of `alignment`, with the pages and nodes of `options`. If the system
    /// does not grant them, the error says what would help.
    ///
    /// [`HugePages::Transparent`](crate::HugePages::Transparent) is only a hint: [`residence`](Self::residence) reports
    /// the result.
    #[track_caller]
    pub fn new(size: Bytes, alignment: Alignment, options: &HostOptions) -> Result<Self> {
        let created_at = Location::caller();
        let settings = Settings::resolve(options, &System::here())?;
        let (call, requested) = (Call::Allocate, size);
        let figures = || {
            let free = settings.system_free(&System::here()).min(settings.limit);
            MemoryInfo { total: settings.limit, free, ..MemoryInfo::default() }
        };
        let too_much = || figures().out_of_memory(call, requested);
        let whole = size.max(Bytes::new(1)).checked_align_up(settings.unit());
        let whole = whole.filter(|&whole| whole <= settings.limit).ok_or_else(too_much)?;
        let backing =
            Backing::create_apart(whole, alignment, &settings).map_err(
                |refusal| match refusal {
                    MapError::Memory(errno) => errno::no_memory(call, requested, figures(), errno),
                    MapError::Policy(errno) => settings.numa.refused(call, errno),
                },
            )?;
        let record = Record { span: backing.span(), since: Instant::now(), created_at };
        let mut book = BOOK.lock();
        let totals = &mut book.totals;
        totals.created += 1;
        totals.live += 1;
        totals.bytes = totals.bytes.saturating_add(whole);
        totals.peak = totals.peak.max(totals.bytes);
        let number = totals.created;
        book.live.insert(number, record);
        drop(book);
        Ok(Self { backing, size, number })
    }

    /// Allocates memory for `count` elements of `T`, aligned for them. Fails if they need more bytes than the address
    /// space has.
    #[track_caller]
    pub fn for_elements<T>(count: usize, options: &HostOptions) -> Result<Self> {
        let size = count.checked_mul(size_of::<T>()).filter(|&size| isize::try_from(size).is_ok());
        let refused = || {
            let given = format!("{count} elements of {} B", size_of::<T>());
            invalid(Call::Allocate, "count", given, "fewer bytes than half of all addresses")
        };
        let alignment = Alignment::new(align_of::<T>() as u64).unwrap_or(Alignment::ONE);
        Self::new(Bytes::new(size.ok_or_else(refused)? as u64), alignment, options)
    }

    /// The requested size in bytes.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The addresses, in whole pages: the bytes after [`size`](Self::size) exist but are unused.
    pub fn span(&self) -> Span {
        self.backing.span()
    }

    fn length(&self) -> usize {
        self.size.to_usize().unwrap_or_default()
    }

    /// The bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: so many bytes are mapped, and zero or written since; they are this allocation's
        // alone, which is borrowed meanwhile.
        unsafe { core::slice::from_raw_parts(pointer(self.span().start()), self.length()) }
    }

    /// The bytes, mutably.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(pointer(self.span().start()), self.length()) }
    }

    /// Touches every page, so that the system creates all of them now. Uses up to `threads` threads, including this
    /// one. Contents are unchanged.
    pub fn touch(&mut self, threads: usize) {
        prefault(self.as_mut_slice(), threads);
    }

    /// How much of it is resident, and in which pages, as the system reports.
    pub fn residence(&self) -> Reading<Residence> {
        System::here().residence(self.span())
    }

    /// The NUMA policy in force, as the system reports.
    pub fn policy(&self) -> Result<NumaPolicy> {
        let refused = |errno| errno::refused(Call::Classify, errno);
        numa::policy_at(self.span().start()).map_err(refused)
    }

    /// The NUMA node of the byte at `offset`, as the system reports; `None` if its page was never touched.
    pub fn node_of(&self, offset: Bytes) -> Result<Option<u32>> {
        let inside = self.span().start().checked_add(offset).filter(|_| offset < self.size);
        let beyond = || {
            let allowed = format!("below {} B", self.size.get());
            invalid(Call::Classify, "offset", format!("{} B", offset.get()), allowed)
        };
        let address = inside.ok_or_else(beyond)?;
        numa::node_at(address).map_err(|errno| errno::refused(Call::Classify, errno))
    }

    /// The live allocations of the process, oldest first.
    pub fn live() -> Vec<LiveAllocation> {
        let book = BOOK.lock();
        let live = book.live.values().map(|&Record { span, since, created_at }| LiveAllocation {
            span,
            age: since.elapsed(),
            created_at,
        });
        live.collect()
    }

    /// The totals of all allocations of the process.
    pub fn totals() -> HostTotals {
        BOOK.lock().totals
    }
}

impl Drop for HostAllocation {
    fn drop(&mut self) {
        let mut book = BOOK.lock();
        let gone = book.live.remove(&self.number).map_or(Bytes::ZERO, |record| record.span.size());
        book.totals.live = book.live.len();
        book.totals.bytes = book.totals.bytes.saturating_sub(gone);
    }
}

impl AsRef<[u8]> for HostAllocation {
    fn as_ref(&self) -> &[u8] {
        self.as_slice()
    }
}

impl AsMut<[u8]> for HostAllocation {
    fn as_mut(&mut self) -> &mut [u8] {
        self.as_mut_slice()
    }
}

#[cfg(test)]
mod tests;
