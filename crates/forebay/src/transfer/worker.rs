//! Threads that fill and empty slots, and the life cycle of a transfer: submitted, run part by part, ended.

use core::time::Duration;
use std::cell::Cell;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{
    self as hal, Call, Event, NamedStream, Progress as DeviceProgress, StreamHandle,
};

use super::engine::Engine;
use super::job::{Direction, Job, JobId, Phase};
use super::state::{Kept, State, Step, Task};
use super::statistics::Progress;
use crate::callback::Callbacks;
use crate::handle::order::after;
use crate::pinned::PinnedArray;
use crate::sync::thread;
use crate::{Error, Result};

/// How often idle threads check the memory of dropped tickets.
const SWEEP: Duration = Duration::from_millis(2);

/// The most dropped tickets whose memory is kept while further transfers start.
const MAX_KEPT: usize = 1024;

/// How long a thread polls whether the device is done with a slot. After that it waits in the driver, and another
/// thread may poll another slot. A slot of 4 MiB takes 76 us on PCI Express 5.
const SEEK: Duration = Duration::from_micros(250);

/// The outcome of a part.
struct Outcome {
    bytes: u64,
    zeros: u64,
    result: Result<()>,
}

impl Outcome {
    fn failed(error: Error) -> Self {
        Self { bytes: 0, zeros: 0, result: Err(error) }
    }
}

/// Submits a transfer that starts after the work enqueued so far on `earlier`.
///
/// # Safety
///
/// * The memory of both sides is valid until the transfer is [settled](wait): readable where read, and where written,
///   used by nothing else.
pub(super) unsafe fn submit(
    engine: &Arc<Engine>,
    mut job: Job,
    earlier: &[NamedStream],
) -> Result<JobId> {
    let (id, stream) = begin(engine, job.direction, earlier)?;
    let parts = job.total.div_ceil(engine.options.least_piece());
    job.start(stream);
    let wanted = if job.has_next() { usize::try_from(parts).unwrap_or(usize::MAX) } else { 0 };
    engine.state().enter(id, job);
    if wanted == 0 {
        conclude(engine, id);
    } else {
        start_threads(engine, wanted);
        let idle = engine.state().idle;
        (0..wanted.min(idle)).for_each(|_| engine.work.notify_one());
    }
    Ok(id)
}

/// Submits a transfer that `enqueue` makes in one call: the device copies directly.
pub(super) fn submit_direct(
    engine: &Arc<Engine>,
    mut job: Job,
    earlier: &[NamedStream],
    enqueue: impl FnOnce(StreamHandle) -> Result<()>,
) -> Result<JobId> {
    let (direction, total) = (job.direction, job.total);
    let (id, stream) = begin(engine, direction, earlier)?;
    enqueue(stream)?;
    job.start(stream);
    job.moved = total;
    job.concluding = true;
    let told = job.observer.clone().map(|observer| (observer, job.progress()));
    let mut state = engine.state();
    state.enter(id, job);
    let statistics = &mut state.lane(direction).statistics;
    statistics.bytes = statistics.bytes.saturating_add(Bytes::new(total));
    drop(state);
    if let Some((observer, progress)) = told {
        let _ = engine.callbacks.call(|| (observer.0)(progress));
    }
    let phase = ordered(engine, direction, stream);
    end(engine, id, phase);
    Ok(id)
}

/// Returns the number of a new transfer, and its stream, which waits for the work on `earlier`.
fn begin(
    engine: &Arc<Engine>,
    direction: Direction,
    earlier: &[NamedStream],
) -> Result<(JobId, StreamHandle)> {
    engine.device.descriptor().check_process(Call::Copy)?;
    sweep(engine);
    make_room(engine);
    let id = engine.state().number();
    let stream = engine.stream(direction, id);
    engine.retried(direction, || after(&engine.device, stream, earlier.iter().copied()))?;
    Ok((id, stream))
}

