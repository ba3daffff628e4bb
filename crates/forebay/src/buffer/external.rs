//! Buffers over memory that the program supplies: vectors, boxes, raw memory with a release callback, mapped files.
//!
//! The memory is the host's replica. It does not move while the buffer lives. It is released once the buffer is dropped
//! and the copies that use it are done: at once, at the manager's next call, or when the manager is dropped.

use core::panic::Location;
use core::ptr::NonNull;

use bytemuck::Pod;
use forebay_hal::{Call, invalid};

use super::host_memory::{HostMemory, Permission, Release};
use super::memory::BufferManager;
use super::typed::{Buffer, size_of_elements};
use crate::Result;

/// # Memory of the program
///
/// These buffers have host memory from the start, so they begin as [`HostOnly`](super::BufferState::HostOnly). They
/// cannot be [resized](Buffer::resize), and their host memory cannot be compacted. On read-only memory, calls that
/// write fail or do nothing, as documented there. What the device wrote reaches the memory with [`host`](Buffer::host)
/// or [`synchronize`](Buffer::synchronize), not before.
impl BufferManager {
    /// Makes a buffer whose host memory is that of `owner`: a vector, a box, a
    /// [`HostAllocation`](crate::host::HostAllocation). Copies nothing. The owner is dropped with the buffer, once no
    /// copy uses its memory, or at once if this fails.
    ///
    /// ```
    /// use forebay::buffer::BufferManager;
    ///
    /// let memory = BufferManager::host()?;
    /// let mut buffer = memory.wrap(vec![1.0_f32; 1000])?;
    /// buffer.host_mut()?[7] = 2.0; // in the vector
    /// assert_eq!(buffer.host()?[6..8], [1.0, 2.0]);
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[track_caller]
    pub fn wrap<T: Pod, O: AsMut<[T]> + Send + 'static>(&self, owner: O) -> Result<Buffer<T>> {
        let owner = Box::into_raw(Box::new(owner));
        // SAFETY: the box is leaked, and this is the only reference to it.
        let elements = unsafe { &mut *owner }.as_mut();
        let parts = (NonNull::from(&mut *elements).cast(), elements.len());
        // SAFETY: the elements are the owner's, which stays where it is, and which nobody touches until it is dropped.
        unsafe {
            self.wrap_parts::<T>(
                parts,
                Permission::ReadWrite,
                release_of(owner),
                Location::caller(),
            )
        }
    }

    /// As `wrap`, for read-only memory: a shared slice, a constant. Calls that would write it, on either side, fail
    /// with [`Error::ReadOnly`](crate::Error::ReadOnly).
    ///
    /// ```
    /// use forebay::buffer::BufferManager;
    /// use std::sync::Arc;
    ///
    /// let weights: Arc<[f32]> = vec![0.5; 1000].into();
    /// let mut buffer = BufferManager::host()?.wrap_read_only(Arc::clone(&weights))?;
    /// assert_eq!(buffer.host()?[999], 0.5);
    /// assert!(matches!(buffer.host_mut(), Err(forebay::Error::ReadOnly { .. })));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    #[track_caller]
    pub fn wrap_read_only<T: Pod, O: AsRef<[T]> + Send + 'static>(
        &self,
        owner: O,
    ) -> Result<Buffer<T>> {
        let owner = Box::into_raw(Box::new(owner));
        // SAFETY: the box is leaked, and nobody refers to it mutably until it is dropped.
        let elements = unsafe { &*owner }.as_ref();
        let parts = (NonNull::from(elements).cast(), elements.len());
        // SAFETY: as above; plain elements behind a shared reference do not change.
        unsafe {
            self.wrap_parts::<T>(parts, Permission::Read, release_of(owner), Location::caller())
        }
    }

    /// Makes a buffer whose host memory is `length` elements at `start`. Calls `release` exactly once, on any thread:
    /// once the buffer is dropped and no copy uses the memory, or before this returns an error. If the memory is only
    /// lent, `release` may do nothing, or notify the lender.
    ///
    /// A forked child does not call it for its parent's buffers, and it is never called after the loss of a device that
    /// may still use the memory.
    ///
    /// # Safety
    ///
    /// * Until `release` is called, `start` points to `length` initialised elements, which only forebay reads and
    ///   writes.
    #[track_caller]
    pub unsafe fn wrap_raw_parts<T: Pod>(
        &self,
        start: NonNull<T>,
        length: usize,
        release: impl FnOnce() + Send + 'static,
    ) -> Result<Buffer<T>> {
        let parts = (start.cast(), length);
        // SAFETY: as the caller promises.
        unsafe {
            self.wrap_parts::<T>(
                parts,
                Permission::ReadWrite,
                Box::new(release),
                Location::caller(),
            )
        }
    }

    /// Makes a buffer whose host memory is a mapped file. Reads nothing until it is used. Fails if the file is not a
    /// whole number of elements.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// use forebay::host::FileMode;
    ///
    /// # let path = std::env::temp_dir().join(format!("forebay-example-{}", std::process::id()));
    /// # std::fs::write(&path, [1_u8, 0, 0, 0, 2, 0, 0, 0])?;
    /// let memory = BufferManager::host()?;
    /// // SAFETY: nobody else writes or shortens the file while the buffer lives.
    /// let mut buffer = unsafe { memory.map_file::<u32>(&path, FileMode::Shared) }?;
    /// assert_eq!(buffer.host()?, [1, 2]);
    /// buffer.host_mut()?[1] = 7; // in the file
    /// # drop(buffer);
    /// # assert_eq!(std::fs::read(&path)?[4], 7);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Safety
    ///
    /// * Nothing truncates the file while the buffer lives: using the missing part ends the program with a signal
    ///   (`SIGBUS`), and no check beforehand can rule that out.
    /// * Nothing else writes the file meanwhile: elements would change behind a shared reference. This includes
    ///   [`FileMode::CopyOnWrite`](crate::host::FileMode::CopyOnWrite): pages not yet written here still show the file.
    #[cfg(feature = "host")]
    #[track_caller]
    pub unsafe fn map_file<T: Pod>(
        &self,
        path: impl AsRef<std::path::Path>,
        mode: crate::host::FileMode,
    ) -> Result<Buffer<T>> {
        let (created_at, path) = (Location::caller(), path.as_ref());
        let failed = |error: std::io::Error| crate::Error::File {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        // SAFETY: as the caller promises, until the mapping is dropped, which the release does.
        let mapping = unsafe { crate::host::FileMapping::open(path, mode) }.map_err(failed)?;
        let (start, size) = (mapping.start(), mapping.size());
        let element = size_of::<T>();
        if element == 0 || !size.is_multiple_of(element) {
            let given = format!("{} with {size} B", path.display());
            let allowed = format!("a multiple of {element} B, the size of an element");
            return Err(invalid(Call::Allocate, "file", given, allowed).into());
        }
        let permission = match mapping.is_writable() {
            true => Permission::ReadWrite,
            false => Permission::Read,
        };
        let (parts, release) = ((start, size / element), Box::new(move || drop(mapping)));
        // SAFETY: so many bytes are mapped at the start until the mapping is dropped.
        unsafe { self.wrap_parts::<T>(parts, permission, release, created_at) }
    }

    /// Makes a buffer over so many elements at an address. They are released if this fails.
    ///
    /// # Safety
    ///
    /// * As for [`HostMemory::external`].
    unsafe fn wrap_parts<T: Pod>(
        &self,
        (start, length): (NonNull<u8>, usize),
        permission: Permission,
        release: Release,
        created_at: &'static Location<'static>,
    ) -> Result<Buffer<T>> {
        let whole = size_of_elements::<T>(length).map(|size| usize::try_from(size).unwrap_or(0));
        let size = *whole.as_ref().unwrap_or(&0);
        // SAFETY: as the caller promises. Made first, so that an error releases it.
        let host = unsafe { HostMemory::external(start, size, permission, release) };
        whole?;
        if !host.address().get().is_multiple_of(align_of::<T>() as u64) {
            let allowed = format!("a multiple of {} B, as the elements need", align_of::<T>());
            return Err(invalid(Call::Allocate, "start", host.address(), allowed).into());
        }
        self.enter(length, Some(host), created_at)
    }
}

/// Drops a leaked box.
fn release_of<O: Send + 'static>(owner: *mut O) -> Release {
    struct Leaked<O>(*mut O);
    // SAFETY: it owns what it points to, which may be dropped on any thread.
    unsafe impl<O: Send> Send for Leaked<O> {}
    let leaked = Leaked(owner);
    Box::new(move || {
        let Leaked(owner) = { leaked };
        // SAFETY: the pointer is from a box, and the closure is called once, after the last use of the memory.
        drop(unsafe { Box::from_raw(owner) });
    })
}

#[cfg(test)]
mod tests;
