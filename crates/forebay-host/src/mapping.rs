//! Address ranges and memory files: a small interface over the system's unsafe calls.
//!
//! ```text
//!   AddressRange   |..........[file A]......[file B][file A]......|   reserved, nothing behind dots
//!   MemoryFile          A ────────┴────────────────────┘              memory with no address of its own
//! ```
//!
//! The host device maps its pages with these, and the simulated device stores its memory in them.

use core::ptr::{self, NonNull};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::Access;
use rustix::fs::{FallocateFlags, MemfdFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

/// The processor's page size, the unit of mappings.
pub fn system_page() -> Alignment {
    // Every system reports a power of two; 4 KiB stands in for one that does not.
    Alignment::new(rustix::param::page_size() as u64).unwrap_or(Alignment::HOST_PAGE)
}

/// The largest file this process may create (`ulimit -f`), including memory files.
pub fn largest_file() -> Bytes {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
    limit.map_or(Bytes::MAX, Bytes::new)
}

/// The kind of pages in a memory file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PageKind {
    /// The processor's own pages, usually 4 KiB.
    #[default]
    System,
    /// Explicit 2 MiB huge pages, from the pool that the administrator set aside.
    Huge2M,
    /// Explicit 1 GiB huge pages, from the pool that the administrator set aside.
    Huge1G,
}

impl PageKind {
    /// The granularity of sizes and addresses.
    pub fn alignment(self) -> Alignment {
        match self {
            Self::System => system_page(),
            Self::Huge2M => Alignment::DEVICE_PAGE,
            Self::Huge1G => Alignment::GIB,
        }
    }
}

/// Memory without an address: it can be mapped in several ranges at once, and its descriptor can be passed to another
/// process.
#[derive(Debug)]
pub struct MemoryFile {
    descriptor: OwnedFd,
    size: Bytes,
}

impl MemoryFile {
    /// Creates a file of `size` zeroed bytes, which the system backs when they are touched.
    ///
    /// Sealed against growing and shrinking, so that no holder of the descriptor can pull memory from under a mapping.
    /// Explicit huge pages are taken at once: the system refuses here instead of raising a signal at the first touch.
    pub fn create(size: Bytes, grain: PageKind) -> Result<Self, Errno> {
        let file = Self::sparse(size, grain)?;
        if grain != PageKind::System {
            file.back(Bytes::ZERO, size)?;
        }
        Ok(file)
    }

    /// Like [`create`](Self::create), but takes nothing from the system yet, whatever the page kind.
    ///
    /// With explicit huge pages, call [`back`](Self::back) before the first touch: if the pool is empty by then, the
    /// touch raises a signal. Returns `EFBIG` for more than [`largest_file`], because growing a file past that limit
    /// raises a signal too.
    pub fn sparse(size: Bytes, grain: PageKind) -> Result<Self, Errno> {
        if size > largest_file() {
            return Err(Errno::FBIG);
        }
        let huge = match grain {
            PageKind::System => MemfdFlags::empty(),
            PageKind::Huge2M => MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB,
            PageKind::Huge1G => MemfdFlags::HUGETLB | MemfdFlags::HUGE_1GB,
        };
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | huge;
        let descriptor = rustix::fs::memfd_create(c"forebay", flags)?;
        rustix::fs::ftruncate(&descriptor, size.get())?;
        rustix::fs::fcntl_add_seals(
            &descriptor,
            SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
        )?;
        Ok(Self { descriptor, size })
    }

    /// Takes memory from the system for `size` bytes from `offset` now, not at the first touch.
    pub fn back(&self, offset: Bytes, size: Bytes) -> Result<(), Errno> {
        rustix::fs::fallocate(&self.descriptor, FallocateFlags::empty(), offset.get(), size.get())
    }

    /// Returns the memory of `size` bytes from `offset` to the system; they then read as zeros.
    pub fn punch(&self, offset: Bytes, size: Bytes) -> Result<(), Errno> {
        rustix::fs::fallocate(
            &self.descriptor,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset.get(),
            size.get(),
        )
    }

