//! A `std::function<bool(cudaStream_t)>` of libstdc++, which selects the streams of a capture.
//!
//! ```text
//!   0   what it calls, or where that lies     16 bytes
//!   16  the manager: copies and destroys      null where it is empty
//!   24  the invoker: (const storage&, cudaStream_t&&) -> bool
//! ```
//!
//! It is not trivially copyable, so the caller passes the address of one that it destroys. It is moved out of as
//! in C++: the storage is copied, and the caller's function is left empty.

use core::ffi::{c_int, c_void};

type Storage = [*mut c_void; 2];
type Manager = unsafe extern "C-unwind" fn(*mut Storage, *const Storage, c_int) -> bool;
type Invoker = unsafe extern "C-unwind" fn(*const Storage, *mut *mut c_void) -> bool;

/// The manager's operation that destroys the stored function.
const DESTROY: c_int = 3;

/// A function that C++ has, or none.
#[repr(C)]
#[derive(Debug)]
pub struct Function {
    storage: Storage,
    manager: Option<Manager>,
    invoker: Option<Invoker>,
}

/// A C++ function that this crate owns.
#[derive(Debug)]
pub(super) struct Filter(Function);

// SAFETY: the function is PyTorch's, which itself calls it from whichever thread allocates. It is never
// called by two threads at once: the lock of the captures is held meanwhile.
unsafe impl Send for Filter {}

impl Filter {
    /// Takes a function out of where C++ has it. `None` where it is null or empty.
    ///
    /// # Safety
    ///
    /// * `from` is null, or a live `std::function<bool(cudaStream_t)>` of libstdc++ that nobody else
    ///   uses meanwhile.
    pub(super) unsafe fn take(from: *mut Function) -> Option<Self> {
        // SAFETY: as the caller promised.
        let from = unsafe { from.as_mut() }?;
        // An empty one is without these two.
        let (manager, invoker) = (from.manager.take()?, from.invoker.take()?);
        let storage = from.storage;
        Some(Self(Function { storage, manager: Some(manager), invoker: Some(invoker) }))
    }

    /// Whether the function accepts the stream. Its exceptions pass through.
    pub(super) fn admits(&self, stream: *mut c_void) -> bool {
        let mut stream = stream;
        let Some(invoker) = self.0.invoker else { return false };
        // SAFETY: the storage is as the function's maker left it, which is never moved out of or
        // destroyed before this is dropped; the invoker is the one that goes with it.
        unsafe { invoker(&raw const self.0.storage, &raw mut stream) }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if let Some(manager) = self.0.manager.take() {
            let storage = &raw mut self.0.storage;
            // SAFETY: as in `admits`; it is destroyed once, here.
            unsafe { manager(storage, storage.cast_const(), DESTROY) };
        }
    }
}
