//! Threads that run what drivers' callbacks hand over, because a callback must not block.

use core::fmt;
use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use forebay_sync::{lock, thread};

/// How long a thread waits for another job before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// As many threads as there are jobs at once, since any may block.
pub struct Workers<J> {
    name: &'static str,
    run: fn(J),
    state: Mutex<State<J>>,
    came: Condvar,
}

struct State<J> {
    jobs: VecDeque<J>,
    /// Threads that wait for a job.
    idle: usize,
    threads: usize,
}

impl<J> Workers<J> {
    /// No threads yet. Those to come have this name and do a job by `run`, which may block.
    pub const fn new(name: &'static str, run: fn(J)) -> Self {
        let state = State { jobs: VecDeque::new(), idle: 0, threads: 0 };
        Self { name, run, state: Mutex::new(state), came: Condvar::new() }
    }
}

impl<J: Send> Workers<J> {
    /// Has a thread run the job, soon.
    pub fn hand_over(&'static self, job: J) {
        let mut state = lock(&self.state);
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.came.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        if thread::spawn(self.name, || self.work()).is_ok() {
            return;
        }
        let mut state = lock(&self.state);
        state.threads -= 1;
        // An idle thread will come to it. The others may be blocked until this very job is done, so without an idle one
        // this thread runs it, which holds back whoever called.
        let job = if state.idle == 0 { state.jobs.pop_front() } else { None };
        drop(state);
        if let Some(job) = job {
            (self.run)(job);
        }
    }

    fn work(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                (self.run)(job);
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let (guard, waited) =
                self.came.wait_timeout(state, PATIENCE).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

impl<J> fmt::Debug for Workers<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workers").field("name", &self.name).finish_non_exhaustive()
    }
}
