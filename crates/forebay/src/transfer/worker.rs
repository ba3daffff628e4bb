//! Threads that fill and empty slots, and the life of a transfer: entered, part by part, ended.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::Bytes;
use forebay_hal::{self as hal, Call, Progress as DeviceProgress, StreamHandle};

use super::engine::Engine;
use super::figures::Progress;
use super::job::{Direction, Job, JobId, Order, Phase};
use super::state::{Step, Task};
use crate::handle::order::after;
use crate::sync::thread;
use crate::{Error, Result};

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_millis(200);

/// How often the memory of dropped tickets is looked at while there is nothing else to do.
const SWEEP: Duration = Duration::from_millis(2);

/// What is done with a part.
struct Outcome {
    bytes: u64,
    zeros: u64,
    result: Result<()>,
}

/// Enters a transfer that begins after the work enqueued on `earlier` so far.
///
/// # Safety
///
/// * The memory of both sides is valid until the transfer is [settled](wait): readable where read, and where written, used
///   by nobody else.
pub(super) unsafe fn submit(
    engine: &Arc<Engine>,
    order: Order,
    earlier: &[StreamHandle],
) -> Result<JobId> {
    engine.device.descriptor().check_process(Call::Copy)?;
    sweep(engine);
    let direction = order.direction;
    let id = engine.state().number();
    let stream = engine.stream(direction, id);
    after(&engine.device, stream, earlier.iter().copied())?;
    let parts = order.total.div_ceil(engine.options.chunk.get().max(1));
    let job = Job::new(order, stream);
    let is_empty = !job.has_next();
    let wanted = usize::try_from(parts).unwrap_or(usize::MAX).min(engine.options.threads);
    let mut missing = {
        let mut state = engine.state();
        state.enter(id, job);
        let missing = if is_empty { 0 } else { wanted.saturating_sub(state.threads) };
        state.threads += missing;
        missing
    };
    if is_empty {
        conclude(engine, id);
        return Ok(id);
    }
    while missing > 0 {
        let own = Arc::clone(engine);
        if thread::spawn("forebay-copy", move || work(&own)).is_err() {
            break;
        }
        missing -= 1;
    }
    if missing > 0 {
        let mut state = engine.state();
        state.threads = state.threads.saturating_sub(missing);
        let alone = state.threads == 0;
        drop(state);
        if alone {
            // No thread could be started: it is done here.
            let _ = run_until_ordered(engine, id);
        }
    }
    engine.changed.notify_all();
    Ok(id)
}

/// Enters a transfer that `enqueue` makes in one call: the device copies on its own.
pub(super) fn submit_direct(
    engine: &Arc<Engine>,
    order: Order,
    earlier: &[StreamHandle],
    enqueue: impl FnOnce(StreamHandle) -> Result<()>,
) -> Result<JobId> {
    engine.device.descriptor().check_process(Call::Copy)?;
    sweep(engine);
    let (direction, total) = (order.direction, order.total);
    let id = engine.state().number();
    let stream = engine.stream(direction, id);
    after(&engine.device, stream, earlier.iter().copied())?;
    enqueue(stream)?;
    let mut job = Job::new(order, stream);
    job.moved = total;
    engine.state().enter(id, job);
    conclude_direct(engine, id);
    Ok(id)
}

/// Does what there is to do until there has been nothing for a while.
fn work(engine: &Arc<Engine>) {
    let mut idle_since = Instant::now();
    loop {
        let step = {
            let mut state = engine.state();
            let step = state.step(engine.options.threads);
            if step.is_none() && idle_since.elapsed() >= IDLE && state.kept.is_empty() {
                state.threads = state.threads.saturating_sub(1);
                return;
            }
            step
        };
        if let Some(step) = step {
            run(engine, step);
            idle_since = Instant::now();
            continue;
        }
        sweep(engine);
        let state = engine.state();
        let nap = if state.kept.is_empty() { IDLE } else { SWEEP };
        if !state.has_steps() {
            drop(engine.changed.wait_timeout(state, nap));
        }
    }
}

