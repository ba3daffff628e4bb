//! Storage for the simulated device's memory.

use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{Access, Call, Error, MemoryInfo};
use forebay_host::mapping::{AddressRange, MemoryFile, PageKind};
use rustix::io::Errno;

use crate::checker::Shadow;

/// Where a store's bytes are.
#[derive(Debug)]
enum Storage {
    /// Nowhere: phantom memory.
    Nowhere,
    /// In addresses of the store's own.
    Own(AddressRange),
    /// In memory that its owner registered, and promised to keep until it is unregistered.
    Registered(Span),
}

/// The bytes of an allocation or page.
///
/// Operations under way hold their stores, so a program that frees memory too early gets a finding
/// and not a crash.
#[derive(Debug)]
pub(crate) struct Store {
    /// Where the simulation itself reads and writes.
    home: Storage,
    /// What can be mapped elsewhere or leave the process; only pages have it.
    file: Option<MemoryFile>,
    /// What was done to the bytes. It lives as long as anything that can reach them.
    shadow: Mutex<Shadow>,
}

impl Store {
    fn at(home: Storage, file: Option<MemoryFile>) -> Arc<Self> {
        Arc::new(Self { home, file, shadow: Mutex::default() })
    }

    /// Memory that keeps nothing.
    pub(crate) fn phantom() -> Arc<Self> {
        Self::at(Storage::Nowhere, None)
    }

    /// Memory that its owner keeps.
    ///
    /// # Safety
    ///
    /// * The span is mapped until the store is gone: operations may hold it a while longer than
    ///   the device does, and then do not use it.
    pub(crate) unsafe fn registered(span: Span) -> Arc<Self> {
        Self::at(Storage::Registered(span), None)
    }

    /// Memory that the host can read and write at its own address too.
    pub(crate) fn plain(size: Bytes, alignment: Alignment) -> Result<Arc<Self>, Errno> {
        let home = AddressRange::reserve(size, alignment)?;
        // SAFETY: the range was reserved a line above and is known to nobody.
        unsafe { home.commit(Bytes::ZERO, home.span().size(), Access::ReadWrite) }?;
        Ok(Self::at(Storage::Own(home), None))
    }

    /// A page of `size` fresh bytes.
    pub(crate) fn page(size: Bytes) -> Result<Arc<Self>, Errno> {
        Self::of_file(MemoryFile::create(size, PageKind::System)?)
    }

    /// A page whose bytes are those of `file`.
    pub(crate) fn of_file(file: MemoryFile) -> Result<Arc<Self>, Errno> {
        let home = AddressRange::reserve(file.size(), Alignment::HOST_PAGE)?;
        // SAFETY: the range was reserved a line above and is known to nobody.
        unsafe { home.place(Bytes::ZERO, &file, Access::ReadWrite) }?;
        Ok(Self::at(Storage::Own(home), Some(file)))
    }

    /// What was done to the bytes. The engine's lock is held by whoever asks, so this one is free.
    pub(crate) fn shadow(&self) -> MutexGuard<'_, Shadow> {
        self.shadow.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn file(&self) -> Option<&MemoryFile> {
        self.file.as_ref()
    }

    /// The address of the first byte where the host sees it; null for phantom memory.
    pub(crate) fn address(&self) -> Address {
        match &self.home {
            Storage::Nowhere => Address::NULL,
            Storage::Own(range) => range.span().start(),
            Storage::Registered(span) => span.start(),
        }
    }

    /// The pointer to `offset`; `None` for phantom memory and past the end.
    pub(crate) fn pointer(&self, offset: Bytes) -> Option<NonNull<u8>> {
        match &self.home {
            Storage::Nowhere => None,
            Storage::Own(range) => range.pointer(offset),
            Storage::Registered(span) => {
                let address = span.start().checked_add(offset)?;
                let pointer =
                    ptr::with_exposed_provenance_mut(usize::try_from(address.get()).ok()?);
                NonNull::new(pointer).filter(|_| offset <= span.size())
            }
        }
    }
}

/// The error for a call that the system under the simulation refused.
pub(crate) fn system_refused(
    call: Call,
    requested: Bytes,
    info: MemoryInfo,
    errno: Errno,
) -> Error {
    let cure = match errno {
        Errno::NOMEM => return info.out_of_memory(call, requested),
        Errno::MFILE | Errno::NFILE => {
            "every page is an open file: raise the limit on open files (ulimit -n)"
        }
        Errno::FBIG => "every page is a memory file: raise the limit on file sizes (ulimit -f)",
        _ => "the system under the simulation refused",
    };
    Error::Transient { call, reason: format!("{requested} of memory: {errno}: {cure}").into() }
}
