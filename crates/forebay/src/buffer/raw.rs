//! A buffer without its type: the memory of its replicas, and what each access does to them.
//!
//! ```text
//!   acquire on the host      wait for copies that touch host memory ── copy what the host lacks, and wait ── &[u8]
//!   acquire on a stream      make the stream wait for earlier use ── copy what the device lacks, on the stream ── address
//! ```
//!
//! Where the device's memory is the host's own ([`Capabilities::HOST_VISIBLE`]) there is one replica, which counts as the
//! host's: nothing is ever copied, and a host access waits for the streams that use it.

use core::ops::Range;
use std::sync::Arc;

use forebay_core::{
    Address, Alignment, BufferState, Bytes, Coherence, Replica, Update, UpdateKind,
};
use forebay_hal::{
    self as hal, Call, Capabilities, Device, Event, EventKind, Fill, Pattern, Place, StreamHandle,
    invalid,
};

use super::figures::Figures;
use super::host_memory::HostMemory;
use super::host_use::HostUse;
use super::store::{Parked, Store};
use crate::handle::order::after;
use crate::{Error, OwnedBlock, Request, Result};

/// What an access does with the contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Reads them.
    Read,
    /// Reads and writes them.
    Update,
    /// Writes them without reading: what was there need not be copied.
    Overwrite,
}

impl Access {
    pub(super) fn writes(self) -> bool {
        self != Self::Read
    }
}

#[derive(Debug)]
pub(super) struct RawBuffer {
    store: Arc<Store>,
    coherence: Coherence,
    alignment: Alignment,
    /// Whether the device's memory is the host's own, so that there is one replica.
    unified: bool,
    host: Option<HostMemory>,
    host_uses: Vec<HostUse>,
    /// Whether one of them may write it.
    host_written: bool,
    /// What copies under way bring to the host.
    arrivals: Vec<Range<u64>>,
    device: Option<OwnedBlock>,
    /// Streams that were made to wait for the last write on the device. With one replica: streams that use it.
    ordered: Vec<StreamHandle>,
    pub(super) figures: Arc<Figures>,
}

/// The error for a range that is not in the buffer.
pub(super) fn out_of_range(range: &Range<usize>, length: usize) -> Error {
    let given = format!("elements {} to {}", range.start, range.end);
    let allowed = format!("elements 0 to {length}, the first not after the last");
    invalid(Call::Copy, "range", given, allowed).into()
}

fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn usize_range(range: &Range<u64>) -> Range<usize> {
    to_usize(range.start)..to_usize(range.end)
}

impl RawBuffer {
    pub(super) fn new(
        store: &Arc<Store>,
        size: u64,
        alignment: Alignment,
        figures: Arc<Figures>,
    ) -> Self {
        let capabilities = store.device().descriptor().capabilities;
        Self {
            store: Arc::clone(store),
            coherence: Coherence::new(size),
            alignment,
            unified: capabilities.contains(Capabilities::HOST_VISIBLE | Capabilities::DATA),
            host: None,
            host_uses: Vec::new(),
            host_written: false,
            arrivals: Vec::new(),
            device: None,
            ordered: Vec::new(),
            figures,
        }
    }

    pub(super) fn size(&self) -> u64 {
        self.coherence.length()
    }

    pub(super) fn state(&self) -> BufferState {
        self.coherence.state()
    }

    pub(super) fn device_handle(&self) -> Arc<dyn Device> {
        Arc::clone(self.store.device())
    }

    /// Makes the host's replica current in `range` and ready for `access`. The caller marks what it writes.
    pub(super) fn acquire_host(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        if self.unified {
            self.store.device().descriptor().check_process(Call::Copy)?;
            return self.acquire_unified(range, access);
        }
        let started = self.start_host(range.clone(), access);
        // Copies that were enqueued are finished, also if a later one was not.
        self.finish_host(range, access)?;
        started
    }

