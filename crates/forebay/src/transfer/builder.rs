//! Builders of transfers.

use std::sync::Arc;

use forebay_hal::Priority;

use super::engine::TransferEngine;
use super::figures::Progress;
use super::job::{Job, Observer};

/// A region of rows, or of rows in slices, within larger host memory and a larger array. All in elements.
///
/// ```
/// # use forebay::transfer::{Region, TransferEngine};
/// # use forebay::{HostDevice, Pool};
/// # let device = HostDevice::open()?;
/// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
/// let picture: Vec<u8> = (0..16).collect(); // four rows of four
/// let mut array = pool.default_stream().zeros::<u8>(6)?;
/// // The left three columns of two rows, packed on the device.
/// let region = Region::rows(3, 2).host_pitch(4, 0);
/// engine.scope(|transfers| transfers.upload(&picture, &mut array).region(region).submit().map(drop))??;
/// assert_eq!(array.to_vec()?, [0, 1, 2, 4, 5, 6]);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub(super) extent: [usize; 3],
    /// Distances from one row to the next, and from one slice to the next.
    pub(super) host: [usize; 2],
    pub(super) device: [usize; 2],
}

impl Region {
    /// `rows` rows of `width` elements, contiguous on both sides.
    pub fn rows(width: usize, rows: usize) -> Self {
        Self::volume(width, rows, 1)
    }

    /// `slices` slices of `rows` rows of `width` elements, contiguous on both sides.
    pub fn volume(width: usize, rows: usize, slices: usize) -> Self {
        let packed = [width, width.saturating_mul(rows)];
        Self { extent: [width, rows, slices], host: packed, device: packed }
    }

    /// Sets the distances between rows and between slices in host memory.
    pub fn host_pitch(mut self, row: usize, slice: usize) -> Self {
        self.host = [row, slice];
        self
    }

    /// Sets the distances between rows and between slices in the array.
    pub fn device_pitch(mut self, row: usize, slice: usize) -> Self {
        self.device = [row, slice];
        self
    }
}

/// The two ends of a transfer, owned or borrowed.
pub trait Ends: Sized {
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

impl<'e, E: Ends> Transfer<'e, E> {
    pub(super) fn new(engine: &'e TransferEngine, ends: E) -> Self {
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
