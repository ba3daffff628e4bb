//! Transfers of memory that is named by address, for the bindings. Not part of the stable interface.
//!
//! The types of Rust keep the memory of a transfer: a ticket owns it, or a scope borrows it. C and Python name memory by
//! address, so there the caller keeps it. Any number of threads may use a [`RawTicket`] at once, each sees the same
//! outcome, and dropping it waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_hal::{Call, Copy, NamedStream, Place, StreamHandle, invalid};

use super::batch::BatchTicket;
use super::builder::{Choices, Ends, Transfer};
use super::engine::{Engine, TransferEngine};
use super::figures::Progress;
use super::job::{Direction, JobId, Phase};
use super::owned::{begin, begin_direct};
use super::worker;
use crate::Result;

/// A copy between host memory and device memory, in the order of a stream.
#[derive(Debug)]
pub struct RawEnds {
    copy: Copy,
    stream: NamedStream,
}

/// A transfer of memory that its caller keeps. Dropping it waits until nothing uses the memory any more.
#[derive(Debug)]
#[must_use = "dropping the ticket waits for the transfer"]
pub struct RawTicket {
    engine: Arc<Engine>,
    id: JobId,
    stream: NamedStream,
    /// Whether the device copies the host's side itself.
    is_direct: bool,
    /// Whether later work on the stream waits for the transfer.
    is_ordered: AtomicBool,
}

impl TransferEngine {
    /// A transfer in the direction of `copy`, after the work that was enqueued on `stream` before. Host memory that is
    /// [pinned](forebay_hal::Device::is_pinned), by whichever library, the device copies itself.
    ///
    /// # Safety
    ///
    /// * Both sides of the copy are memory until the ticket was waited for or dropped: readable where they are read, and
    ///   where they are written, used by nobody else. The ticket is not leaked before.
    /// * After [`RawTicket::order`] and a drop, the device side is used in the order of `stream` alone.
    /// * `stream` is a stream of the engine's device until then.
    pub unsafe fn copy_raw(&self, copy: Copy, stream: StreamHandle) -> Transfer<'_, RawEnds> {
        Transfer::new(self, RawEnds { copy, stream: NamedStream::now(stream) })
    }

    /// Makes many transfers of ordinary memory at once, all in one direction and after the work that was enqueued on
    /// `stream` before, and waits for them. Each has a result of its own.
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
        (Place::Device(_), Place::Host(_)) => Ok(Direction::Up),
        (Place::Host(_), Place::Device(_)) => Ok(Direction::Down),
        _ => {
            let given = "a copy with both ends on one side";
            Err(invalid(Call::Copy, "copy", given, "one between the host and the device").into())
        }
    }
}

impl Ends for RawEnds {
    type Submitted = Result<RawTicket>;

    fn begin(self, engine: &TransferEngine, choices: Choices) -> Self::Submitted {
        let engine = &engine.engine;
        let Self { copy, stream } = self;
        let direction = direction_of(&copy)?;
        if choices.first != 0 || choices.region.is_some() {
            let given = "elements or a region";
            return Err(invalid(Call::Copy, "copy", given, "a copy that has its shape").into());
        }
        let host = if direction == Direction::Up { copy.read() } else { copy.written() };
        let is_direct = engine.device.is_pinned(host);
        // SAFETY: as the caller of `copy_raw` promised. If this fails, nothing uses the memory: no part was begun, and a
        // direct copy of which some may have been enqueued is waited for.
        let id = unsafe {
            if is_direct {
                let failed = |stream| drop(engine.settle(direction, stream));
                begin_direct(engine, direction, &copy, choices, stream, |_| Ok(()), failed)
            } else {
                begin(engine, direction, &copy, choices, stream)
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
        // The transfer is forgotten by the drop alone, so that each thread sees its outcome.
        match worker::run_until_ordered(&self.engine, self.id) {
            Some(phase) => worker::settle(&self.engine, self.id, phase),
            None => Ok(()),
        }
    }

    /// Waits until all pieces were handed to the device, and makes later work on the stream wait for them there. From
    /// then on ordinary host memory is the caller's again.
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

    /// Waits until the memory is the caller's again, as the drop does: not for ordinary memory after
    /// [`order`](Self::order).
    pub fn finish(&self) -> Result<()> {
        if !self.is_direct && self.is_ordered.load(Ordering::Acquire) {
            return Ok(());
        }
        self.wait()
    }

    /// Whether the device copies the host's side itself, so that it is the caller's again only after
    /// [`wait`](Self::wait).
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Whether the transfer is done, or has failed, and nothing uses its memory. Does not wait.
    pub fn is_done(&self) -> bool {
        worker::is_settled(&self.engine, self.id)
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        worker::progress(&self.engine, self.id)
    }

    /// Ends the transfer, as [`Ticket::cancel`](super::Ticket::cancel) does.
    pub fn cancel(&self) -> bool {
        worker::cancel(&self.engine, self.id)
    }
}

impl Drop for RawTicket {
    fn drop(&mut self) {
        if self.engine.device.descriptor().is_inherited() {
            return;
        }
        let _ = self.finish();
        worker::forget(&self.engine, self.id);
    }
}