    /// Opens the memory behind a descriptor that another process exported. Returns `EINVAL` unless it is sealed in
    /// size, writable, and `size` bytes long.
    ///
    /// Takes explicit huge pages that the exporter has not taken, as [`create`](Self::create) does; returns `ENOSPC` if
    /// the pool is empty.
    pub fn import(descriptor: BorrowedFd<'_>, size: Bytes) -> Result<Self, Errno> {
        let seals = rustix::fs::fcntl_get_seals(descriptor).map_err(|_| Errno::INVAL)?;
        let found = rustix::fs::fstat(descriptor)?.st_size;
        let sealed = seals.contains(SealFlags::GROW | SealFlags::SHRINK);
        // A write seal or a descriptor opened for reading would fail later, when it is mapped.
        let writable = !seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE)
            && rustix::fs::fcntl_getfl(descriptor)?.contains(OFlags::RDWR);
        if !sealed || !writable || u64::try_from(found) != Ok(size.get()) {
            return Err(Errno::INVAL);
        }
        let file = Self { descriptor: rustix::io::fcntl_dupfd_cloexec(descriptor, 0)?, size };
        if file.alignment()? != system_page() {
            file.back(Bytes::ZERO, size)?;
        }
        Ok(file)
    }

    /// The page size that the system reports for it: the granularity of the addresses and sizes it is mapped at.
    pub fn alignment(&self) -> Result<Alignment, Errno> {
        let system = rustix::fs::fstatfs(&self.descriptor)?;
        // The magic number of the file system of huge pages. Its block is the huge page; that of
        // ordinary memory files may be larger than what they map in, and says nothing.
        const HUGE_PAGE_FILES: u64 = 0x9584_58f6;
        let magic = u64::try_from(system.f_type).unwrap_or_default() & 0xffff_ffff;
        if magic != HUGE_PAGE_FILES {
            return Ok(system_page());
        }
        let block = u64::try_from(system.f_bsize).map_err(|_| Errno::INVAL)?;
        Alignment::new(block).map_err(|_| Errno::INVAL)
    }

    /// The size in bytes.
    pub fn size(&self) -> Bytes {
        self.size
    }

    /// Whether `other` is another descriptor of the same memory.
    pub fn is_same_memory(&self, other: &Self) -> bool {
        let name = |file: &Self| {
            rustix::fs::fstat(&file.descriptor).map(|found| (found.st_dev, found.st_ino)).ok()
        };
        name(self).is_some_and(|mine| Some(mine) == name(other))
    }

    /// Returns a descriptor of the same memory, for another process.
    pub fn export(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(&self.descriptor, 0)
    }
}

impl AsFd for MemoryFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// A reserved range of host addresses. Dropping it unmaps everything in it.
#[derive(Debug)]
pub struct AddressRange {
    span: Span,
}

impl AddressRange {
    /// Reserves `size` bytes of addresses (rounded up to the system's page) at a multiple of `alignment`. Takes no
    /// memory.
    pub fn reserve(size: Bytes, alignment: Alignment) -> Result<Self, Errno> {
        let alignment = alignment.max(system_page());
        let size = size.checked_align_up(system_page()).ok_or(Errno::NOMEM)?;
        // The system aligns to its page alone: reserve more, and give the ends back.
        let slack = alignment.bytes().saturating_sub(system_page().bytes());
        let whole = size.checked_add(slack).ok_or(Errno::NOMEM)?;
        let length = whole.to_usize().map_err(|_| Errno::NOMEM)?;
        // SAFETY: no address is asked for, so the system picks one where nothing is mapped; the
        // new mapping is inaccessible and known to nobody.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                length,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let whole = Span::new(Address::of_pointer(start), whole).map_err(|_| Errno::NOMEM)?;
        let aligned = whole.start().checked_align_up(alignment).ok_or(Errno::NOMEM)?;
        let span = Span::new(aligned, size).map_err(|_| Errno::NOMEM)?;
        for (from, to) in [(whole.start(), span.start()), (span.end(), whole.end())] {
            let rest = Span::new(from, to.offset_from(from).unwrap_or_default());
            release(rest.unwrap_or_default());
        }
        Ok(Self { span })
    }

    /// The addresses.
    pub fn span(&self) -> Span {
        self.span
    }

    /// The pointer to byte `offset`; `None` past the end.
    pub fn pointer(&self, offset: Bytes) -> Option<NonNull<u8>> {
        if offset > self.span.size() {
            return None;
        }
        NonNull::new(pointer(self.span.start().checked_add(offset)?))
    }

    /// Maps all of `file` at `offset`, with `access`.
    ///
    /// # Safety
    ///
    /// * Nothing uses the addresses it covers: the call replaces whatever was mapped there.
    pub unsafe fn place(
        &self,
        offset: Bytes,
        file: &MemoryFile,
        access: Access,
    ) -> Result<(), Errno> {
        // SAFETY: as the caller promised.
        unsafe { self.place_part(offset, file, (Bytes::ZERO, file.size()), access) }
    }