    /// Enqueues the copies that make the host's replica current in `range`, and waits for none. They are
    /// [arrivals](Self::finish_arrivals) until they are done.
    pub(super) fn start_host(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        self.store.device().descriptor().check_process(Call::Copy)?;
        self.arrivals.clear();
        if self.host.is_none() {
            self.host = Some(HostMemory::zeroed(to_usize(self.size()), self.alignment)?);
            self.coherence.allocated(Replica::Host, true);
            self.figures.set_host(self.size());
        }
        if access == Access::Overwrite {
            return Ok(());
        }
        for Update { range, kind } in self.coherence.needs(Replica::Host, range) {
            match kind {
                UpdateKind::Zero => {
                    self.wait_for_host()?;
                    if let Some(host) = &mut self.host {
                        // SAFETY: all copies are done.
                        let bytes = unsafe { host.bytes_mut() };
                        bytes.get_mut(usize_range(&range)).unwrap_or_default().fill(0);
                    }
                    self.coherence.updated(Replica::Host, range);
                }
                UpdateKind::Copy => {
                    self.copy_to_host(&range)?;
                    self.arrivals.push(range);
                }
            }
        }
        Ok(())
    }

    /// What is left of [`acquire_host`](Self::acquire_host) after [`start_host`](Self::start_host).
    pub(super) fn finish_host(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        if self.unified {
            return self.acquire_host(range, access);
        }
        if access.writes() || self.host_written {
            self.wait_for_host()?;
        }
        self.finish_arrivals();
        Ok(())
    }

    /// Whether there is one replica.
    pub(super) fn is_unified(&self) -> bool {
        self.unified
    }

    /// Copies all of `from`, of the same size, on the device. Returns `false`, and does nothing, if they are on different
    /// devices, or the host has what is newer.
    pub(super) fn copy_on_device(&mut self, from: &mut Self, stream: StreamHandle) -> Result<bool> {
        let same = Arc::ptr_eq(self.store.device(), from.store.device());
        let all = 0..self.size();
        let is_there =
            from.device.is_some() && from.coherence.needs(Replica::Device, all.clone()).is_empty();
        if !same || self.unified || !is_there {
            return Ok(false);
        }
        let source = from.acquire_device(all.clone(), Access::Read, stream)?;
        let before = self.coherence.clone();
        let to = self.acquire_device(all.clone(), Access::Overwrite, stream)?;
        let copy =
            hal::Copy::linear(Place::Device(to), Place::Device(source), Bytes::new(all.end))?;
        // SAFETY: both are blocks of buffers, which are freed in the order of `stream`; the two are different.
        if let Err(error) = unsafe { self.store.device().copy(&copy, stream) } {
            // The device's bytes are undefined now; what the host had is still there.
            self.coherence = before;
            self.coherence.allocated(Replica::Device, false);
            self.coherence.invalidated(Replica::Device, all);
            return Err(error.into());
        }
        Ok(true)
    }

    /// Notes that the host has what copies brought. All of them are done.
    fn finish_arrivals(&mut self) {
        for range in self.arrivals.drain(..) {
            self.coherence.updated(Replica::Host, range);
        }
    }

    /// Forgets copies to the host that nobody waits for: what they bring counts as not brought.
    pub(super) fn abandon_arrivals(&mut self) {
        self.arrivals.clear();
    }

    /// Calls `task` after the copies that were enqueued to the host, on a thread of the device. Returns `false` if there
    /// are none, or the device cannot: then a wait is what is left.
    pub(super) fn after_arrivals(&self, task: hal::HostTask) -> bool {
        let device = self.store.device();
        let can = device.descriptor().capabilities.contains(Capabilities::HOST_TASKS);
        let stream = self.device.as_ref().map(OwnedBlock::stream);
        match stream.filter(|_| can && !self.arrivals.is_empty()) {
            Some(stream) => device.enqueue_host(task, stream).is_ok(),
            None => false,
        }
    }

    /// Enqueues a copy to the host, after the last write on the device.
    fn copy_to_host(&mut self, range: &Range<u64>) -> Result<()> {
        let (Some(host), Some(block)) = (&self.host, &self.device) else { return Ok(()) };
        let stream = block.stream();
        // A copy of an earlier replica on another stream may still read what this one writes.
        for host_use in self.host_uses.iter().filter(|earlier| earlier.stream != stream) {
            match &host_use.event {
                Some(event) => self.store.device().wait_event(stream, event.handle())?,
                None => host_use.wait(&**self.store.device())?,
            }
        }
        let to = Place::Host(offset(host.address(), range.start)?);
        let from = Place::Device(offset(block.address(), range.start)?);
        self.host_written = true;
        self.copy(to, from, range, stream)?;
        self.figures.count_to_host(range.end - range.start);
        Ok(())
    }

