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
/// * An imported page shares the exported page's memory: a write through one is visible in the other.
/// * The memory lives until the last process has released and unmapped it.
/// * A page not created shareable, a descriptor that is not a page, and a size other than the page's are refused with
///   [`Error::Invalid`](crate::Error::Invalid).
/// * The caller closes the returned descriptor, which has close-on-exec set.
pub unsafe trait Sharing {
    /// Returns a descriptor that another process can import.
    fn export_page(&self, page: PageHandle) -> Result<OwnedFd>;

    /// Returns the page behind a descriptor; `size` is the size its exporter created.
    fn import_page(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<PageHandle>;
}
