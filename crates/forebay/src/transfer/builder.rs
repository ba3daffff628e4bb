//! Builders of transfers.

use std::sync::Arc;

use forebay_hal::Priority;

use super::engine::TransferEngine;
use super::job::{Job, Observer};
use super::region::Region;
use super::statistics::Progress;

/// The two ends of a transfer, owned or borrowed.
pub trait Endpoints: Sized {
    /// A ticket, or the error with any owned memory.
    type Submitted;

    /// Starts the transfer.
    #[doc(hidden)]
    fn begin(self, engine: &TransferEngine, job: Job) -> Self::Submitted;
}

/// A transfer to be started with [`submit`](Self::submit).
#[derive(Debug)]
#[must_use = "nothing is copied before `submit`"]
pub struct Transfer<'e, E> {
    pub(super) engine: &'e TransferEngine,
    pub(super) ends: E,
    pub(super) job: Job,
}

impl<'e, E: Endpoints> Transfer<'e, E> {
    pub(crate) fn new(engine: &'e TransferEngine, ends: E) -> Self {
        Self { engine, ends, job: Job::default() }
    }

    /// Sets the priority: pieces of the most urgent transfer start first. The device copies pinned memory in one call,
    /// whatever the priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.job.priority = priority;
        self
    }

    /// Sets the index of the array's first element to transfer; 0 by default.
    pub fn at(mut self, first: usize) -> Self {
        self.job.first = first;
        self
    }

    /// Copies a region of the two sides instead of consecutive elements.
    pub fn region(mut self, region: Region) -> Self {
        self.job.region = Some(region);
        self
    }

    /// Calls `observer` after each piece, on the thread that copied it. Pieces finish in any order, and calls may
    /// overlap. Pinned memory is one piece, reported during `submit`.
    pub fn on_progress(mut self, observer: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.job.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Starts the transfer.
    ///
    /// Does not wait for it. If 1,024 transfers whose tickets were dropped are still unfinished, waits for the oldest
    /// of those.
    pub fn submit(self) -> E::Submitted {
        self.ends.begin(self.engine, self.job)
    }
}