    /// Enqueues a copy between the replicas, and notes the use of host memory.
    fn copy(
        &mut self,
        to: Place,
        from: Place,
        range: &Range<u64>,
        stream: StreamHandle,
    ) -> Result<()> {
        let device = self.device_handle();
        let copy = hal::Copy::linear(to, from, Bytes::new(range.end - range.start))?;
        // SAFETY: the host's side is memory of this buffer, which `host_uses` keeps from the program and from being freed
        // until the copy is done; the device's side is in the buffer's block, which is freed in the order of `stream`.
        // The two are different memory.
        let enqueued = unsafe { device.copy(&copy, stream) };
        match &enqueued {
            Err(hal::Error::Lost { .. }) => {
                // Nobody knows what a lost device still does with it.
                core::mem::forget(self.host.take());
                self.coherence.dropped(Replica::Host);
                self.figures.set_host(0);
            }
            Err(hal::Error::Invalid { .. }) => {}
            // A copy that failed half way has let go of the host's memory.
            Err(_) => {}
            Ok(()) => self.note_host_use(&device, stream),
        }
        Ok(enqueued?)
    }

    /// Notes that work on `stream` uses host memory.
    fn note_host_use(&mut self, device: &Arc<dyn Device>, stream: StreamHandle) {
        let known = self.host_uses.iter().position(|known| known.stream == stream);
        let mut host_use = match known {
            Some(index) => self.host_uses.swap_remove(index),
            None => HostUse { stream, event: Event::new(device, EventKind::Order).ok() },
        };
        let recorded = host_use
            .event
            .as_ref()
            .is_some_and(|event| device.record_event(event.handle(), stream).is_ok());
        if !recorded {
            host_use.event = None;
        }
        self.host_uses.push(host_use);
    }

    /// Waits until no copy touches host memory.
    fn wait_for_host(&mut self) -> Result<()> {
        while let Some(host_use) = self.host_uses.last() {
            host_use.wait(&**self.store.device())?;
            self.host_uses.pop();
        }
        self.host_written = false;
        Ok(())
    }

    /// Makes the device's replica current in `range`, in the order of `stream`, and returns the address of the whole.
    pub(super) fn acquire_device(
        &mut self,
        range: Range<u64>,
        access: Access,
        stream: StreamHandle,
    ) -> Result<Address> {
        let stream = stream.resolved();
        if self.size() == 0 {
            return Ok(Address::NULL);
        }
        if self.unified {
            let address = self.unified_block(stream)?;
            self.zero_unified(range.clone(), access)?;
            self.order(stream, access)?;
            if access.writes() {
                self.coherence.written(Replica::Host, range);
            }
            return Ok(address);
        }
        let block = match &self.device {
            Some(block) => block,
            None => {
                let request = Request::new(Bytes::new(self.size()), stream);
                let request = request.aligned_to(self.alignment.max(Alignment::BLOCK));
                let block = OwnedBlock::new(&self.store.pool, request)?;
                self.coherence.allocated(Replica::Device, false);
                self.ordered.clear();
                self.figures.set_device(block.size().get());
                self.device.insert(block)
            }
        };
        let address = block.address();
        let needs = match access {
            Access::Overwrite => Vec::new(),
            Access::Read | Access::Update => self.coherence.needs(Replica::Device, range.clone()),
        };
        // Copying to the device is a write there.
        self.order(stream, if needs.is_empty() { access } else { Access::Update })?;
        for Update { range, kind } in needs {
            self.update_device(address, &range, kind, stream)?;
            self.coherence.updated(Replica::Device, range);
        }
        if access.writes() {
            self.coherence.written(Replica::Device, range);
        }
        Ok(address)
    }

