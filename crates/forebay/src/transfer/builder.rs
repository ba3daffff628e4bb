//! Builders of transfers.

use std::sync::Arc;

use forebay_core::transfer::CopyShape;
use forebay_hal::Priority;

use super::engine::{Engine, TransferEngine};
use super::figures::Progress;
use super::job::{Direction, HostEnd, Observer, Order, Supply};

/// The options of a transfer.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    priority: Priority,
    pub(super) first: usize,
    pub(super) region: Option<Region>,
    /// For a comparison: check one in so many places.
    pub(super) sample: Option<u64>,
    observer: Option<Observer>,
}

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

impl Choices {
    /// Makes the order for a shape; the direction tells which side is host memory.
    pub(super) fn order(
        self,
        engine: &Engine,
        direction: Direction,
        host: HostEnd,
        shape: &CopyShape,
    ) -> Order {
        let pieces = shape.pieces(engine.options.chunk, u64::MAX);
        let supply = Supply::Rows(pieces.paced(engine.options.pace()));
        self.order_of(direction, host, supply, shape.bytes().get())
    }

    pub(super) fn order_of(
        self,
        direction: Direction,
        host: HostEnd,
        supply: Supply,
        total: u64,
    ) -> Order {
        let Self { priority, observer, .. } = self;
        Order { direction, priority, host, supply, total, observer }
    }
}

/// The two ends of a transfer, owned or borrowed.
pub trait Ends: Sized {
    /// A ticket, or the error with any owned memory.
    type Submitted;

    /// Starts the transfer.
    #[doc(hidden)]
    fn begin(self, engine: &TransferEngine, choices: Choices) -> Self::Submitted;
}

/// A transfer to be started with [`submit`](Self::submit).
#[derive(Debug)]
#[must_use = "nothing is copied before `submit`"]
pub struct Transfer<'e, E> {
    engine: &'e TransferEngine,
    pub(super) ends: E,
    choices: Choices,
}

impl<'e, E: Ends> Transfer<'e, E> {
    pub(super) fn new(engine: &'e TransferEngine, ends: E) -> Self {
        Self { engine, ends, choices: Choices::default() }
    }

    pub(super) fn choices_mut(&mut self) -> &mut Choices {
        &mut self.choices
    }

    /// Takes the options of another transfer that it is a part of.
    pub(super) fn with(mut self, choices: Choices) -> Self {
        self.choices = choices;
        self
    }

    /// Sets the priority: pieces of the most urgent transfer start first. The device copies pinned memory in one call,
    /// whatever the priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.choices.priority = priority;
        self
    }

    /// Sets the index of the array's first element to transfer; 0 by default.
    pub fn at(mut self, first: usize) -> Self {
        self.choices.first = first;
        self
    }

    /// Copies a region of the two sides instead of consecutive elements.
    pub fn region(mut self, region: Region) -> Self {
        self.choices.region = Some(region);
        self
    }

    /// Calls `observer` after each piece, on the thread that copied it. Pieces finish in any order, and calls may
    /// overlap. Pinned memory is one piece, reported during `submit`.
    pub fn on_progress(mut self, observer: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.choices.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Starts the transfer.
    ///
    /// Does not wait for it. If 1,024 transfers whose tickets were dropped are still unfinished, waits for the oldest
    /// of those.
    pub fn submit(self) -> E::Submitted {
        self.ends.begin(self.engine, self.choices)
    }
}