/// Starts threads for `wanted` parts, if too few are idle and the limit allows more.
fn start_threads(engine: &Arc<Engine>, wanted: usize) {
    let missing = {
        let mut state = engine.state();
        let busy = state.up.workers + state.down.workers;
        let free = state.threads.saturating_sub(busy);
        let most = engine.options.threads.saturating_sub(state.threads);
        let missing = wanted.saturating_sub(free).min(most);
        state.threads += missing;
        missing
    };
    for started in 0..missing {
        let own = Arc::clone(engine);
        if thread::spawn("forebay-copy", move || work(&own)).is_ok() {
            continue;
        }
        let mut state = engine.state();
        state.threads = state.threads.saturating_sub(missing - started);
        drop(state);
        // If there are no threads at all, this one runs all steps, including those of other transfers.
        while let Some(step) = step_without_threads(engine) {
            run(engine, step);
        }
        return;
    }
}

fn step_without_threads(engine: &Engine) -> Option<Step> {
    let mut state = engine.state();
    if state.threads > 0 {
        return None;
    }
    state.step_in(Direction::Up).or_else(|| state.step_in(Direction::Down))
}

/// Runs steps until there have been none for a while.
fn work(engine: &Arc<Engine>) {
    let mut idle_since = Instant::now();
    loop {
        sweep(engine);
        let mut state = engine.state();
        if let Some(step) = state.step(engine.options.threads) {
            drop(state);
            let direction = step.direction();
            run(engine, step);
            // This thread checks for more work itself.
            engine.state().end_step(direction);
            idle_since = Instant::now();
            continue;
        }
        let nothing_is_kept = state.kept.is_empty();
        let linger = engine.options.linger;
        if state.is_idle() && nothing_is_kept && idle_since.elapsed() >= linger {
            state.threads = state.threads.saturating_sub(1);
            return;
        }
        let nap = if nothing_is_kept { linger.max(SWEEP) } else { SWEEP };
        state.idle += 1;
        let waited = engine.work.wait_timeout(state, nap);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.idle = state.idle.saturating_sub(1);
    }
}

/// Wakes a thread of the engine, if there is a step for it, and waiting threads of the program.
fn wake(engine: &Engine, state: MutexGuard<'_, State>) {
    let (is_worker_wanted, is_waited_for) = (state.idle > 0 && state.has_step(), state.waiting > 0);
    drop(state);
    if is_worker_wanted {
        engine.work.notify_one();
    }
    if is_waited_for {
        engine.changed.notify_all();
    }
}

/// Waits until the device is done with a slot.
fn settle_slot(engine: &Engine, direction: Direction, slot: &PinnedArray<u8>) -> Result<()> {
    let began = Instant::now();
    let mut is_idle = slot.is_idle();
    while !is_idle && began.elapsed() < SEEK {
        std::thread::yield_now();
        is_idle = slot.is_idle();
    }
    let mut state = engine.state();
    let lane = state.lane(direction);
    lane.seekers = lane.seekers.saturating_sub(1);
    wake(engine, state);
    if is_idle { Ok(()) } else { engine.retried(direction, || slot.wait()) }
}

/// Returns a slot for any thread to use.
fn return_slot(engine: &Engine, direction: Direction, slot: PinnedArray<u8>) {
    let mut state = engine.state();
    state.lane(direction).slots.push_back(slot);
    wake(engine, state);
}

/// Runs a step.
fn run(engine: &Arc<Engine>, step: Step) {
    let direction = step.direction();
    match step {
        Step::Send(task, slot) => {
            let sought = slot.as_ref().map_or(Ok(()), |slot| settle_slot(engine, direction, slot));
            let Some((task, mut slot)) = slot_for(engine, direction, task, slot) else { return };
            // SAFETY: the transfer is not settled while this part is under way, so both sides are as the caller of
            // `submit` promised.
            let mut send =
                || engine.retried(direction, || unsafe { engine.send(&task, &mut slot) });
            let sent = sought.and_then(|()| send());
            return_slot(engine, direction, slot);
            let outcome = match sent {
                Ok(zeros) => Outcome { bytes: task.part.bytes(), zeros, result: Ok(()) },
                Err(error) => Outcome::failed(error),
            };
            end_part(engine, direction, task.id, outcome);
        }
        Step::Fetch(task, slot) => {
            let Some((task, mut slot)) = slot_for(engine, direction, task, slot) else { return };
            // SAFETY: as above.
            match engine.retried(direction, || unsafe { engine.fetch(&task, &mut slot) }) {
                Ok(()) => {
                    let mut state = engine.state();
                    state.down.landings.push_back((task, slot));
                    wake(engine, state);
                }
                Err(error) => {
                    return_slot(engine, direction, slot);
                    end_part(engine, direction, task.id, Outcome::failed(error));
                }
            }
        }
        Step::Land(task, slot) => {
            // SAFETY: as above.
            let land = || engine.retried(direction, || unsafe { engine.land(&task, &slot) });
            let result = settle_slot(engine, direction, &slot).and_then(|()| land());
            return_slot(engine, direction, slot);
            let outcome = Outcome { bytes: task.part.bytes(), zeros: 0, result };
            end_part(engine, direction, task.id, outcome);
        }
    }
}