/// Runs a step.
fn run(engine: &Arc<Engine>, step: Step) {
    let direction = step.direction();
    match step {
        Step::Send(task, slot) => {
            let Some((task, mut slot)) = slot_for(engine, direction, task, slot) else { return };
            // SAFETY: the transfer is not settled while this part is under way, so both sides are as the caller of
            // `submit` promised.
            let sent = unsafe { engine.send(&task, &mut slot) };
            engine.state().up.slots.push_back(slot);
            let zeros = *sent.as_ref().unwrap_or(&0);
            end_part(
                engine,
                direction,
                &task,
                Outcome { bytes: task.part.bytes(), zeros, result: sent.map(drop) },
            );
        }
        Step::Fetch(task, slot) => {
            let Some((task, mut slot)) = slot_for(engine, direction, task, slot) else { return };
            // SAFETY: as above.
            let fetched = unsafe { engine.fetch(&task, &mut slot) };
            match fetched {
                Ok(()) => {
                    let mut state = engine.state();
                    state.down.landings.push_back((task, slot));
                    state.end_step(direction);
                    drop(state);
                    engine.changed.notify_one();
                }
                Err(error) => {
                    engine.state().down.slots.push_back(slot);
                    end_part(
                        engine,
                        direction,
                        &task,
                        Outcome { bytes: 0, zeros: 0, result: Err(error) },
                    );
                }
            }
        }
        Step::Land(task, slot) => {
            // SAFETY: as above.
            let result = unsafe { engine.land(&task, &slot) };
            engine.state().down.slots.push_back(slot);
            end_part(
                engine,
                direction,
                &task,
                Outcome { bytes: task.part.bytes(), zeros: 0, result },
            );
        }
    }
}

/// The slot of a task, or a new one. If none can be made, another one serves the task later, or the transfer fails.
fn slot_for(
    engine: &Arc<Engine>,
    direction: Direction,
    task: Task,
    slot: Option<crate::pinned::PinnedArray<u8>>,
) -> Option<(Task, crate::pinned::PinnedArray<u8>)> {
    let error = match slot.map_or_else(|| engine.new_slot(), Ok) {
        Ok(slot) => return Some((task, slot)),
        Err(error) => error,
    };
    let mut state = engine.state();
    let (id, part) = (task.id, task.part.clone());
    let (host, stream) = (task.host.clone(), task.stream);
    if state.put_back(direction, task) {
        state.end_step(direction);
        let over = state.jobs.get(&id).is_some_and(Job::is_over);
        drop(state);
        if over {
            conclude(engine, id);
        }
        return None;
    }
    drop(state);
    let task = Task { id, part, host, stream };
    end_part(engine, direction, &task, Outcome { bytes: 0, zeros: 0, result: Err(error) });
    None
}

/// Notes the end of a part, and of the transfer if it was the last.
fn end_part(engine: &Arc<Engine>, direction: Direction, task: &Task, outcome: Outcome) {
    let mut state = engine.state();
    state.end_step(direction);
    if outcome.result.is_ok() {
        let figures = &mut state.lane(direction).figures;
        figures.bytes = figures.bytes.saturating_add(Bytes::new(outcome.bytes));
        figures.zeros = figures.zeros.saturating_add(Bytes::new(outcome.zeros));
    }
    let Some(job) = state.jobs.get_mut(&task.id) else { return };
    job.under_way = job.under_way.saturating_sub(1);
    match outcome.result {
        Ok(()) => job.moved += outcome.bytes,
        Err(error) => job.fail(error),
    }
    let told = job.observer.clone().map(|observer| (observer, job.progress()));
    let over = job.is_over();
    drop(state);
    if let Some((observer, progress)) = told {
        let _ = engine.callbacks.call(|| (observer.0)(progress));
    }
    if over {
        conclude(engine, task.id);
    } else {
        engine.changed.notify_one();
    }
}

/// Notes the end of a transfer of which no part is under way or to come.
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

/// Notes that a transfer was handed to the device as a whole.
fn conclude_direct(engine: &Arc<Engine>, id: JobId) {
    let known = engine.state().jobs.get(&id).map(|job| (job.direction, job.stream));
    let Some((direction, stream)) = known else { return };
    let phase = ordered(engine, direction, stream);
    end(engine, id, phase);
}

/// After all copies of a transfer were enqueued.
fn ordered(engine: &Arc<Engine>, direction: Direction, stream: StreamHandle) -> Phase {
    match engine.event_after(direction, stream) {
        Ok(event) => Phase::Ordered(Arc::new(event)),
        // Without an event its end is waited for here.
        Err(error) => {
            match engine.insisted(direction, || engine.device.synchronize_stream(stream)) {
                Ok(()) => Phase::Done,
                Err(_) => Phase::Failed(error.into()),
            }
        }
    }
}

fn end(engine: &Arc<Engine>, id: JobId, phase: Phase) {
    let mut state = engine.state();
    let Some(job) = state.jobs.get_mut(&id) else { return };
    let (direction, succeeded) = (job.direction, !matches!(phase, Phase::Failed(_)));
    job.phase = phase;
    let waker = job.waker.take();
    state.lane(direction).end(succeeded);
    drop(state);
    engine.changed.notify_all();
    if let Some(waker) = waker {
        waker.wake();
    }
}

