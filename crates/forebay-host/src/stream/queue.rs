//! The work of one stream, in order.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use forebay_core::StreamId;
use forebay_hal::Progress;

use super::worker::{self, Command};
use crate::space::Space;

/// Whether a stream takes work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    /// It does.
    Open,
    /// It was destroyed, or its device was: what is enqueued still runs, and nothing more comes.
    Closed,
}

/// Whether a stream has its thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    /// No work has come yet.
    Unstarted,
    /// It runs until the stream is closed and its work done.
    Started,
}

/// Why work was not enqueued.
#[derive(Debug)]
pub(crate) enum EnqueueError {
    /// The stream was destroyed.
    Closed,
    /// The system gave no thread for it.
    NoThread(std::io::Error),
}

/// The queue of a stream, shared by its device and its worker.
#[derive(Debug)]
pub(crate) struct Queue {
    id: StreamId,
    state: Mutex<State>,
    /// Work came, or none will any more.
    came: Condvar,
    /// Work was finished.
    went: Condvar,
}

#[derive(Debug)]
struct State {
    commands: VecDeque<Command>,
    /// How many commands were ever enqueued.
    enqueued: u64,
    /// How many of them are finished.
    finished: u64,
    life: QueueState,
    worker: Worker,
}

impl Queue {
    pub(crate) fn new() -> Self {
        let state = State {
            commands: VecDeque::new(),
            enqueued: 0,
            finished: 0,
            life: QueueState::Open,
            worker: Worker::Unstarted,
        };
        Self {
            id: StreamId(forebay_hal::fresh_handle()),
            state: Mutex::new(state),
            came: Condvar::new(),
            went: Condvar::new(),
        }
    }

    /// The stream's identity.
    pub(crate) fn id(&self) -> StreamId {
        self.id
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enqueues `command`. `space` is kept alive until the worker ends.
    pub(crate) fn push(
        self: &Arc<Self>,
        command: Command,
        space: &Arc<Space>,
    ) -> Result<(), EnqueueError> {
        let mut state = self.state();
        if state.life == QueueState::Closed {
            return Err(EnqueueError::Closed);
        }
        if state.worker == Worker::Unstarted {
            // Before the command is entered: where there is no thread, nothing has changed.
            worker::start(Arc::clone(self), Arc::clone(space)).map_err(EnqueueError::NoThread)?;
            state.worker = Worker::Started;
        }
        state.commands.push_back(command);
        state.enqueued += 1;
        self.came.notify_one();
        Ok(())
    }

    /// Lets the worker end once what is enqueued has run. Does not wait.
    pub(crate) fn close(&self) {
        self.state().life = QueueState::Closed;
        self.came.notify_one();
    }

    /// The next command, for the worker; `None` once the stream is closed and empty.
    pub(super) fn next(&self) -> Option<Command> {
        let mut state = self.state();
        loop {
            if let Some(command) = state.commands.pop_front() {
                return Some(command);
            }
            if state.life == QueueState::Closed {
                return None;
            }
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Counts a command as finished, for the worker.
    pub(super) fn finish(&self) {
        self.state().finished += 1;
        self.went.notify_all();
    }

    pub(crate) fn progress(&self) -> Progress {
        if self.is_done() { Progress::Done } else { Progress::Pending }
    }

    /// Whether all work is done.
    pub(crate) fn is_done(&self) -> bool {
        self.pending() == 0
    }

    /// How many commands are enqueued or running.
    pub(crate) fn pending(&self) -> u64 {
        let state = self.state();
        state.enqueued - state.finished
    }

    /// Waits until all that is enqueued now is done. What others enqueue meanwhile is not waited
    /// for: a busy stream would never be done.
    pub(crate) fn synchronize(&self) {
        let mut state = self.state();
        let target = state.enqueued;
        while state.finished < target {
            state = self.went.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