/// The slot of a task, or a new one. If none can be made, another slot serves the task later, or the transfer fails.
fn slot_for(
    engine: &Arc<Engine>,
    direction: Direction,
    task: Task,
    slot: Option<PinnedArray<u8>>,
) -> Option<(Task, PinnedArray<u8>)> {
    let error = match slot.map_or_else(|| engine.new_slot(), Ok) {
        Ok(slot) => return Some((task, slot)),
        Err(error) => error,
    };
    let id = task.id;
    let (is_put_back, is_over) = {
        let mut state = engine.state();
        let is_put_back = state.put_back(direction, task);
        (is_put_back, state.jobs.get(&id).is_some_and(Job::is_over))
    };
    if !is_put_back {
        end_part(engine, direction, id, Outcome::failed(error));
    } else if is_over {
        conclude(engine, id);
    } else {
        wake(engine, engine.state());
    }
    None
}

thread_local! {
    /// The engine and the transfer whose observer runs on this thread.
    static OBSERVED: Cell<(usize, JobId)> = const { Cell::new((0, 0)) };
}

/// Records the end of a part, and of the transfer if it was the last.
fn end_part(engine: &Arc<Engine>, direction: Direction, id: JobId, outcome: Outcome) {
    let mut state = engine.state();
    if outcome.result.is_ok() {
        let statistics = &mut state.lane(direction).statistics;
        statistics.bytes = statistics.bytes.saturating_add(Bytes::new(outcome.bytes));
        statistics.zeros = statistics.zeros.saturating_add(Bytes::new(outcome.zeros));
    }
    let Some(job) = state.jobs.get_mut(&id) else { return };
    job.under_way = job.under_way.saturating_sub(1);
    match outcome.result {
        Ok(()) => job.moved += outcome.bytes,
        Err(error) => job.fail(error),
    }
    let told = job.observer.clone().map(|observer| (observer, job.progress()));
    let over = job.is_over();
    drop(state);
    if let Some((observer, progress)) = told {
        let before = OBSERVED.replace((Arc::as_ptr(engine).addr(), id));
        let _ = engine.callbacks.call(|| (observer.0)(progress));
        OBSERVED.set(before);
    }
    if over {
        conclude(engine, id);
    } else {
        wake(engine, engine.state());
    }
}

/// Records the end of a transfer without parts in flight or to come.
pub(super) fn conclude(engine: &Arc<Engine>, id: JobId) {
    let (direction, stream, failure, is_empty) = {
        let mut state = engine.state();
        let Some(job) = state.jobs.get_mut(&id).filter(|job| job.is_over()) else { return };
        job.concluding = true;
        (job.direction, job.stream, job.failure.clone(), job.total == 0)
    };
    let phase = match (failure, direction) {
        (Some(error), _) => Phase::Failed(error),
        (None, Direction::Up) if !is_empty => ordered(engine, direction, stream),
        (None, _) => Phase::Done,
    };
    end(engine, id, phase);
}

/// The phase once all copies of a transfer are enqueued.
fn ordered(engine: &Engine, direction: Direction, stream: StreamHandle) -> Phase {
    match engine.event_after(direction, stream) {
        Ok(event) => Phase::Ordered(Arc::new(event)),
        // Without an event, wait for the end here.
        Err(error) => match engine.settle(direction, stream) {
            Ok(()) => Phase::Done,
            Err(_) => Phase::Failed(error),
        },
    }
}

