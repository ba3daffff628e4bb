//! Runs the work late, one piece at a time, while some thread synchronises or queries.

use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forebay_core::{DeviceOrdinal, StreamId};
use forebay_hal::{Call, Error, HostTask, Progress, Result, run_host_task};
use forebay_sync::thread::spawn;

use super::{Engine, Health, Point, Reach, State, Work, lost};

/// How long a host function is waited for before the others go on. Most end at once, and then the
/// order of work depends on the seed alone; one that blocks must not block the machine.
const TASK_GRACE: Duration = Duration::from_millis(20);

/// How often a thread that waits for a host function looks again, should it miss the word.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How many pieces of work a stream holds before the caller has to help: as drivers block when
/// their queues are full. Without it a program that never synchronises would grow for ever.
const DEEPEST_QUEUE: usize = 1024;

/// The most pieces of work one query lets run. Few, so that work is late as on a device.
const MAX_STEPS_A_QUERY: u64 = 3;

impl Engine {
    /// Waits until `point` is reached, and takes note that the host has seen it.
    pub(crate) fn wait_for<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        call: Call,
        device: DeviceOrdinal,
        point: &Point,
    ) -> Result<MutexGuard<'a, State>> {
        loop {
            let device_lost = state.health.get(device.0 as usize) == Some(&Health::Lost);
            match state.reach(point.stream, point.number) {
                Reach::Done => break,
                Reach::Lost => return Err(lost(call)),
                Reach::Pending if device_lost => return Err(lost(call)),
                Reach::Pending => {}
            }
            let ran;
            (state, ran) = self.run_one(state);
            if ran || state.reach(point.stream, point.number) != Reach::Pending {
                continue;
            }
            if state.tasks == 0 {
                // Waits refer to earlier records alone, so something can always run.
                let reason = "no work can run: streams wait for each other";
                return Err(Error::Lost { call, reason: reason.into() });
            }
            state = self.look_again(state);
        }
        state.saw(point);
        Ok(state)
    }

    /// Lets a few pieces of work run, and says whether `point` is reached.
    pub(crate) fn poll<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        call: Call,
        point: &Point,
    ) -> Result<Progress> {
        for _ in 0..state.random.below(MAX_STEPS_A_QUERY + 1) {
            let ran;
            (state, ran) = self.run_one(state);
            if !ran {
                break;
            }
        }
        // A record takes a device no time: a stream with nothing but records before the point is there.
        while state.reach(point.stream, point.number) == Reach::Pending
            && let Some(lane) = state.lanes.get_mut(&point.stream)
            && !lane.busy
            && matches!(lane.queue.front(), Some(Work::Nothing))
        {
            lane.queue.pop_front();
            state.finish(point.stream);
        }
        match state.reach(point.stream, point.number) {
            Reach::Done => {
                state.saw(point);
                Ok(Progress::Done)
            }
            Reach::Pending => Ok(Progress::Pending),
            Reach::Lost => Err(lost(call)),
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
    pub(crate) fn drive(self: &Arc<Self>) {
        drop(self.run_one(self.lock()));
    }

    /// Waits a moment for something to change.
    fn look_again<'a>(&'a self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, LOOK_AGAIN);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Runs one piece of work, if any can run, or waits for the thread that is running one.
    ///
    /// The lock is let go meanwhile: a kernel's body, or what it drops, may call the device.
    fn run_one<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
    ) -> (MutexGuard<'a, State>, bool) {
        if state.running {
            return (self.look_again(state), true);
        }
        let Some(stream) = state.pick() else { return (state, false) };
        let Some(lane) = state.lanes.get_mut(&stream) else { return (state, false) };
        let Some(work) = lane.queue.pop_front() else { return (state, false) };
        lane.busy = true;
        state.update_ready(stream);
        if let Work::Task(task) = work {
            return (self.start_task(state, stream, task), true);
        }
        state.running = true;
        drop(state);
        // A kernel's body is the caller's: what it breaks stays in it.
        run_host_task(Box::new(|| work.run()));
        let mut state = self.lock();
        state.running = false;
        state.finish(stream);
        self.changed.notify_all();
        (state, true)
    }

    /// Starts a host function on a thread of its own, and gives it a moment to end.
    fn start_task<'a>(
        self: &'a Arc<Self>,
        mut state: MutexGuard<'a, State>,
        stream: StreamId,
        task: HostTask,
    ) -> MutexGuard<'a, State> {
        state.tasks += 1;
        drop(state);
        let engine = Arc::clone(self);
        spawn_or_run(VecDeque::from([Work::Task(task)]), move || {
            let mut state = engine.lock();
            state.tasks = state.tasks.saturating_sub(1);
            state.finish(stream);
            drop(state);
            engine.changed.notify_all();
        });
        let still_runs = |state: &mut State| state.lanes.get(&stream).is_some_and(|lane| lane.busy);
        self.changed
            .wait_timeout_while(self.lock(), TASK_GRACE, still_runs)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }

    /// Loses a device.
    pub(crate) fn lose(&self, device: DeviceOrdinal) {
        self.lock().lose(device);
        self.settle();
    }

    /// Ends the work of lost devices. Called with the lock let go.
    pub(super) fn settle(&self) {
        let leftovers = std::mem::take(&mut self.lock().leftovers);
        leftovers.into_iter().for_each(|work| spawn_or_run(work, || {}));
    }
}

impl State {
    /// Loses a device: what its streams held is lost. The work itself is left for
    /// [`Engine::settle`].
    pub(super) fn lose(&mut self, device: DeviceOrdinal) {
        if let Some(health) = self.health.get_mut(device.0 as usize) {
            *health = Health::Lost;
        }
        let lanes = self.lanes.iter_mut().filter(|(_, lane)| lane.device == device);
        let mut lost = Vec::new();
        for (&stream, lane) in lanes {
            lost.push(stream);
            let in_flight = u64::from(lane.busy);
            lane.lost_from.get_or_insert(lane.done + in_flight + 1);
            self.leftovers.push(std::mem::take(&mut lane.queue));
            // What never runs uses no memory: the host may take all of it away. What the stream had
            // waited for is another matter: that may be another device's, and still run.
            self.host.raise(lane.slot, lane.clock.count(lane.slot));
        }
        for stream in lost {
            self.update_ready(stream);
            self.wake(stream, u64::MAX);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.fork_generation.is_stale() {
            // Its work is the parent's, and its lock may be held for ever.
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for lane in state.lanes.values_mut() {
            state.leftovers.push(std::mem::take(&mut lane.queue));
        }
        self.settle();
    }
}

/// Ends work in order on a new thread, then does `after`; here and now where the system has no
/// thread to give. Host functions were promised to run, and do; copies and kernels are let go,
/// since the memory they name may be gone. A panic in one harms no other.
fn spawn_or_run(work: VecDeque<Work>, after: impl FnOnce() + Send + 'static) {
    if work.is_empty() {
        return after();
    }
    let all = move || {
        for work in work {
            match work {
                Work::Task(task) => run_host_task(task),
                other => run_host_task(Box::new(move || drop(other))),
            }
        }
        after();
    };
    let shared = Arc::new(Mutex::new(Some(all)));
    let take =
        |shared: &Mutex<Option<_>>| shared.lock().unwrap_or_else(PoisonError::into_inner).take();
    let theirs = Arc::clone(&shared);
    let started = spawn("forebay-sim", move || {
        if let Some(all) = take(&theirs) {
            all();
        }
    });
    if started.is_err()
        && let Some(all) = take(&shared)
    {
        all();
    }
}