    fn update_device(
        &mut self,
        address: Address,
        range: &Range<u64>,
        kind: UpdateKind,
        stream: StreamHandle,
    ) -> Result<()> {
        let size = range.end - range.start;
        let to = offset(address, range.start)?;
        match (kind, &self.host) {
            (UpdateKind::Copy, Some(host)) => {
                let from = Place::Host(offset(host.address(), range.start)?);
                self.copy(Place::Device(to), from, range, stream)?;
                self.figures.count_to_device(size);
            }
            _ => {
                let fill = Fill::linear(to, Bytes::new(size), Pattern::U8(0))?;
                // SAFETY: the range is in the buffer's block, which is freed in the order of `stream`.
                unsafe { self.store.device().fill(&fill, stream) }?;
            }
        }
        Ok(())
    }

    /// Orders an access on `stream` after earlier ones: a read after the last write, a write after everything.
    fn order(&mut self, stream: StreamHandle, access: Access) -> Result<()> {
        let device = self.device_handle();
        let Some(block) = &mut self.device else { return Ok(()) };
        device.descriptor().check_process(Call::RecordEvent)?;
        if access.writes() {
            block.hand_over_to(stream)?;
            self.ordered.clear();
        } else if block.stream() != stream && !self.ordered.contains(&stream) {
            after(&device, stream, [block.stream()])?;
            block.used_on(stream);
        }
        if !self.ordered.contains(&stream) {
            self.ordered.push(stream);
        }
        Ok(())
    }

    /// The block of a buffer with one replica.
    fn unified_block(&mut self, stream: StreamHandle) -> Result<Address> {
        if self.size() == 0 {
            return Ok(Address::NULL);
        }
        if let Some(block) = &self.device {
            return Ok(block.address());
        }
        let request = Request::new(Bytes::new(self.size()), stream);
        let request = request.aligned_to(self.alignment.max(Alignment::BLOCK));
        let block = OwnedBlock::new(&self.store.pool, request)?;
        self.coherence.allocated(Replica::Host, false);
        self.figures.set_device(block.size().get());
        // Its earlier owner may have work under way on that stream.
        self.ordered.push(stream);
        Ok(self.device.insert(block).address())
    }

    fn acquire_unified(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        self.unified_block(StreamHandle::DEFAULT.resolved())?;
        self.wait_for_streams()?;
        self.zero_unified(range, access)
    }

    /// Waits for the streams that use the one replica.
    fn wait_for_streams(&mut self) -> Result<()> {
        while let Some(&stream) = self.ordered.last() {
            let device = self.store.device();
            device.synchronize_stream(stream).or_else(|_| device.synchronize_device())?;
            self.ordered.pop();
        }
        Ok(())
    }

    /// Zeroes what nobody has written of the one replica, for an access that reads it.
    fn zero_unified(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        if access == Access::Overwrite {
            return Ok(());
        }
        let needs = self.coherence.needs(Replica::Host, range);
        if needs.is_empty() {
            return Ok(());
        }
        self.wait_for_streams()?;
        for Update { range, .. } in needs {
            let within = usize_range(&range);
            // SAFETY: no stream uses the memory.
            unsafe { self.host_bytes_mut() }.get_mut(within).unwrap_or_default().fill(0);
            self.coherence.updated(Replica::Host, range);
        }
        Ok(())
    }

    /// The host's replica.
    ///
    /// # Safety
    ///
    /// * It was acquired, and no copy or stream writes it meanwhile: the buffer is borrowed until the bytes are not used
    ///   any more.
    pub(super) unsafe fn host_bytes(&self) -> &[u8] {
        match (&self.host, &self.device) {
            // SAFETY: as the caller promises.
            (Some(host), _) => unsafe { host.bytes() },
            (None, Some(block)) if self.unified => {
                let start: *const u8 =
                    core::ptr::with_exposed_provenance(to_usize(block.address().get()));
                // SAFETY: the block has so many bytes of memory that the host may read, initialised by the system.
                unsafe { core::slice::from_raw_parts(start, to_usize(self.size())) }
            }
            _ => &[],
        }
    }