fn end(engine: &Arc<Engine>, id: JobId, phase: Phase) {
    let mut state = engine.state();
    let Some(job) = state.jobs.get_mut(&id) else { return };
    let succeeded = !matches!(phase, Phase::Failed(_));
    job.phase = phase;
    let signal = Arc::clone(&job.signal);
    state.end(id, succeeded);
    wake(engine, state);
    let _ = engine.callbacks.call(|| signal.wake());
}

/// Works on a transfer until its parts are handed over, or it has failed. Waits if there is nothing to do. Returns the
/// resulting phase.
///
/// Does not work on other transfers: the caller may be a callback of one.
pub(super) fn run_until_ordered(engine: &Arc<Engine>, id: JobId) -> Option<Phase> {
    run_until(engine, id, None)
}

/// The same, until `deadline` at the latest.
pub(super) fn run_until(
    engine: &Arc<Engine>,
    id: JobId,
    deadline: Option<Instant>,
) -> Option<Phase> {
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut state = engine.state();
        let job = state.jobs.get(&id)?;
        match &job.phase {
            Phase::Running => {}
            phase => return Some(phase.clone()),
        }
        if left == Some(Duration::ZERO) {
            return Some(Phase::Running);
        }
        let is_over = job.is_over();
        if let Some(step) = state.step_of(id) {
            drop(state);
            run(engine, step);
        } else if is_over && OBSERVED.get() == (Arc::as_ptr(engine).addr(), id) {
            // An observer waits for its own transfer: this thread would end it after the call.
            drop(state);
            conclude(engine, id);
        } else {
            state.waiting += 1;
            let mut state = match left {
                None => engine.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    engine
                        .changed
                        .wait_timeout(state, left)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
            state.waiting = state.waiting.saturating_sub(1);
        }
    }
}

/// Waits until a transfer is settled, so that nothing uses its memory any more. Then forgets it.
pub(super) fn wait(engine: &Arc<Engine>, id: JobId) -> Result<()> {
    engine.device.descriptor().check_process(Call::SynchronizeEvent)?;
    let Some(phase) = run_until_ordered(engine, id) else { return Ok(()) };
    let outcome = settle(engine, id, phase);
    forget(engine, id);
    outcome
}

/// Waits until all parts of a transfer are handed to the device, and makes later work on `stream` wait for them there.
/// Then forgets it.
pub(super) fn order(engine: &Arc<Engine>, id: JobId, stream: NamedStream) -> Result<()> {
    engine.device.descriptor().check_process(Call::WaitEvent)?;
    if let Some(Phase::Ordered(event)) = run_until_ordered(engine, id)
        && makes_wait(engine, stream, &event)
    {
        forget(engine, id);
        return Ok(());
    }
    wait(engine, id)
}

/// Makes later work on `stream` wait for `event`. Returns `false` if that is not possible, or the stream has ended, as
/// the wait would then affect the stream that has its handle now.
pub(super) fn makes_wait(engine: &Engine, stream: NamedStream, event: &Event) -> bool {
    !stream.has_ended(&engine.device)
        && engine.device.wait_event(stream.handle(), event.handle()).is_ok()
}

/// Forgets a transfer that is settled or ordered. Drops the program's values in it without the lock.
pub(super) fn forget(engine: &Engine, id: JobId) {
    let job = engine.state().jobs.remove(&id);
    let _ = engine.callbacks.call(|| drop(job));
}

/// The progress of a transfer.
pub(super) fn progress(engine: &Engine, id: JobId) -> Progress {
    if engine.device.descriptor().is_from_parent() {
        return Progress::default();
    }
    engine.state().jobs.get(&id).map(Job::progress).unwrap_or_default()
}

/// Whether parts of a transfer are still to start or in flight.
pub(super) fn is_running(engine: &Engine, id: JobId) -> bool {
    let state = engine.state();
    state.jobs.get(&id).is_some_and(|job| matches!(job.phase, Phase::Running))
}