    /// Maps a part of `file` at `offset`, with `access`. `part` holds its start and its size.
    ///
    /// # Safety
    ///
    /// * Nothing uses the addresses it covers: the call replaces whatever was mapped there.
    pub unsafe fn place_part(
        &self,
        offset: Bytes,
        file: &MemoryFile,
        part: (Bytes, Bytes),
        access: Access,
    ) -> Result<(), Errno> {
        let (from, size) = part;
        // Beyond the file a touch would be answered with a signal.
        if from.checked_add(size).is_none_or(|end| end > file.size()) {
            return Err(Errno::INVAL);
        }
        let span = self.part(offset, size)?;
        // SAFETY: the span lies in this range, which this process reserved and the caller says
        // nobody uses, so MAP_FIXED replaces nothing that is not ours.
        unsafe {
            rustix::mm::mmap(
                pointer(span.start()).cast(),
                span.size().to_usize().map_err(|_| Errno::NOMEM)?,
                protection(access),
                MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED,
                file,
                from.get(),
            )
        }?;
        Ok(())
    }

    /// Maps zeroed private memory at `offset`, with `access`.
    ///
    /// # Safety
    ///
    /// * Nothing uses the addresses it covers: the call replaces whatever was mapped there.
    pub unsafe fn commit(&self, offset: Bytes, size: Bytes, access: Access) -> Result<(), Errno> {
        // SAFETY: as the caller promised.
        unsafe { self.anonymous(offset, size, protection(access)) }
    }

    /// Unmaps `size` bytes from `offset`; the addresses stay reserved.
    ///
    /// # Safety
    ///
    /// * Nothing uses the addresses from now on.
    pub unsafe fn clear(&self, offset: Bytes, size: Bytes) -> Result<(), Errno> {
        // SAFETY: as the caller promised.
        unsafe { self.anonymous(offset, size, ProtFlags::empty()) }
    }

    /// Sets the access to `size` bytes from `offset`.
    ///
    /// # Safety
    ///
    /// * Nothing uses the addresses in a way that `access` takes away.
    pub unsafe fn protect(&self, offset: Bytes, size: Bytes, access: Access) -> Result<(), Errno> {
        let span = self.part(offset, size)?;
        let flags = match access {
            Access::ReadWrite => MprotectFlags::READ | MprotectFlags::WRITE,
            Access::Read => MprotectFlags::READ,
            _ => MprotectFlags::empty(),
        };
        // SAFETY: the span lies in this range, and the caller keeps the promise above.
        unsafe {
            rustix::mm::mprotect(
                pointer(span.start()).cast(),
                span.size().to_usize().map_err(|_| Errno::NOMEM)?,
                flags,
            )
        }
    }

