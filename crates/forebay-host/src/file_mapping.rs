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
    /// To read.
    ReadOnly,
    /// To read and write: what is written is in the file, for others at once, and on the disk when the system writes it.
    Shared,
    /// To read and write: what is written is in memory of this process alone, and the file stays as it is.
    CopyOnWrite,
}

/// A whole file in memory. Dropping it takes it out of memory again.
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
    /// Maps all of the file at `path`, from its first byte to its last now.
    ///
    /// # Safety
    ///
    /// * While the mapping lives nobody makes the file shorter: a use of what is gone ends the process with a signal
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

    /// How many bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the bytes may be written.
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