/// Works on transfers in the direction of this one until its parts are handed over, or it has failed. Waits where there
/// is nothing to do. Returns how it ended.
pub(super) fn run_until_ordered(engine: &Arc<Engine>, id: JobId) -> Option<Phase> {
    loop {
        let mut state = engine.state();
        let job = state.jobs.get(&id)?;
        let direction = job.direction;
        match &job.phase {
            Phase::Running => {}
            phase => return Some(phase.clone()),
        }
        if let Some(step) = state.step_in(direction) {
            drop(state);
            run(engine, step);
        } else {
            drop(engine.changed.wait(state));
        }
    }
}

/// Waits until a transfer is settled: nothing uses its memory any more. Then forgets it.
pub(super) fn wait(engine: &Arc<Engine>, id: JobId) -> Result<()> {
    engine.device.descriptor().check_process(Call::SynchronizeEvent)?;
    let Some(phase) = run_until_ordered(engine, id) else { return Ok(()) };
    let outcome = settle(engine, id, phase);
    engine.state().jobs.remove(&id);
    outcome
}

/// Waits until all parts of a transfer were handed to the device, and makes later work on `stream` wait for them there.
/// Then forgets it.
pub(super) fn order(engine: &Arc<Engine>, id: JobId, stream: StreamHandle) -> Result<()> {
    engine.device.descriptor().check_process(Call::WaitEvent)?;
    if let Some(Phase::Ordered(event)) = run_until_ordered(engine, id)
        && engine.device.wait_event(stream, event.handle()).is_ok()
    {
        engine.state().jobs.remove(&id);
        return Ok(());
    }
    wait(engine, id)
}

/// How far a transfer is.
pub(super) fn progress(engine: &Engine, id: JobId) -> Progress {
    engine.state().jobs.get(&id).map(Job::progress).unwrap_or_default()
}

/// Waits for the device's part of a transfer.
fn settle(engine: &Arc<Engine>, id: JobId, phase: Phase) -> Result<()> {
    let of = engine.state().jobs.get(&id).map(|job| (job.direction, job.stream));
    let Some((direction, stream)) = of else { return Ok(()) };
    let whole = || engine.device.synchronize_stream(stream);
    match phase {
        Phase::Running | Phase::Done => Ok(()),
        Phase::Ordered(event) => {
            let waited = engine.retried(direction, || event.synchronize());
            Ok(waited.or_else(|_| engine.insisted(direction, whole))?)
        }
        Phase::Failed(error) => {
            // Copies that were enqueued before may still use the device's side. If that cannot be waited for, the
            // device is lost, and its memory with it.
            let _ = engine.insisted(direction, whole);
            Err(error)
        }
    }
}

/// Whether nothing uses the memory of a transfer any more, as far as that is known without waiting.
pub(super) fn is_settled(engine: &Engine, id: JobId) -> bool {
    let (phase, stream) = {
        let state = engine.state();
        let Some(job) = state.jobs.get(&id) else { return true };
        (job.phase.clone(), job.stream)
    };
    let done = |progress: hal::Result<DeviceProgress>| matches!(progress, Ok(DeviceProgress::Done));
    match phase {
        Phase::Running => false,
        Phase::Ordered(event) => done(event.query()),
        Phase::Done => true,
        Phase::Failed(_) => done(engine.device.query_stream(stream)),
    }
}

/// Frees the memory of dropped tickets whose transfers are settled, the oldest first.
pub(super) fn sweep(engine: &Engine) {
    loop {
        let Some(id) = engine.state().kept.front().map(|kept| kept.id) else { return };
        if !is_settled(engine, id) {
            return;
        }
        let mut state = engine.state();
        // Another thread may have been faster.
        let is_it = state.kept.front().is_some_and(|kept| kept.id == id);
        let kept = if is_it { state.kept.pop_front() } else { None };
        if is_it {
            state.jobs.remove(&id);
        }
        drop(state);
        // Without the lock: it is the program's.
        drop(kept);
    }
}

/// Ends a transfer early. Returns `false` if all of it was handed over before.
pub(super) fn cancel(engine: &Arc<Engine>, id: JobId) -> bool {
    let mut state = engine.state();
    let Some(job) = state.jobs.get_mut(&id) else { return false };
    if !matches!(job.phase, Phase::Running) || job.concluding || job.failure.is_some() {
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
