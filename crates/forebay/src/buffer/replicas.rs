//! The memory of a buffer's replicas, and what each access does to them.
//!
//! ```text
//!   acquire on the host      wait for copies that touch host memory ── copy what the host lacks, and wait ── &[u8]
//!   acquire on a stream      make the stream wait for earlier use ── copy what the device lacks, on the stream ── address
//! ```
//!
//! If the device's memory is the host's own ([`Capabilities::HOST_VISIBLE`]), there is one replica, which counts as the
//! host's: nothing is copied, and a host access waits for the streams that use it.
//!
//! With [`Access::Read`] others may have views of the contents, on either side; with other accesses nothing else has.

mod transfer;

use core::ops::Range;
use core::ptr::{self, NonNull};
use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, Coherence, Contents, Replica, Update, UpdateKind};
use forebay_hal::{
    self as hal, Call, Capabilities, Device, Fill, Location, Pattern, StreamHandle, invalid,
};

use super::access::Access;
use super::device_side::DeviceSide;
use super::host_memory::{HostMemory, SMALLEST_ALIGNMENT};
use super::host_use::{HostUse, TimedCopy};
use super::statistics::Counters;
use super::store::{Migration, Parked, Store};
use crate::range::out_of_range;
use crate::{Error, Result};

/// How a lost device may still access host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lent {
    /// Nothing.
    No,
    /// It may read it, so it is never freed.
    Read,
    /// It may write it, so it is never freed, and the program can no longer use it.
    Written(hal::Error),
}

#[derive(Debug)]
pub(super) struct Replicas {
    store: Arc<Store>,
    pub(super) coherence: Coherence,
    alignment: Alignment,
    /// Whether the device's memory is the host's own, so that there is one replica.
    unified: bool,
    host: Option<HostMemory>,
    host_uses: Vec<HostUse>,
    /// Whether one of `host_uses` may write it.
    host_written: bool,
    lent: Lent,
    /// Ranges being copied to the host, and ranges to zero there afterwards.
    arrivals: Vec<Update>,
    device: Option<DeviceSide>,
    pub(super) statistics: Arc<Counters>,
}

