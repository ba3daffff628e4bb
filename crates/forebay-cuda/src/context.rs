//! A context of the driver, and calls in it.
//!
//! A context is what the driver keeps for one device in this process. It is never released, even when devices are opened
//! and dropped.

use core::ffi::{c_int, c_void};
use core::marker::PhantomData;
use core::sync::atomic::AtomicU64;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use forebay_core::{Address, Bytes, DeviceOrdinal, Span};
use forebay_sync::lock;

use crate::space::Space;
use crate::sys::values::{capture_mode, memory_type, pointer};
use crate::sys::{DriverError, RawContext, Symbols};
use crate::vendor::Vendor;

/// Attempts to restore the caller's context. We cannot report a failure here, so retry transient ones. Only a driver
/// that is shutting down fails for good.
const POPS: usize = 3;

/// A context of a device.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) vendor: &'static Vendor,
    pub(crate) table: &'static Symbols,
    pub(crate) created: &'static Created,
    pub(crate) raw: RawContext,
    pub(crate) ordinal: DeviceOrdinal,
    /// The device as the driver names it.
    pub(crate) device: c_int,
    pub(crate) is_primary: bool,
    /// Whether kernels use registered memory by the host's address, once it was asked.
    pub(crate) registered_for_kernels: OnceLock<bool>,
    /// Peers made reachable from here, and by how many devices.
    pub(crate) peers: Mutex<BTreeMap<u32, PeerUse>>,
    /// The address books of all devices opened here, those of dropped devices until their memory is freed.
    pub(crate) spaces: Mutex<Vec<Weak<Mutex<Space>>>>,
    /// Memory that this crate allocated for its own pools, which no caller may copy to.
    pub(crate) inner: Mutex<Vec<Span>>,
}

/// How many streams and events a driver has created in this process, in all contexts.
#[derive(Debug, Default)]
pub(crate) struct Created {
    pub(crate) streams: AtomicU64,
    pub(crate) events: AtomicU64,
}

/// How a peer came to be reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerUse {
    /// How many devices have asked for it.
    pub(crate) count: u32,
    /// Whether another library had enabled it before, and may still rely on it.
    pub(crate) was_enabled: bool,
}

/// What the driver knows about an address, whichever library allocated the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverPointer {
    /// The allocation that contains it.
    pub span: Span,
    /// Whether that is host memory, pinned or registered.
    pub on_host: bool,
    /// Whether it is managed memory.
    pub managed: bool,
    /// The device it belongs to.
    pub device: DeviceOrdinal,
}

impl Context {
    /// The address book of a new device.
    pub(crate) fn new_space(&self) -> Arc<Mutex<Space>> {
        let space = Arc::default();
        let mut spaces = lock(&self.spaces);
        spaces.retain(|space: &Weak<Mutex<Space>>| space.strong_count() > 0);
        spaces.push(Arc::downgrade(&space));
        space
    }

    /// Notes memory that a pool allocated.
    pub(crate) fn note_inner(&self, start: u64, size: u64) {
        if let Ok(span) = Span::new(Address::new(start), Bytes::new(size)) {
            lock(&self.inner).push(span);
        }
    }

    /// Whether a device opened here, or this context itself, has memory in `span`.
    pub(crate) fn is_ours(&self, span: Span) -> bool {
        if lock(&self.inner).iter().any(|inner| inner.overlaps(span)) {
            return true;
        }
        let spaces: Vec<_> = lock(&self.spaces).iter().filter_map(Weak::upgrade).collect();
        spaces.iter().any(|space| lock(space).book.overlapping(span).is_some())
    }

