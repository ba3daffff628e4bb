//! Running the work: late, one piece at a time, while some thread synchronises or queries.

use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use forebay_core::{DeviceOrdinal, StreamId};
use forebay_hal::{Call, Error, HostTask, Progress, Result, run_host_task};

use super::{Engine, Health, Lane, Point, State, Work, lost};

/// How long a host function is waited for before the others go on. Most end at once, and then the
/// order of work depends on the seed alone; one that blocks must not block the machine.
const TASK_GRACE: Duration = Duration::from_millis(20);

/// How often a thread that waits for a host function looks again, should it miss the word.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How many pieces of work a stream holds before the caller has to help: as drivers block when
/// their queues are full. Without it a program that never synchronises would grow for ever.
const DEEPEST_QUEUE: usize = 1024;

/// The most pieces of work one query lets run. Few, so that work is late as on a device.
const MOST_STEPS_A_QUERY: u64 = 3;

impl Engine {
    /// Waits until `point` is reached, and takes note that the host has seen it.
    pub(crate) fn wait_for<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        call: Call,
        device: DeviceOrdinal,
        point: &Point,
    ) -> Result<MutexGuard<'a, State>> {
        while !state.is_done(point.stream, point.number) {
            if state.health.get(device.0 as usize) == Some(&Health::Lost) {
                return Err(lost(call));
            }
            let ran;
            (state, ran) = self.run_one(state);
            if ran || state.is_done(point.stream, point.number) {
                continue;
            }
            if state.tasks == 0 {
                // Waits refer to earlier records alone, so something can always run.
                let reason = "no work can run: streams wait for each other";
                return Err(Error::Lost { call, reason: reason.into() });
            }
            state = self
                .changed
                .wait_timeout(state, LOOK_AGAIN)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.saw(point);
        Ok(state)
    }

    /// Lets a few pieces of work run, and says whether `point` is reached.
    pub(crate) fn poll<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        point: &Point,
    ) -> (MutexGuard<'a, State>, Progress) {
        for _ in 0..state.random.below(MOST_STEPS_A_QUERY + 1) {
            let ran;
            (state, ran) = self.run_one(state);
            if !ran {
                break;
            }
        }
        if state.is_done(point.stream, point.number) {
            state.saw(point);
            (state, Progress::Done)
        } else {
            (state, Progress::Pending)
        }
    }

    /// Runs work until the queue of `stream` is not too deep, as far as any can run.
    pub(crate) fn relieve<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        stream: StreamId,
    ) -> MutexGuard<'a, State> {
        while state.lanes.get(&stream).is_some_and(|lane| lane.queue.len() > DEEPEST_QUEUE) {
            let ran;
            (state, ran) = self.run_one(state);
            if !ran {
                break;
            }
        }
        state
    }

    /// Runs one piece of work, if any can run.
    fn run_one<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, bool) {
        let Some(stream) = state.pick() else { return (state, false) };
        let work = state.lanes.get_mut(&stream).and_then(|lane| lane.queue.pop_front());
        match work {
            None => return (state, false),
            Some(Work::Task(task)) => state = self.start_task(state, stream, task),
            Some(work) => {
                // A kernel's body is the caller's: what it breaks stays in it.
                run_host_task(Box::new(|| work.run()));
                state.finish(stream);
            }
        }
        (state, true)
    }

    /// Starts a host function on a thread of its own, and gives it a moment to end.
    fn start_task<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        stream: StreamId,
        task: HostTask,
    ) -> MutexGuard<'a, State> {
        if let Some(lane) = state.lanes.get_mut(&stream) {
            lane.in_task = true;
        }
        state.tasks += 1;
        drop(state);
        let engine = Arc::clone(self);
        spawn_or_run(vec![task], move || {
            let mut state = engine.lock();
            state.tasks = state.tasks.saturating_sub(1);
            if let Some(lane) = state.lanes.get_mut(&stream) {
                lane.in_task = false;
            }
            state.finish(stream);
            drop(state);
            engine.changed.notify_all();
        });
        let ended = |state: &mut State| state.lanes.get(&stream).is_some_and(|lane| lane.in_task);
        self.changed
            .wait_timeout_while(self.lock(), TASK_GRACE, ended)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

impl State {
    /// Loses a device: its streams count as ended, and nothing they held is done but host
    /// functions.
    pub(crate) fn lose(&mut self, device: DeviceOrdinal) {
        if let Some(health) = self.health.get_mut(device.0 as usize) {
            *health = Health::Lost;
        }
        let lanes = self.lanes.iter_mut().filter(|(_, lane)| lane.device == device);
        let streams: Vec<StreamId> = lanes
            .map(|(&stream, lane)| {
                lane.abandon();
                // What never runs uses no memory: the host may take all of it away.
                self.host.join(&lane.clock);
                stream
            })
            .collect();
        streams.into_iter().for_each(|stream| self.retire(stream));
    }
}

impl Lane {
    /// Ends the stream's work. Host functions were promised to run, and do, in their order; copies
    /// and kernels are let go, since the memory they name may be gone.
    fn abandon(&mut self) {
        self.done += self.queue.len() as u64;
        let tasks: Vec<HostTask> = self
            .queue
            .drain(..)
            .filter_map(|work| match work {
                Work::Task(task) => Some(task),
                _ => None,
            })
            .collect();
        if !tasks.is_empty() {
            spawn_or_run(tasks, || {});
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.lanes.values_mut().for_each(Lane::abandon);
    }
}

/// Runs host functions in order on a new thread, then `after`; here and now where the system has
/// no thread to give. A panic in one harms no other.
fn spawn_or_run(tasks: Vec<HostTask>, after: impl FnOnce() + Send + 'static) {
    let all = move || {
        tasks.into_iter().for_each(run_host_task);
        after();
    };
    let shared = Arc::new(Mutex::new(Some(all)));
    let take =
        |shared: &Mutex<Option<_>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&shared);
    let thread = thread::Builder::new().name("forebay-sim task".into()).spawn(move || {
        if let Some(all) = take(&theirs) {
            all();
        }
    });
    if thread.is_err()
        && let Some(all) = take(&shared)
    {
        all();
    }
}
