//! Holds a stream back, to see what waits for it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::bench::Bench;
use super::verdict::{Step, Verdict, ensure};
use crate::StreamHandle;

/// After this a gate opens by itself, so that a device that waits where it should not fails a case
/// instead of hanging it. Long beside every pause in the suite, short beside the case's deadline.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The stream is held, or will be when it comes to the task.
    Closed,
    /// The case let it go.
    Open,
    /// It was not opened in time.
    Expired,
}

/// A host task that blocks its stream until the gate is opened. Opens when dropped.
#[must_use]
pub(super) struct Latch(Arc<(Mutex<State>, Condvar)>);

impl Latch {
    /// Closes a gate on `stream`: what is enqueued there from now on waits.
    pub(super) fn close(bench: &Bench, stream: StreamHandle) -> Step<Self> {
        let shared = Arc::new((Mutex::new(State::Closed), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let task = Box::new(move || {
            let (state, changed) = &*theirs;
            let guard = state.lock().unwrap_or_else(PoisonError::into_inner);
            let (mut guard, _) = changed
                .wait_timeout_while(guard, PATIENCE, |state| *state == State::Closed)
                .unwrap_or_else(PoisonError::into_inner);
            if *guard == State::Closed {
                *guard = State::Expired;
            }
        });
        bench.device().enqueue_host(task, stream)?;
        Ok(Self(shared))
    }

    /// Lets the stream go on. Fails where the gate had opened by itself: then something waited for
    /// the stream that had no business to.
    pub(super) fn open(&self) -> Verdict {
        ensure!(
            self.release() != State::Expired,
            "a call or another stream waited {} s for work it was not told to wait for",
            PATIENCE.as_secs()
        );
        Ok(())
    }

    /// Opens, and tells what the gate was.
    fn release(&self) -> State {
        let (state, changed) = &*self.0;
        let mut guard = state.lock().unwrap_or_else(PoisonError::into_inner);
        let was = *guard;
        if was == State::Closed {
            *guard = State::Open;
        }
        changed.notify_all();
        was
    }
}

impl Drop for Latch {
    fn drop(&mut self) {
        // A case that ends early leaves no thread blocked behind it.
        self.release();
    }
}
