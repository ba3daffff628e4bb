//! Pages that leave the process.

use std::os::fd::{BorrowedFd, OwnedFd};

use forebay_core::Bytes;

use crate::{PageHandle, Result};

/// Another process's memory, through file descriptors.
///
/// # Safety
///
/// An implementation promises:
///
/// * An imported page is the exported one: what is written to one is read from the other.
/// * The memory lives until the last process has released and unmapped it.
/// * A page not created shareable, a descriptor that is no page, and a size that is not the
///   page's are refused with [`Error::Invalid`](crate::Error::Invalid).
/// * The descriptor given is the caller's to close, and closes on exec.
pub unsafe trait Sharing {
    /// A descriptor another process can import.
    fn export_page(&self, page: PageHandle) -> Result<OwnedFd>;

    /// The page behind a descriptor; `size` is what its exporter created.
    fn import_page(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<PageHandle>;
}
