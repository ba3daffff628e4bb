//! Transfers that own their memory.

use std::sync::Arc;

use bytemuck::Pod;
use forebay_core::{Address, Bytes};
use forebay_hal::{self as hal, Call, Copy, Extent, NamedStream, Pitch, StreamHandle, invalid};

use super::builder::{Endpoints, Transfer};
use super::engine::{Engine, TransferEngine};
use super::host_end::{HostSink, HostSource, address_of};
use super::job::{Direction, HostEnd, Job, JobId};
use super::region::Region;
use super::ticket::Ticket;
use super::worker::{submit, submit_direct};
use crate::handle::Refused;
use crate::range::check_device;
use crate::{Allocate, DeviceArray, Result};

/// From host memory to an array.
#[derive(Debug)]
pub struct OwnedUpload<S, T: Pod, A: Allocate>(S, DeviceArray<T, A>);

/// From an array to host memory.
#[derive(Debug)]
pub struct OwnedDownload<D, T: Pod, A: Allocate>(DeviceArray<T, A>, D);

/// A ticket, or the error with the memory.
pub(super) type Begun<R> = core::result::Result<Ticket<R>, Refused<R>>;

impl TransferEngine {
    /// Uploads all elements of `source` to `array`. The transfer owns both until it is done: [`Ticket`].
    ///
    /// The source is a vector, a shared or static slice, or a [`PinnedArray`](crate::PinnedArray), from which the
    /// device copies directly.
    pub fn upload<S, T, A>(
        &self,
        source: S,
        array: DeviceArray<T, A>,
    ) -> Transfer<'_, OwnedUpload<S, T, A>>
    where
        S: HostSource<T>,
        T: Pod + Send,
        A: Allocate + Send + 'static,
    {
        Transfer::new(self, OwnedUpload(source, array))
    }

    /// Downloads elements of `array` to `sink`, as many as `sink` has. Owns both until it is done: [`Ticket`].
    pub fn download<D, T, A>(
        &self,
        array: DeviceArray<T, A>,
        sink: D,
    ) -> Transfer<'_, OwnedDownload<D, T, A>>
    where
        D: HostSink<T>,
        T: Pod + Send,
        A: Allocate + Send + 'static,
    {
        Transfer::new(self, OwnedDownload(array, sink))
    }
}

/// The copy between `length` elements at `host` and an array. Fails if it is out of bounds of either.
pub(super) fn copy_of<T: Pod, A: Allocate>(
    engine: &Engine,
    direction: Direction,
    (host, length): (*const T, usize),
    array: &DeviceArray<T, A>,
    job: &Job,
) -> Result<Copy> {
    check_device(array.block().allocator().device(), &engine.device)?;
    let quantity = |error| hal::Error::quantity(Call::Copy, "length", &error);
    let bytes = |count: usize| Bytes::of::<T>(count as u64).map_err(quantity);
    let host = Address::new(address_of(host));
    let Some(Region { extent: [width, rows, slices], host: near, device: far }) = job.region else {
        let device = array.check_range(job.first, length)?;
        let (to, from) = direction.ends(host, device);
        return Ok(Copy::linear(to, from, bytes(length)?)?);
    };
    let rest = array.len().saturating_sub(job.first);
    let device = array.check_range(job.first, rest)?;
    let pitch = |[row, slice]: [usize; 2]| -> hal::Result<Pitch> {
        Ok(Pitch { row: bytes(row)?, slice: bytes(slice)? })
    };
    let extent = Extent { width: bytes(width)?, rows: rows as u64, slices: slices as u64 };
    let (to, from) = direction.ends(host, device);
    let (to_pitch, from_pitch) = match direction {
        Direction::Up => (pitch(far)?, pitch(near)?),
        Direction::Down => (pitch(near)?, pitch(far)?),
    };
    let copy = Copy::volumes(to, to_pitch, from, from_pitch, extent)?;
    let (near, far) = match direction {
        Direction::Up => (copy.read(), copy.written()),
        Direction::Down => (copy.written(), copy.read()),
    };
    for (side, reach, room) in [("host", near.size(), length), ("array", far.size(), rest)] {
        if reach > bytes(room)? {
            let given = format!("{} B from its first to its last byte", reach.get());
            let allowed = format!("{} B, as many as the {side} side has", bytes(room)?.get());
            return Err(invalid(Call::Copy, "region", given, allowed).into());
        }
    }
    Ok(copy)
}

