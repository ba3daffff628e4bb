//! A buffer without its type: the lock over its replicas, and host views that need no lock.
//!
//! What shares a buffer only reads: it may copy contents to a replica that lacks them, but never changes them. So a view
//! of host memory stays valid while the buffer is shared, whatever other calls do: they write only ranges that were not
//! current before, which no view covers.

use core::ops::Range;
use core::ptr;
use core::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};

use forebay_core::Coherence;
use forebay_hal::{self as hal, Call};

use super::access::Access;
use super::reentry::{ReentryGuard, ReentryLock};
use super::replicas::{Replicas, to_usize};
use super::statistics::Counters;
use super::store::Store;
use crate::Result;

#[derive(Debug)]
pub(super) struct RawBuffer {
    store: Arc<Store>,
    pub(super) statistics: Arc<Counters>,
    /// The host's replica, if all of it is current and nothing writes it; else null. Once set, it stays valid until an
    /// [exclusive](Self::exclusive) call.
    ready: AtomicPtr<u8>,
    replicas: ReentryLock<Replicas>,
}

impl RawBuffer {
    pub(super) fn new(store: &Arc<Store>, replicas: Replicas) -> Self {
        Self {
            store: Arc::clone(store),
            statistics: Arc::clone(&replicas.statistics),
            ready: AtomicPtr::new(ptr::null_mut()),
            replicas: ReentryLock::new(replicas),
        }
    }

    /// Fails in a forked child, where a thread of the parent may have held the lock.
    pub(super) fn check_process(&self) -> Result<()> {
        Ok(self.store.device().descriptor().check_process(Call::Copy)?)
    }

    /// As [`Streams::drive`](hal::Streams::drive).
    pub(super) fn drive(&self) -> bool {
        self.store.device().drive()
    }

    /// The replicas, for calls that change no contents.
    pub(super) fn shared(&self) -> Result<ReentryGuard<'_, Replicas>> {
        self.check_process()?;
        self.replicas.take().ok_or_else(|| {
            let what = "a call uses the buffer, which code that runs within a call on a buffer cannot wait for";
            hal::Error::Busy { call: Call::Copy, what: what.into() }.into()
        })
    }

    /// The replicas, for calls that change contents or move memory.
    pub(super) fn exclusive(&mut self) -> &mut Replicas {
        *self.ready.get_mut() = ptr::null_mut();
        let replicas = self.replicas.get_mut();
        replicas.forget_arrivals();
        replicas
    }

    /// The bytes in host memory, which the caller has checked to be within the buffer.
    pub(super) fn host(&self, bytes: Range<u64>) -> Result<&[u8]> {
        let ready = self.ready.load(Ordering::Acquire);
        if !ready.is_null() {
            self.check_process()?;
            let (start, size) = (to_usize(bytes.start), to_usize(bytes.end - bytes.start));
            // SAFETY: all of the host's replica is current, and only exclusive calls change or free it.
            return Ok(unsafe { slice::from_raw_parts(ready.add(start), size) });
        }
        let mut replicas = self.shared()?;
        replicas.acquire_host(bytes.clone(), Access::Read)?;
        self.ready.store(replicas.settled_host(), Ordering::Release);
        // SAFETY: just acquired.
        Ok(unsafe { self.acquired(&replicas, bytes) })
    }

    /// Bytes that were acquired on the host.
    ///
    /// # Safety
    ///
    /// * They are current in the host's replica.
    pub(super) unsafe fn acquired(&self, replicas: &Replicas, bytes: Range<u64>) -> &[u8] {
        // SAFETY: current, so that calls that share the buffer write and free none of it, and it is borrowed.
        replicas.host_part(bytes).map_or(&[], |part| unsafe { part.as_ref() })
    }

    /// The bytes in host memory, to write, and the record where the caller marks them as written.
    pub(super) fn host_mut(
        &mut self,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<(&mut [u8], &mut Coherence)> {
        let replicas = self.exclusive();
        replicas.acquire_host(bytes.clone(), access)?;
        let part = replicas.host_part(bytes);
        // SAFETY: acquired for writing, and borrowed exclusively.
        let part = part.map_or(&mut [][..], |mut part| unsafe { part.as_mut() });
        Ok((part, &mut replicas.coherence))
    }
}