    /// # Safety
    ///
    /// * Nothing uses the addresses it covers.
    unsafe fn anonymous(&self, offset: Bytes, size: Bytes, flags: ProtFlags) -> Result<(), Errno> {
        let span = self.part(offset, size)?;
        // SAFETY: the span lies in this range, which this process reserved and the caller says
        // nobody uses, so MAP_FIXED replaces nothing that is not ours.
        unsafe {
            rustix::mm::mmap_anonymous(
                pointer(span.start()).cast(),
                span.size().to_usize().map_err(|_| Errno::NOMEM)?,
                flags,
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        }?;
        Ok(())
    }

    /// The part of the range `size` bytes from `offset`; `EINVAL` where it is not a part.
    fn part(&self, offset: Bytes, size: Bytes) -> Result<Span, Errno> {
        let start = self.span.start().checked_add(offset).ok_or(Errno::INVAL)?;
        let part = Span::new(start, size).map_err(|_| Errno::INVAL)?;
        if part.is_empty() || !self.span.contains_span(part) {
            return Err(Errno::INVAL);
        }
        Ok(part)
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        release(self.span);
    }
}

/// The host pointer of an address that came from the system.
pub(crate) fn pointer(address: Address) -> *mut u8 {
    // On a 32-bit system every address the system gave fits; others become null and are refused.
    ptr::with_exposed_provenance_mut(usize::try_from(address.get()).unwrap_or(0))
}

fn protection(access: Access) -> ProtFlags {
    match access {
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
        Access::Read => ProtFlags::READ,
        _ => ProtFlags::empty(),
    }
}

/// Unmaps a span that this module mapped and nobody uses any more.
fn release(span: Span) {
    let Ok(length) = span.size().to_usize() else { return };
    if length == 0 {
        return;
    }
    // SAFETY: only called with spans this module reserved, when their owner goes or gives up its
    // ends. The system refuses only what is not page-aligned, which these are.
    let _ = unsafe { rustix::mm::munmap(pointer(span.start()).cast(), length) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: Bytes = Bytes::mib(2);

    #[test]
    fn one_file_at_two_places_is_one_memory() {
        let range = AddressRange::reserve(Bytes::gib(64), Alignment::DEVICE_PAGE).unwrap();
        assert!(range.span().start().is_aligned_to(Alignment::DEVICE_PAGE));
        let file = MemoryFile::create(PAGE, PageKind::System).unwrap();
        let far = Bytes::gib(40);
        for offset in [Bytes::ZERO, far] {
            // SAFETY: the range is this test's own.
            unsafe { range.place(offset, &file, Access::ReadWrite) }.unwrap();
        }
        let (here, there) = (range.pointer(Bytes::ZERO).unwrap(), range.pointer(far).unwrap());
        // SAFETY: both were just mapped for reading and writing.
        unsafe { here.add(77).write_volatile(42) };
        // SAFETY: as above.
        assert_eq!(unsafe { there.add(77).read_volatile() }, 42);
    }

    #[test]
    fn an_imported_file_is_the_exported_one_and_no_other() {
        let file = MemoryFile::create(PAGE, PageKind::System).unwrap();
        let sent = file.export().unwrap();
        assert!(MemoryFile::import(sent.as_fd(), PAGE).is_ok());
        assert_eq!(MemoryFile::import(sent.as_fd(), Bytes::mib(4)).unwrap_err(), Errno::INVAL);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&sent));
        let readable = std::fs::File::open(path).unwrap();
        assert_eq!(MemoryFile::import(readable.as_fd(), PAGE).unwrap_err(), Errno::INVAL);
        let ordinary = std::fs::File::open("/proc/self/exe").unwrap();
        assert_eq!(MemoryFile::import(ordinary.as_fd(), PAGE).unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn huge_pages_that_are_not_there_are_an_error_before_they_are_touched() {
        let two = Bytes::mib(2);
        let file = match MemoryFile::sparse(two, PageKind::Huge2M) {
            Ok(file) => file,
            Err(errno) => {
                return println!("skipped: the system has no huge pages of 2 MiB: {errno}");
            }
        };
        match MemoryFile::import(file.as_fd(), two) {
            // Of 512 B each: the page is there, and stays the file's.
            Ok(file) => assert_eq!(rustix::fs::fstat(&file.descriptor).unwrap().st_blocks, 4096),
            Err(errno) => assert_eq!(errno, Errno::NOSPC),
        }
    }

    #[test]
    fn a_part_given_back_reads_as_zeros_and_the_others_stay() {
        let range = AddressRange::reserve(Bytes::mib(4), Alignment::DEVICE_PAGE).unwrap();
        let file = MemoryFile::sparse(Bytes::new(1 << 62), PageKind::System).unwrap();
        assert_eq!(file.alignment().unwrap(), system_page());
        let far = Bytes::new(1 << 61);
        for (offset, from) in [(Bytes::ZERO, far), (PAGE, Bytes::ZERO)] {
            // SAFETY: the range is this test's own.
            unsafe { range.place_part(offset, &file, (from, PAGE), Access::ReadWrite) }.unwrap();
            let byte = range.pointer(offset).unwrap();
            // SAFETY: just mapped for reading and writing.
            unsafe { byte.write_volatile(7) };
        }
        file.punch(far, PAGE).unwrap();
        let bytes = [Bytes::ZERO, PAGE].map(|offset| {
            // SAFETY: both are mapped and readable.
            unsafe { range.pointer(offset).unwrap().read_volatile() }
        });
        assert_eq!(bytes, [0, 7]);
        let end = Bytes::new((1 << 62) - 4096);
        // SAFETY: the range is this test's own.
        let beyond = unsafe { range.place_part(PAGE, &file, (end, PAGE), Access::Read) };
        assert_eq!(beyond.unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let range = AddressRange::reserve(PAGE, Alignment::ONE).unwrap();
        let file = MemoryFile::create(PAGE, PageKind::System).unwrap();
        // SAFETY: the range is this test's own.
        let beyond = unsafe { range.place(Bytes::new(4096), &file, Access::Read) };
        assert_eq!(beyond.unwrap_err(), Errno::INVAL);
        assert_eq!(range.pointer(Bytes::mib(3)), None);
        assert!(AddressRange::reserve(Bytes::MAX, Alignment::ONE).is_err());
        assert!(AddressRange::reserve(PAGE, Alignment::new(1 << 63).unwrap()).is_err());
    }
}