/// Starts the transfer of all elements at `host` to or from an array, directly if there is a `note`, which records the
/// use of pinned memory on a stream. Returns the array's stream too.
///
/// # Safety
///
/// * As for [`submit`], and pinned memory stays until the work that was noted is done.
pub(super) unsafe fn start<T: Pod, A: Allocate>(
    engine: &Arc<Engine>,
    job: Job,
    direction: Direction,
    host: (*const T, usize),
    array: &DeviceArray<T, A>,
    note: Option<impl FnOnce(StreamHandle) -> Result<()>>,
) -> Result<(JobId, NamedStream)> {
    let earlier = array.block().stream_in_order()?;
    let copy = copy_of(engine, direction, host, array, &job)?;
    // SAFETY: as the caller promised. The array notes the stream if what was enqueued there could not be waited for.
    let id = unsafe {
        match note {
            Some(note) => start_direct(engine, job, direction, &copy, earlier, note, |stream| {
                array.block().used_on(stream);
            }),
            None => start_copy(engine, job, direction, &copy, earlier),
        }
    }?;
    Ok((id, earlier))
}

/// Starts a copy through slots.
///
/// # Safety
///
/// * As for [`submit`].
pub(super) unsafe fn start_copy(
    engine: &Arc<Engine>,
    job: Job,
    direction: Direction,
    copy: &Copy,
    earlier: NamedStream,
) -> Result<JobId> {
    let job = job.through_slots(&engine.options, direction, HostEnd::Memory, &copy.shape());
    // SAFETY: as the caller promised.
    unsafe { submit(engine, job, &[earlier]) }
}

/// Starts a copy of memory that the device can access directly. `note` records its use on a stream. After a failure,
/// waits for what was enqueued, which `failed` may note before.
///
/// # Safety
///
/// * As for [`submit`], and the host's memory stays until the work that was noted is done.
pub(super) unsafe fn start_direct(
    engine: &Arc<Engine>,
    job: Job,
    direction: Direction,
    copy: &Copy,
    earlier: NamedStream,
    note: impl FnOnce(StreamHandle) -> Result<()>,
    failed: impl FnOnce(StreamHandle),
) -> Result<JobId> {
    let job = Job { direction, total: copy.extent().bytes().get(), ..job };
    submit_direct(engine, job, &[earlier], |stream| {
        // SAFETY: as the caller promised.
        let copied = engine.retried(direction, || unsafe { engine.device.copy(copy, stream) });
        // Even after a failure, since a part of the copy may have been enqueued.
        let noted = note(stream);
        if copied.is_err() || noted.is_err() {
            failed(stream);
            // The program uses the memory again after this.
            let _ = engine.settle(direction, stream);
        }
        copied?;
        noted
    })
}

/// The ticket of a transfer that owns `memory`, or the error with it.
pub(super) fn begun<R: Send + 'static>(
    engine: &Arc<Engine>,
    started: Result<(JobId, NamedStream)>,
    memory: R,
) -> Begun<R> {
    match started {
        Ok((id, stream)) => Ok(Ticket::new(engine, id, stream, memory)),
        Err(error) => Err(Refused::new(memory, error)),
    }
}

impl<S, T, A> Endpoints for OwnedUpload<S, T, A>
where
    S: HostSource<T>,
    T: Pod + Send,
    A: Allocate + Send + 'static,
{
    type Submitted = Begun<(S, DeviceArray<T, A>)>;

    fn begin(self, TransferEngine { engine }: &TransferEngine, job: Job) -> Self::Submitted {
        let Self(source, array) = self;
        let started = source.elements().and_then(|elements| {
            let host = (elements.as_ptr(), elements.len());
            let is_pinned = source.is_pinned_for(&engine.device);
            let note = is_pinned.then_some(|stream| source.read_on(stream));
            // SAFETY: the ticket owns both until the transfer is settled, or gives them to the engine until then. The
            // elements stay where they are and nobody writes to them, as a source promises. Nobody else has the array.
            unsafe { start(engine, job, Direction::Up, host, &array, note) }
        });
        begun(engine, started, (source, array))
    }
}

impl<D, T, A> Endpoints for OwnedDownload<D, T, A>
where
    D: HostSink<T>,
    T: Pod + Send,
    A: Allocate + Send + 'static,
{
    type Submitted = Begun<(DeviceArray<T, A>, D)>;

    fn begin(self, TransferEngine { engine }: &TransferEngine, job: Job) -> Self::Submitted {
        let Self(array, mut sink) = self;
        let host = sink.elements_mut().map(|to| (to.as_mut_ptr().cast_const(), to.len()));
        let started = host.and_then(|host| {
            let is_pinned = sink.is_pinned_for(&engine.device);
            let note = is_pinned.then_some(|stream| sink.written_on(stream));
            // SAFETY: as for an upload; nobody else uses the elements, as a sink promises.
            unsafe { start(engine, job, Direction::Down, host, &array, note) }
        });
        begun(engine, started, (array, sink))
    }
}