pub(super) fn to_usize(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The address `offset` bytes after `start`.
pub(super) fn offset(start: Address, offset: u64) -> Result<Address> {
    let beyond = || invalid(Call::Copy, "offset", offset, "within the address space");
    Ok(start.checked_add(Bytes::new(offset)).ok_or_else(beyond)?)
}

fn usize_range(range: &Range<u64>) -> Range<usize> {
    to_usize(range.start)..to_usize(range.end)
}

impl Replicas {
    pub(super) fn new(
        store: &Arc<Store>,
        size: u64,
        alignment: Alignment,
        statistics: Arc<Counters>,
    ) -> Self {
        let capabilities = store.pool.source().descriptor().capabilities;
        Self {
            store: Arc::clone(store),
            coherence: Coherence::new(size),
            alignment,
            unified: capabilities.contains(Capabilities::HOST_VISIBLE | Capabilities::DATA),
            host: None,
            host_uses: Vec::new(),
            host_written: false,
            lent: Lent::No,
            arrivals: Vec::new(),
            device: None,
            statistics,
        }
    }

    /// A buffer over memory of the program. It has two replicas, even if the device's memory is the host's own.
    pub(super) fn over(
        store: &Arc<Store>,
        host: HostMemory,
        alignment: Alignment,
        statistics: Arc<Counters>,
    ) -> Self {
        let mut raw = Self::new(store, host.size() as u64, alignment, statistics);
        raw.unified = false;
        raw.coherence.allocated(Replica::Host, false);
        raw.coherence.written(Replica::Host, 0..raw.size());
        raw.statistics.set_host(raw.size());
        raw.host = Some(host);
        raw
    }

    pub(super) fn size(&self) -> u64 {
        self.coherence.length()
    }

    /// Whether the host's replica is memory of the program.
    pub(super) fn is_external(&self) -> bool {
        self.host.as_ref().is_some_and(HostMemory::is_external)
    }

    /// A lower bound of the alignment of the host's replica.
    pub(super) fn host_alignment(&self) -> u64 {
        match &self.host {
            Some(host) if host.is_external() => 1 << host.address().get().trailing_zeros().min(63),
            _ => SMALLEST_ALIGNMENT as u64,
        }
    }

    /// Whether the host's replica is read-only.
    fn is_read_only(&self) -> bool {
        self.host.as_ref().is_some_and(HostMemory::is_read_only)
    }

    /// Fails if the access writes and the host's replica is read-only. This includes writes on the device: they could
    /// not be copied back.
    fn check_writable(&self, access: Access) -> Result<()> {
        if access.writes() && self.is_read_only() {
            return Err(Error::ReadOnly { size: Bytes::new(self.size()) });
        }
        Ok(())
    }

    pub(super) fn migration(&self) -> Migration {
        self.store.migration
    }

    pub(super) fn device_handle(&self) -> Arc<dyn Device> {
        Arc::clone(self.store.device())
    }

    /// Fails in a forked child. Call it before touching anything.
    pub(super) fn check_process(&self) -> Result<()> {
        Ok(self.store.device().descriptor().check_process(Call::Copy)?)
    }

    /// Makes the host's replica current in `range` and ready for `access`. The caller marks what it writes.
    pub(super) fn acquire_host(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        self.check_process()?;
        self.check_writable(access)?;
        if self.unified {
            return self.acquire_unified(range, access);
        }
        // Fast path: most reads find all data current.
        if access == Access::Read && self.is_settled(range.clone()) {
            return Ok(());
        }
        let started = self.start_host(range, access);
        // Finish the copies that were enqueued, even if a later one failed.
        self.finish_host(access)?;
        started
    }

    /// Whether the host's replica is current in `range`, and no copy or stream writes it.
    fn is_settled(&self, range: Range<u64>) -> bool {
        let at_rest = match &self.device {
            Some(side) if self.unified => !side.is_written(),
            _ => !self.host_written && !matches!(self.lent, Lent::Written(_)),
        };
        at_rest && self.coherence.is_current(Replica::Host, range)
    }

    /// The host's replica, if all of it is settled; else null.
    pub(super) fn settled_host(&self) -> *mut u8 {
        let all = 0..self.size();
        let part = if self.is_settled(all.clone()) { self.host_part(all) } else { None };
        part.map_or(ptr::null_mut(), |part| part.as_ptr().cast())
    }

    /// Enqueues the copies that make the host's replica current in `range`. Does not wait.
    pub(super) fn start_host(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        self.check_process()?;
        self.check_writable(access)?;
        self.check_not_lent()?;
        if self.host.is_none() {
            self.host = Some(HostMemory::zeroed(to_usize(self.size()), self.alignment)?);
            self.coherence.allocated(Replica::Host, true);
            self.statistics.set_host(self.size());
        }
        if access == Access::Overwrite {
            return Ok(());
        }
        for update in self.coherence.needs(Replica::Host, range) {
            if update.kind == UpdateKind::Copy {
                self.copy_to_host(&update.range)?;
            }
            self.arrivals.push(update);
        }
        Ok(())
    }

    /// Fails if a lost device may still write the host's replica.
    fn check_not_lent(&self) -> Result<()> {
        match &self.lent {
            Lent::Written(error) => Err(error.clone().into()),
            Lent::No | Lent::Read => Ok(()),
        }
    }

    /// Forgets copies that were started for a read that was given up: the contents may change from now on.
    pub(super) fn forget_arrivals(&mut self) {
        self.arrivals.clear();
    }

    /// The second half of [`acquire_host`](Self::acquire_host), after [`start_host`](Self::start_host): waits, also for
    /// what other reads have started.
    pub(super) fn finish_host(&mut self, access: Access) -> Result<()> {
        let zeroes = self.arrivals.iter().any(|update| update.kind == UpdateKind::Zero);
        if access.writes() || self.host_written || zeroes {
            self.wait_for_host()?;
        }
        self.check_not_lent()?;
        for Update { range, kind } in core::mem::take(&mut self.arrivals) {
            if kind == UpdateKind::Zero {
                // SAFETY: all copies are done, and nobody has a view of what is not current.
                unsafe { self.zero_host(&range) };
            }
            self.coherence.updated(Replica::Host, range);
        }
        Ok(())
    }

    /// Zeroes a range of the host's replica.
    ///
    /// # Safety
    ///
    /// * Nothing else uses it.
    unsafe fn zero_host(&mut self, range: &Range<u64>) {
        if let Some(part) = self.host_part(range.clone()) {
            // SAFETY: so many bytes are there, which may be written: read-only memory lacks nothing.
            unsafe { part.cast::<u8>().write_bytes(0, part.len()) };
        }
    }

    /// Whether there is one replica.
    pub(super) fn is_unified(&self) -> bool {
        self.unified
    }

    /// Calls `task` on a thread of the device, after the copies enqueued to the host. Returns `false` if there are none
    /// or the device cannot do so; the caller must then wait.
    pub(super) fn after_arrivals(&mut self, task: hal::HostTask) -> bool {
        let device = self.device_handle();
        let can = device.descriptor().capabilities.contains(Capabilities::HOST_TASKS);
        let copies = self.arrivals.iter().any(|update| update.kind == UpdateKind::Copy);
        match &mut self.device {
            Some(side) if can && copies => side
                .stream_after_write(&*device)
                .is_ok_and(|stream| device.enqueue_host(task, stream).is_ok()),
            _ => false,
        }
    }

    /// Enqueues a copy to the host, after the last write on the device.
    fn copy_to_host(&mut self, range: &Range<u64>) -> Result<()> {
        let device = self.device_handle();
        let (Some(host), Some(side)) = (&self.host, &mut self.device) else {
            return Err(out_of_range(&usize_range(range), 0));
        };
        let stream = side.stream_after_write(&*device)?;
        // Copies from an earlier replica may still read what this one overwrites.
        forget_done(&mut self.host_uses, &self.statistics);
        for earlier in &self.host_uses {
            earlier.precede(&*device, stream)?;
        }
        let to = Location::Host(offset(host.address(), range.start)?);
        let from = Location::Device(offset(side.address(), range.start)?);
        side.read_on(&*device, stream);
        self.host_written = true;
        self.copy(to, from, range, stream)
    }

    /// Enqueues a copy between the replicas, counts it, and records that it uses host memory.
    fn copy(
        &mut self,
        to: Location,
        from: Location,
        range: &Range<u64>,
        stream: StreamHandle,
    ) -> Result<()> {
        let (device, bytes) = (self.device_handle(), range.end - range.start);
        let copy = hal::Copy::linear(to, from, Bytes::new(bytes))?;
        let replica = if to.is_host() { Replica::Host } else { Replica::Device };
        let timed = TimedCopy::start(&device, stream, replica, bytes);
        // SAFETY: the host's side is memory of this buffer. `host_uses` keeps it from the program and from being freed until
        // the copy is done; `lent` does after a device was lost, and any other copy that fails has let go of it. The
        // device's side is in the buffer's block, which is freed after the work of the streams that use it. The two are
        // different memory.
        match unsafe { device.copy(&copy, stream) } {
            Ok(()) => {
                forget_done(&mut self.host_uses, &self.statistics);
                self.host_uses.push(HostUse::on(&device, stream, timed));
                self.statistics.count_copy(replica, bytes);
                Ok(())
            }
            Err(error) => {
                if matches!(error, hal::Error::Lost { .. }) {
                    self.lent = match (to.is_host(), &self.lent) {
                        (true, _) | (_, Lent::Written(_)) => Lent::Written(error.clone()),
                        (false, _) => Lent::Read,
                    };
                }
                Err(error.into())
            }
        }
    }

    /// Waits until no copy touches host memory.
    fn wait_for_host(&mut self) -> Result<()> {
        while let Some(host_use) = self.host_uses.last() {
            host_use.wait(&**self.store.device())?;
            host_use.count_time(&self.statistics);
            self.host_uses.pop();
        }
        self.host_written = false;
        Ok(())
    }

    /// Makes the device's replica current in `range`, in the order of `stream`. Returns the replica's address.
    pub(super) fn acquire_device(
        &mut self,
        range: Range<u64>,
        access: Access,
        stream: StreamHandle,
    ) -> Result<Address> {
        self.check_process()?;
        self.check_writable(access)?;
        let (device, stream) = (self.device_handle(), stream.resolved());
        if self.size() == 0 {
            return Ok(Address::NULL);
        }
        let replica = if self.unified { Replica::Host } else { Replica::Device };
        self.device_side(stream)?;
        let needs = match access {
            Access::Overwrite => Vec::new(),
            Access::Read | Access::Update => self.coherence.needs(replica, range.clone()),
        };
        let side = self.device_side(stream)?;
        side.order(&device, stream, access, !needs.is_empty())?;
        let address = side.address();
        for Update { range, kind } in needs {
            self.update_device(address, &range, kind, stream)?;
            self.coherence.updated(replica, range);
        }
        if access.writes() {
            self.coherence.written(replica, range);
        }
        Ok(address)
    }

    /// The device's replica, allocated for `stream` if it does not exist yet.
    pub(super) fn device_side(&mut self, stream: StreamHandle) -> Result<&mut DeviceSide> {
        if self.device.is_none() {
            let (pool, size) = (&self.store.pool, self.size());
            let side = DeviceSide::allocate(pool, size, self.alignment, stream)?;
            let replica = if self.unified { Replica::Host } else { Replica::Device };
            self.coherence.allocated(replica, false);
            self.statistics.set_device(side.size());
            self.device = Some(side);
        }
        self.device.as_mut().ok_or_else(|| out_of_range(&(0..0), 0))
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
            (UpdateKind::Zero, _) => {
                let fill = Fill::linear(to, Bytes::new(size), Pattern::U8(0))?;
                // SAFETY: the range is in the buffer's block, which is freed after the work of `stream`.
                unsafe { self.store.device().fill(&fill, stream) }?;
            }
            (UpdateKind::Copy, Some(host)) => {
                let from = Location::Host(offset(host.address(), range.start)?);
                self.copy(Location::Device(to), from, range, stream)?;
            }
            (UpdateKind::Copy, None) => return Err(out_of_range(&usize_range(range), 0)),
        }
        Ok(())
    }

    /// Makes the single replica ready for the host: waits for the streams that use it, and zeroes what was never
    /// written, so that the host cannot see stale memory.
    fn acquire_unified(&mut self, range: Range<u64>, access: Access) -> Result<()> {
        if self.size() == 0 || (access == Access::Read && self.is_settled(range.clone())) {
            return Ok(());
        }
        let device = self.device_handle();
        let is_current = self.coherence.is_current(Replica::Host, range.clone());
        let side = self.device_side(StreamHandle::DEFAULT.resolved())?;
        match access {
            Access::Read if is_current => side.wait_for_writes(&*device)?,
            // A reader may still use what is zeroed here.
            Access::Read => side.wait(&*device)?,
            Access::Update | Access::Overwrite => side.wait_and_forget(&*device)?,
        }
        for Update { range, .. } in self.coherence.needs(Replica::Host, range) {
            // SAFETY: no stream uses the memory, and nobody has a view of what is not current.
            unsafe { self.zero_host(&range) };
            self.coherence.updated(Replica::Host, range);
        }
        Ok(())
    }

    /// Bytes of the host's replica. `None` if there is no memory or they are not within it.
    pub(super) fn host_part(&self, range: Range<u64>) -> Option<NonNull<[u8]>> {
        let start = match (&self.host, &self.device) {
            (Some(host), _) => host.start(),
            (None, Some(side)) if self.unified => {
                let address = to_usize(side.address().get());
                NonNull::new(ptr::with_exposed_provenance_mut(address))?
            }
            _ => return None,
        };
        if range.start > range.end || range.end > self.size() {
            return None;
        }
        let Range { start: first, end } = usize_range(&range);
        // SAFETY: the replica has `size()` bytes.
        Some(NonNull::slice_from_raw_parts(unsafe { start.add(first) }, end - first))
    }

    /// Discards the contents of a replica.
    pub(super) fn invalidate(&mut self, replica: Replica) {
        // A single replica serves both sides, so nothing may be discarded. Read-only memory keeps its contents.
        let stays = self.unified || (replica == Replica::Host && self.is_read_only());
        if !stays {
            self.coherence.invalidated(replica, 0..self.size());
        }
    }

    /// Copies data that only this replica has to the other one, and frees its memory. Returns the bytes freed.
    pub(super) fn drop_replica(&mut self, replica: Replica, stream: StreamHandle) -> Result<u64> {
        self.check_process()?;
        let stays = replica == Replica::Host && self.is_external();
        if self.unified || stays || !self.coherence.is_present(replica) {
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
        let freed = match replica {
            Replica::Host => {
                if self.lent != Lent::No {
                    return Ok(0);
                }
                self.wait_for_host()?;
                self.statistics.set_host(0);
                self.host.take().map_or(0, |host| host.size() as u64)
            }
            Replica::Device => {
                self.statistics.set_device(0);
                self.device.take().map_or(0, |side| side.size())
            }
        };
        self.coherence.dropped(replica);
        Ok(freed)
    }

    /// Moves the contents to memory of another size: keeps what fits, and zeroes the rest.
    pub(super) fn resize(&mut self, size: u64) -> Result<()> {
        if self.is_external() {
            let given = format!("{size} B");
            let allowed = format!(
                "{} B: the memory is the program's; to change the size, copy the elements to a buffer of the manager's own",
                self.size()
            );
            return Err(invalid(Call::Allocate, "length", given, allowed).into());
        }
        let kept = 0..size.min(self.size());
        let runs = self.coherence.runs(kept);
        let written = runs.filter(|(_, contents)| !matches!(contents, Contents::Zero { .. }));
        let written: Vec<Range<u64>> = written.map(|(range, _)| range).collect();
        let mut resized = Self::new(&self.store, size, self.alignment, Arc::default());
        for range in written {
            self.acquire_host(range.clone(), Access::Read)?;
            resized.acquire_host(range.clone(), Access::Overwrite)?;
            let within = range.clone();
            if let (Some(from), Some(to)) =
                (self.host_part(within.clone()), resized.host_part(within))
            {
                // SAFETY: both were acquired just now, are as long, and are of different buffers.
                unsafe { to.cast::<u8>().copy_from_nonoverlapping(from.cast(), from.len()) };
            }
            resized.coherence.written(Replica::Host, range);
        }
        let statistics = Arc::clone(&self.statistics);
        *self = resized;
        self.statistics = statistics;
        self.statistics.set_host(self.host.as_ref().map_or(0, |host| host.size() as u64));
        self.statistics.set_device(self.device.as_ref().map_or(0, DeviceSide::size));
        Ok(())
    }
}

/// Removes copies that are done, and counts their durations.
fn forget_done(uses: &mut Vec<HostUse>, statistics: &Counters) {
    uses.retain(|one| {
        let done = one.is_done();
        if done {
            one.count_time(statistics);
        }
        !done
    });
}

impl Drop for Replicas {
    /// Does not wait: host memory still used by a copy is parked with the manager.
    fn drop(&mut self) {
        if self.store.device().descriptor().is_from_parent() {
            // A forked child takes no locks: a thread of the parent may have held them.
            core::mem::forget((self.host.take(), core::mem::take(&mut self.host_uses)));
            return;
        }
        if self.lent != Lent::No {
            // A lost device may still use it.
            core::mem::forget(self.host.take());
        }
        forget_done(&mut self.host_uses, &self.statistics);
        let uses = core::mem::take(&mut self.host_uses);
        if let Some(host) = self.host.take()
            && !uses.is_empty()
        {
            self.store.park(Parked { host, uses });
        }
        self.statistics.set_host(0);
        self.statistics.set_device(0);
    }
}