/// Waits for the device's part of a transfer.
pub(super) fn settle(engine: &Engine, id: JobId, phase: Phase) -> Result<()> {
    let of = engine.state().jobs.get(&id).map(|job| (job.direction, job.stream));
    let Some((direction, stream)) = of else { return Ok(()) };
    match phase {
        Phase::Running | Phase::Done => Ok(()),
        Phase::Ordered(event) => {
            let waited = engine.retried(direction, || event.synchronize());
            waited.or_else(|_| engine.settle(direction, stream))
        }
        Phase::Failed(error) => {
            // Copies enqueued before may still use the device's side.
            let _ = engine.settle(direction, stream);
            Err(error)
        }
    }
}

/// Whether nothing uses the memory of a transfer any more, as far as is known without waiting. On a lost device nothing
/// does.
pub(super) fn is_settled(engine: &Engine, id: JobId) -> bool {
    if engine.device.descriptor().is_from_parent() {
        return false;
    }
    let (phase, stream) = {
        let state = engine.state();
        let Some(job) = state.jobs.get(&id) else { return true };
        (job.phase.clone(), job.stream)
    };
    let is_done = |progress: hal::Result<DeviceProgress>| match progress {
        Ok(progress) => progress == DeviceProgress::Done,
        Err(error) => !error.may_pass(),
    };
    match phase {
        Phase::Running => false,
        Phase::Ordered(event) => is_done(event.query()),
        Phase::Done => true,
        Phase::Failed(_) => is_done(engine.device.query_stream(stream)),
    }
}

/// Releases a transfer whose ticket is dropped, if its memory can be dropped now: all of it was handed to the device,
/// and later work on `stream`, the array's, waits for that.
pub(super) fn release(engine: &Engine, id: JobId, stream: NamedStream) -> bool {
    let ordered = match engine.state().jobs.get(&id).map(|job| job.phase.clone()) {
        Some(Phase::Ordered(event)) => makes_wait(engine, stream, &event),
        _ => false,
    };
    let released = ordered || is_settled(engine, id);
    if released {
        forget(engine, id);
    }
    released
}

/// Keeps the memory of a dropped ticket until its transfer is settled.
pub(super) fn keep(engine: &Arc<Engine>, kept: Kept) {
    engine.state().kept.push_back(kept);
    start_threads(engine, 1);
    engine.work.notify_one();
}

/// Frees the memory of dropped tickets whose transfers are settled, oldest first.
pub(super) fn sweep(engine: &Engine) {
    loop {
        let Some(id) = engine.state().kept.front().map(|kept| kept.id) else { return };
        if !is_settled(engine, id) {
            return;
        }
        let (kept, job) = {
            let mut state = engine.state();
            // Another thread may have been faster.
            if state.kept.front().is_none_or(|kept| kept.id != id) {
                continue;
            }
            (state.kept.pop_front(), state.jobs.remove(&id))
        };
        // Drop without the lock: these values are the program's.
        let _ = engine.callbacks.call(|| drop((kept, job)));
    }
}

/// Finishes the oldest transfers whose tickets were dropped, if there are too many: a program that starts transfers
/// faster than they end waits and helps here. A callback does not, since it may belong to one of them.
fn make_room(engine: &Arc<Engine>) {
    let oldest = || {
        let state = engine.state();
        let is_full = state.kept.len() >= MAX_KEPT;
        state.kept.front().map(|kept| kept.id).filter(|_| is_full)
    };
    while !Callbacks::is_inside()
        && let Some(id) = oldest()
    {
        if let Some(phase) = run_until_ordered(engine, id) {
            // Neither its memory nor its error is of interest to anyone.
            let _ = settle(engine, id, phase);
        }
        sweep(engine);
        if oldest() == Some(id) {
            // The device cannot tell whether it is done.
            return;
        }
    }
}

/// Cancels a transfer. Returns `false` if all of it was already handed over.
pub(super) fn cancel(engine: &Arc<Engine>, id: JobId) -> bool {
    if engine.device.descriptor().is_from_parent() {
        return false;
    }
    let mut state = engine.state();
    let Some(job) = state.jobs.get_mut(&id) else { return false };
    let is_running = matches!(job.phase, Phase::Running) && !job.is_over();
    if !is_running || job.concluding || job.failure.is_some() {
        return false;
    }
    let progress = job.progress();
    job.fail(Error::Cancelled { moved: progress.moved, total: progress.total });
    let over = job.is_over();
    drop(state);
    if over {
        conclude(engine, id);
    }
    true
}