    /// The driver's functions, which work on whatever context is current.
    pub(crate) const fn table(&self) -> &'static Symbols {
        self.table
    }

    /// Makes this the calling thread's context while the value lives.
    pub(crate) fn enter(&self) -> Result<Current, DriverError> {
        let table = self.table;
        let mut before = RawContext::NULL;
        // SAFETY: the context is written to a place of our own.
        unsafe { table.context_get_current(&raw mut before) }?;
        // Most callers work in the primary context already: then there is nothing to undo.
        let pushed = before != self.raw;
        if pushed {
            // SAFETY: the context was retained for the rest of the process, or is live for as long
            // by the promise of who gave it.
            unsafe { table.context_push(self.raw) }?;
        }
        Ok(Current { table, pushed, _of_this_thread: PhantomData })
    }

    /// Makes a call in this context, and leaves the caller's as it was.
    pub(crate) fn call<T>(
        &self,
        function: impl FnOnce(&Symbols) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        let current = self.enter()?;
        function(current.table)
    }

    /// Waits for all work in this context, including other libraries'.
    pub(crate) fn synchronize(&self) -> Result<(), DriverError> {
        // SAFETY: it has no arguments, and this context is current.
        self.call(|table| unsafe { table.context_synchronize() })
    }

    /// An attribute of the device; 0 if the driver does not know it.
    pub(crate) fn attribute(&self, number: u32) -> c_int {
        self.known_attribute(number).unwrap_or(0)
    }

    /// An attribute of the device, if the driver knows it.
    pub(crate) fn known_attribute(&self, number: u32) -> Option<c_int> {
        let mut value = 0;
        // SAFETY: the value is written to a place of our own.
        let told = self.call(|table| unsafe {
            table.device_get_attribute(&raw mut value, number, self.device)
        });
        told.ok().map(|()| value)
    }

    /// What the driver knows about `address`, whichever library allocated the memory; `None` if it knows nothing.
    pub(crate) fn pointer(&self, address: Address) -> Option<DriverPointer> {
        let (mut kind, mut managed, mut ordinal) = (0_u32, 0_u32, 0_i32);
        let (mut start, mut size) = (0_u64, 0_u64);
        let attributes = [
            pointer::MEMORY_TYPE,
            pointer::IS_MANAGED,
            pointer::DEVICE_ORDINAL,
            pointer::RANGE_START,
            pointer::RANGE_SIZE,
        ];
        let values: [*mut c_void; 5] = [
            (&raw mut kind).cast(),
            (&raw mut managed).cast(),
            (&raw mut ordinal).cast(),
            (&raw mut start).cast(),
            (&raw mut size).cast(),
        ];
        // SAFETY: five attributes and five places of our own, each at least as wide as what the
        // driver writes there (flags are written as one byte or four).
        let outcome = self.call(|table| unsafe {
            table.pointer_get_attributes(5, attributes.as_ptr(), values.as_ptr(), address.get())
        });
        outcome.ok()?;
        let on_host = kind == memory_type::HOST;
        if !on_host && kind != memory_type::DEVICE {
            return None;
        }
        let span = Span::new(Address::new(start), Bytes::new(size)).ok()?;
        span.contains(address).then(|| DriverPointer {
            span,
            on_host,
            managed: managed & 0xff != 0,
            device: DeviceOrdinal(u32::try_from(ordinal).unwrap_or(0)),
        })
    }
}

/// Puts this thread in relaxed capture mode while the value lives.
///
/// While any thread captures a stream in the driver's strictest mode, which is the default, the driver refuses calls such
/// as `cuMemHostAlloc` and `cuEventQuery` to all threads, and the refusal invalidates the capture. Calls of ours that have
/// nothing to do with it are made in this mode, which permits them.
#[derive(Debug)]
pub(crate) struct RelaxedCapture {
    table: &'static Symbols,
    /// The mode before.
    mode: c_int,
    _of_this_thread: PhantomData<*const ()>,
}

impl RelaxedCapture {
    /// Begins; `None` for a driver that knows no such mode.
    pub(crate) fn begin(context: &Context) -> Option<Self> {
        let (table, mut mode) = (context.table(), capture_mode::RELAXED);
        // SAFETY: a place of our own.
        unsafe { table.thread_exchange_capture_mode(&raw mut mode) }.ok()?;
        Some(Self { table, mode, _of_this_thread: PhantomData })
    }
}

impl Drop for RelaxedCapture {
    fn drop(&mut self) {
        // SAFETY: a place of our own.
        let _ = unsafe { self.table.thread_exchange_capture_mode(&raw mut self.mode) };
    }
}

/// A context that is current for as long as this value lives; then the caller's is again.
#[derive(Debug)]
pub(crate) struct Current {
    table: &'static Symbols,
    pushed: bool,
    /// Each thread has its own current context, so the value stays where it was made.
    _of_this_thread: PhantomData<*const ()>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if !self.pushed {
            return;
        }
        for _ in 0..POPS {
            let mut popped = RawContext::NULL;
            // SAFETY: what `enter` pushed is on top again, since every call in between restores
            // what it finds; the place is our own.
            if unsafe { self.table.context_pop(&raw mut popped) }.is_ok() {
                return;
            }
        }
    }
}

/// A pointer to an address of the host.
pub(crate) fn host_pointer(address: u64) -> *mut u8 {
    // Pointers are 64 bits wide wherever this crate builds, so the conversion never fails.
    core::ptr::with_exposed_provenance_mut(usize::try_from(address).unwrap_or(0))
}
