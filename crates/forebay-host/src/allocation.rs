//! Host memory by itself, without a device: aligned, of huge pages, on NUMA nodes, and able to tell
//! what it got.
//!
//! ```text
//!   |unmapped|<------------- HostAllocation, whole pages ------------->|unmapped|
//! ```
//!
//! One process-wide lock guards the list of live allocations. Each is a mapping of its own, which
//! takes microseconds to make: take large memory from here, small memory from a pool or the heap.

use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeMap;
use std::time::Instant;

use forebay_core::{Alignment, Bytes, Span};
use forebay_hal::{Call, Error, MemoryInfo, Result, invalid};
use forebay_sync::fork::ForkSafeMutex;

use crate::backing::{Backing, Refusal};
use crate::mapping::pointer;
use crate::prefault::prefault;
use crate::settings::Settings;
use crate::system::{Reading, Residence, System};
use crate::{HostOptions, NumaPolicy, errno, numa};

/// Zeroed memory of the host, which is given back when this is dropped.
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
    /// How long ago it was made.
    pub age: Duration,
    /// Where in the program it was made.
    pub created_at: &'static Location<'static>,
}

/// What all allocations of the process add up to.
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
    /// `size` zeroed bytes from a multiple of `alignment`, of the pages and on the nodes that
    /// `options` ask for. Fails where the system does not grant them, and says what would help.
    ///
    /// [`HugePages::Transparent`](crate::HugePages::Transparent) is a wish: ask
    /// [`residence`](Self::residence) what became of it.
    #[track_caller]
    pub fn new(size: Bytes, alignment: Alignment, options: &HostOptions) -> Result<Self> {
        let created_at = Location::caller();
        let settings = Settings::resolve(options, &System::here())?;
        let (call, requested) = (Call::Allocate, size);
        let figures = || {
            let free = settings.system_free(&System::here()).min(settings.limit);
            MemoryInfo { total: settings.limit, free, ..MemoryInfo::default() }
        };
        let too_much = || {
            let MemoryInfo { free, total, .. } = figures();
            Error::OutOfMemory { call, requested, free, total }
        };
        let whole = size.max(Bytes::new(1)).checked_align_up(settings.unit());
        let whole = whole.filter(|&whole| whole <= settings.limit).ok_or_else(too_much)?;
        let backing =
            Backing::create_apart(whole, alignment, &settings).map_err(
                |refusal| match refusal {
                    Refusal::Memory(errno) => errno::no_memory(call, requested, figures(), errno),
                    Refusal::Policy(errno) => settings.numa.refused(call, errno),
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

    /// Memory for `count` elements of `T`, aligned for them. Fails if they have more bytes than there
    /// are addresses.
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

    /// How many bytes were asked for.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// The addresses, whole pages: what lies behind [`size`](Self::size) is there, but nobody's.
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

    /// The bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed mutably.
        unsafe { core::slice::from_raw_parts_mut(pointer(self.span().start()), self.length()) }
    }

    /// Touches every page, so that the system makes all of them now: with up to `threads` threads at
    /// once, this one among them. What the memory holds does not change.
    pub fn touch(&mut self, threads: usize) {
        prefault(self.as_mut_slice(), threads);
    }

    /// How much of it is there, and in which pages, as the system tells.
    pub fn residence(&self) -> Reading<Residence> {
        System::here().residence(self.span())
    }

    /// The NUMA policy in force, as the system tells.
    pub fn policy(&self) -> Result<NumaPolicy> {
        let refused = |errno| errno::refused(Call::Classify, errno);
        numa::policy_at(self.span().start()).map_err(refused)
    }

    /// The NUMA node that the byte at `offset` lies on, as the system tells; `None` where nobody has
    /// touched its page yet.
    pub fn node_of(&self, offset: Bytes) -> Result<Option<u32>> {
        let inside = self.span().start().checked_add(offset).filter(|_| offset < self.size);
        let beyond = || {
            let allowed = format!("below {} B", self.size.get());
            invalid(Call::Classify, "offset", format!("{} B", offset.get()), allowed)
        };
        let address = inside.ok_or_else(beyond)?;
        numa::node_at(address).map_err(|errno| errno::refused(Call::Classify, errno))
    }

    /// The live allocations of the process, the oldest first.
    pub fn live() -> Vec<LiveAllocation> {
        let book = BOOK.lock();
        let live = book.live.values().map(|&Record { span, since, created_at }| LiveAllocation {
            span,
            age: since.elapsed(),
            created_at,
        });
        live.collect()
    }

    /// What all allocations of the process add up to.
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
