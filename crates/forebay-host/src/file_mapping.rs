//! Files mapped into memory.

use core::ptr::{self, NonNull};
use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use rustix::mm::{MapFlags, ProtFlags};

/// How a file is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileMode {
    /// Read-only.
    ReadOnly,
    /// Readable and writable. Writes go to the file, are visible to others at once, and reach the disk later.
    Shared,
    /// Readable and writable. Writes stay in this process's memory, and the file is unchanged.
    CopyOnWrite,
}

/// A whole file mapped into memory, unmapped on drop.
#[derive(Debug)]
pub struct FileMapping {
    start: NonNull<u8>,
    size: usize,
    mode: FileMode,
}

// SAFETY: the mapping is the process's, not a thread's.
unsafe impl Send for FileMapping {}
// SAFETY: shared access tells where it is, and touches nothing.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the whole file at `path`, at its current size.
    ///
    /// # Safety
    ///
    /// * While the mapping lives, the file is not truncated: using bytes that are gone ends the process with a signal
    ///   (`SIGBUS`).
    /// * While code refers to the mapped bytes, nothing else writes the file.
    pub unsafe fn open(path: &Path, mode: FileMode) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(mode == FileMode::Shared).open(path)?;
        let size = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if size == 0 {
            // The system maps no empty files.
            return Ok(Self { start: NonNull::<u128>::dangling().cast(), size, mode });
        }
        let (protection, flags) = match mode {
            FileMode::ReadOnly => (ProtFlags::READ, MapFlags::SHARED),
            FileMode::Shared => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED),
            FileMode::CopyOnWrite => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE),
        };
        // SAFETY: no address is asked for, so the system picks one where nothing is mapped. The caller keeps the file
        // as long as it is.
        let start =
            unsafe { rustix::mm::mmap(ptr::null_mut(), size, protection, flags, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Self { start, size, mode })
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// The size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the bytes are writable.
    pub fn is_writable(&self) -> bool {
        self.mode != FileMode::ReadOnly
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        if self.size != 0 {
            // SAFETY: mapped by `open`, with this size; nobody uses it any more, as the owner drops it.
            let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.size) };
        }
    }
}
