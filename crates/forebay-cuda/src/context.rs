//! A context: what the driver keeps for one device in this process.
//!
//! Each device has one, which is never released, even when devices are opened and dropped: it pools streams, events and
//! staging memory, and destroying those while other threads call the driver is what the driver handles worst.

use core::ffi::c_int;
use core::marker::PhantomData;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use forebay_core::{Address, Bytes, DeviceOrdinal, Span};

use crate::driver::{CudaDriver, DriverPointer};
use crate::event::EventPool;
use crate::kernel::Kernel;
use crate::space::Space;
use crate::staged_copy::SideStreams;
use crate::staging::StagingBuffers;
use crate::stream::{StreamCore, StreamPool, lock};
use crate::sys::values::capture_mode;
use crate::sys::{RawContext, RawStream, Refusal, Table};
use crate::task::{Signals, Workers};

/// Attempts to restore the caller's context. We cannot report a failure here, so retry transient ones. Only a driver
/// that is shutting down fails for good.
const POPS: usize = 3;

/// A context and what is pooled in it.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) driver: &'static CudaDriver,
    pub(crate) raw: RawContext,
    pub(crate) ordinal: DeviceOrdinal,
    /// The device as the driver names it.
    pub(crate) device: c_int,
    pub(crate) is_primary: bool,
    pub(crate) streams: StreamPool,
    pub(crate) events: EventPool,
    pub(crate) signals: Signals,
    pub(crate) stages: StagingBuffers,
    pub(crate) sides: SideStreams,
    pub(crate) workers: Workers,
    pub(crate) lz4: Kernel,
    pub(crate) copy: Kernel,
    /// Whether kernels use registered memory by the host's address, once it was asked.
    pub(crate) registered_for_kernels: OnceLock<bool>,
    /// The legacy default stream, which is one for all devices opened in the context.
    pub(crate) default_stream: Arc<StreamCore>,
    /// Peers made reachable from here, and by how many devices.
    pub(crate) peers: Mutex<BTreeMap<u32, PeerUse>>,
    /// The books of all devices opened here, those of dropped ones until they are cleared.
    spaces: Mutex<Vec<Weak<Mutex<Space>>>>,
    /// Memory of the pools above, which no caller may copy to.
    inner: Mutex<Vec<Span>>,
}

/// How a peer came to be reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerUse {
    /// How many devices have asked for it.
    pub(crate) count: u32,
    /// Whether another library had made it reachable before, who may still count on it.
    pub(crate) was_enabled: bool,
}

impl Context {
    pub(crate) fn new(
        driver: &'static CudaDriver,
        raw: RawContext,
        ordinal: DeviceOrdinal,
        device: c_int,
        is_primary: bool,
    ) -> Self {
        Self {
            driver,
            raw,
            ordinal,
            device,
            is_primary,
            streams: StreamPool::default(),
            events: EventPool::default(),
            signals: Signals::default(),
            stages: StagingBuffers::default(),
            sides: SideStreams::default(),
            workers: Workers::default(),
            lz4: Kernel::lz4(),
            copy: Kernel::copy(),
            registered_for_kernels: OnceLock::new(),
            default_stream: Arc::new(StreamCore::lent(RawStream::NULL)),
            peers: Mutex::default(),
            spaces: Mutex::default(),
            inner: Mutex::default(),
        }
    }

    /// Books of a new device.
    pub(crate) fn new_space(&self) -> Arc<Mutex<Space>> {
        let space = Arc::default();
        let mut spaces = lock(&self.spaces);
        spaces.retain(|space: &Weak<Mutex<Space>>| space.strong_count() > 0);
        spaces.push(Arc::downgrade(&space));
        space
    }

    /// Takes note of memory that a pool got.
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
    pub(crate) fn table(&self) -> &'static Table {
        self.driver.table()
    }

    /// Makes this the calling thread's context while the value lives.
    pub(crate) fn enter(&self) -> Result<Current, Refusal> {
        let table = self.table();
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
        function: impl FnOnce(&Table) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let current = self.enter()?;
        function(current.table)
    }

    /// Waits for all work in this context, including other libraries'.
    pub(crate) fn synchronize(&self) -> Result<(), Refusal> {
        // SAFETY: it has no arguments, and this context is current.
        self.call(|table| unsafe { table.context_synchronize() })
    }

    /// What the driver knows about `address` in this context.
    pub(crate) fn pointer(&self, address: Address) -> Option<DriverPointer> {
        let _current = self.enter().ok()?;
        self.driver.pointer(address)
    }
}

/// Puts this thread in relaxed capture mode while the value lives.
///
/// While any thread captures a stream in the driver's strictest mode, which is the default, the driver refuses calls such
/// as `cuMemHostAlloc` and `cuEventQuery` to all threads, and the refusal invalidates the capture. Calls of ours that have
/// nothing to do with it are made in this mode, which permits them.
#[derive(Debug)]
pub(crate) struct RelaxedCapture {
    table: &'static Table,
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
    table: &'static Table,
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