    /// The host's replica, to write.
    ///
    /// # Safety
    ///
    /// * As [`host_bytes`](Self::host_bytes), and it was acquired for writing.
    pub(super) unsafe fn host_bytes_mut(&mut self) -> &mut [u8] {
        let size = to_usize(self.size());
        match (&mut self.host, &self.device) {
            // SAFETY: as the caller promises.
            (Some(host), _) => unsafe { host.bytes_mut() },
            (None, Some(block)) if self.unified => {
                let start: *mut u8 =
                    core::ptr::with_exposed_provenance_mut(to_usize(block.address().get()));
                // SAFETY: as above; this buffer alone owns the block.
                unsafe { core::slice::from_raw_parts_mut(start, size) }
            }
            _ => &mut [],
        }
    }

    /// Marks `range` as written on the host.
    pub(super) fn mark_host_written(&mut self, range: Range<u64>) {
        self.coherence.written(Replica::Host, range);
    }

    /// Zeroes `range`, in whichever memory and whenever it is needed.
    pub(super) fn clear(&mut self, range: Range<u64>) {
        self.coherence.cleared(range);
    }

    /// Forgets the contents of `range` on a replica.
    pub(super) fn invalidate(&mut self, replica: Replica, range: Range<u64>) {
        self.coherence.invalidated(if self.unified { Replica::Host } else { replica }, range);
    }

    /// Copies what a replica alone has to the other, and frees its memory. Returns how many bytes were freed.
    pub(super) fn drop_replica(&mut self, replica: Replica, stream: StreamHandle) -> Result<u64> {
        if self.unified || !self.coherence.is_present(replica) {
            return Ok(0);
        }
        let all = 0..self.size();
        let lacks = self.coherence.needs(replica.other(), all.clone());
        if lacks.iter().any(|update| update.kind == UpdateKind::Copy) {
            match replica.other() {
                Replica::Host => self.acquire_host(all, Access::Read)?,
                Replica::Device => {
                    self.acquire_device(all, Access::Read, stream)?;
                }
            }
        }
        match replica {
            Replica::Host => {
                self.wait_for_host()?;
                self.host = None;
                self.figures.set_host(0);
            }
            Replica::Device => {
                self.device = None;
                self.ordered.clear();
                self.figures.set_device(0);
            }
        }
        self.coherence.dropped(replica);
        Ok(self.size())
    }

    /// Moves the contents to memory of another size: what fits stays, what is new is zero.
    pub(super) fn resize(&mut self, size: u64) -> Result<()> {
        let kept = 0..size.min(self.size());
        self.acquire_host(kept.clone(), Access::Read)?;
        let mut resized = Self::new(&self.store, size, self.alignment, Arc::clone(&self.figures));
        resized.acquire_host(kept.clone(), Access::Overwrite)?;
        let within = usize_range(&kept);
        // SAFETY: both were acquired just now, and both are borrowed.
        let (from, to) = unsafe { (self.host_bytes(), resized.host_bytes_mut()) };
        if let (Some(from), Some(to)) = (from.get(within.clone()), to.get_mut(within)) {
            to.copy_from_slice(from);
        }
        resized.coherence.written(Replica::Host, kept);
        *self = resized;
        // The old memory was counted off just now.
        self.figures.set_host(self.host.as_ref().map_or(0, |host| host.size() as u64));
        self.figures.set_device(self.device.as_ref().map_or(0, |block| block.size().get()));
        Ok(())
    }
}

fn offset(start: Address, offset: u64) -> Result<Address> {
    let beyond = || invalid(Call::Copy, "offset", offset, "within the address space");
    Ok(start.checked_add(Bytes::new(offset)).ok_or_else(beyond)?)
}

impl Drop for RawBuffer {
    /// Does not wait: host memory that a copy still uses is parked with the manager.
    fn drop(&mut self) {
        let uses = core::mem::take(&mut self.host_uses);
        if self.store.device().descriptor().is_inherited() {
            // A forked child takes no lock: a thread that is not there may hold it.
            core::mem::forget(self.host.take());
            return;
        }
        if let Some(host) = self.host.take()
            && !uses.iter().all(HostUse::is_done)
        {
            self.store.park(Parked { host, uses });
        }
        self.figures.set_host(0);
        self.figures.set_device(0);
    }
}
