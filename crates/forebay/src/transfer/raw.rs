//! Transfers of memory given by address, for the bindings. Not part of the stable interface.
//!
//! In Rust, types keep the memory of a transfer alive: a ticket owns it, or a scope borrows it. C and Python pass
//! memory by address, so the caller must keep it alive. Several threads may use a [`RawTicket`] at once; all see the
//! same outcome, and dropping it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_hal::{Call, Copy, Location, NamedStream, StreamHandle, invalid};

use super::batch::BatchTicket;
use super::builder::{Endpoints, Transfer};
use super::engine::{Engine, TransferEngine};
use super::job::{Direction, Job, JobId, Phase};
use super::owned::{start_copy, start_direct};
use super::statistics::Progress;
use super::worker;
use crate::Result;

/// A copy between host memory and device memory, in the order of a stream.
#[derive(Debug)]
pub struct RawEnds {
    copy: Copy,
    stream: NamedStream,
}

/// A transfer of memory that its caller keeps alive. Dropping it cancels the transfer, and waits until nothing uses the
/// memory any more.
#[derive(Debug)]
#[must_use = "a ticket that is dropped cancels its transfer"]
pub struct RawTicket {
    engine: Arc<Engine>,
    id: JobId,
    stream: NamedStream,
    /// Whether the device accesses the host's side directly.
    is_direct: bool,
    /// Whether later work on the stream waits for the transfer.
    is_ordered: AtomicBool,
}

impl TransferEngine {
    /// A transfer in the direction of `copy`, after the work enqueued so far on `stream`. The device copies
    /// [pinned](forebay_hal::Device::is_pinned) host memory directly, whichever library pinned it.
    ///
    /// # Safety
    ///
    /// * Both sides of the copy are memory until the ticket was waited for or dropped: readable where they are read, and
    ///   where they are written, used by nothing else. The ticket is not leaked before.
    /// * After [`RawTicket::order`] and a drop, the device side is used in the order of `stream` alone.
    /// * `stream` is a stream of the engine's device until then.
    pub unsafe fn copy_raw(&self, copy: Copy, stream: StreamHandle) -> Transfer<'_, RawEnds> {
        Transfer::new(self, RawEnds { copy, stream: NamedStream::now(stream) })
    }

    /// Runs many transfers of ordinary memory at once, all in one direction and after the work enqueued so far on
    /// `stream`, and waits for them. Each has its own result.
    ///
    /// # Safety
    ///
    /// * As for [`copy_raw`](Self::copy_raw), until this returns.
    pub unsafe fn copy_all_raw(
        &self,
        copies: Vec<Result<Copy>>,
        stream: StreamHandle,
    ) -> Result<Vec<Result<()>>> {
        let direction = copies.iter().flatten().next().map_or(Ok(Direction::Up), direction_of)?;
        let same = |copy: Copy| {
            let of = direction_of(&copy)?;
            let given = "one in the other direction than those before it";
            let refuse = || invalid(Call::Copy, "copy", given, "copies in one direction").into();
            if of == direction { Ok(copy) } else { Err(refuse()) }
        };
        let stream = NamedStream::now(stream);
        let copies = copies.into_iter().map(|copy| Ok((copy.and_then(same)?, stream)));
        self.scope(|scope| BatchTicket::begin(scope, direction, copies).wait())
    }
}

fn direction_of(copy: &Copy) -> Result<Direction> {
    match (copy.to(), copy.from()) {
        (Location::Device(_), Location::Host(_)) => Ok(Direction::Up),
        (Location::Host(_), Location::Device(_)) => Ok(Direction::Down),
        _ => {
            let given = "a copy with both ends on one side";
            Err(invalid(Call::Copy, "copy", given, "one between the host and the device").into())
        }
    }
}

impl Endpoints for RawEnds {
    type Submitted = Result<RawTicket>;

    fn begin(self, TransferEngine { engine }: &TransferEngine, job: Job) -> Self::Submitted {
        let Self { copy, stream } = self;
        let direction = direction_of(&copy)?;
        if job.first != 0 || job.region.is_some() {
            let given = "elements or a region";
            return Err(invalid(Call::Copy, "copy", given, "a copy that has its shape").into());
        }
        let host = if direction == Direction::Up { copy.read() } else { copy.written() };
        let is_direct = engine.device.is_pinned(host);
        // SAFETY: as the caller of `copy_raw` promised. If this fails, nothing uses the memory: no part was begun, and a
        // direct copy of which some may have been enqueued is waited for.
        let id = unsafe {
            if is_direct {
                start_direct(engine, job, direction, &copy, stream, |_| Ok(()), |_| ())
            } else {
                start_copy(engine, job, direction, &copy, stream)
            }
        }?;
        let is_ordered = AtomicBool::new(false);
        Ok(RawTicket { engine: Arc::clone(engine), id, stream, is_direct, is_ordered })
    }
}

impl RawTicket {
    /// Waits until the transfer is done. This thread helps to copy meanwhile.
    pub fn wait(&self) -> Result<()> {
        self.engine.device.descriptor().check_process(Call::SynchronizeEvent)?;
        // Only the drop forgets the transfer, so that every thread sees its outcome.
        match worker::run_until_ordered(&self.engine, self.id) {
            Some(phase) => worker::settle(&self.engine, self.id, phase),
            None => Ok(()),
        }
    }

    /// Waits until all pieces are handed to the device, and makes later work on the stream wait for them there. The
    /// caller may then reuse ordinary host memory.
    pub fn order(&self) -> Result<()> {
        self.engine.device.descriptor().check_process(Call::WaitEvent)?;
        if let Some(Phase::Ordered(event)) = worker::run_until_ordered(&self.engine, self.id)
            && worker::makes_wait(&self.engine, self.stream, &event)
        {
            self.is_ordered.store(true, Ordering::Release);
            return Ok(());
        }
        self.wait()
    }

    /// Waits, like the drop, until the caller may reuse the memory. Does not wait for ordinary memory after
    /// [`order`](Self::order).
    pub fn finish(&self) -> Result<()> {
        if !self.is_direct && self.is_ordered.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait()
    }

    /// Whether the device accesses the host's side directly, so that the caller may reuse it only after
    /// [`wait`](Self::wait).
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the transfer has finished or failed, and nothing uses its memory. Does not wait.
    pub fn is_done(&self) -> bool {
        worker::is_settled(&self.engine, self.id)
    }

    /// The progress of the transfer.
    pub fn progress(&self) -> Progress {
        worker::progress(&self.engine, self.id)
    }

    /// Cancels the transfer, as [`Ticket::cancel`](super::Ticket::cancel) does.
    pub fn cancel(&self) -> bool {
        worker::cancel(&self.engine, self.id)
    }
}

impl Drop for RawTicket {
    fn drop(&mut self) {
        if self.engine.device.descriptor().is_from_parent() {
            return;
        }
        self.cancel();
        let _ = self.finish();
        worker::forget(&self.engine, self.id);
    }
}
