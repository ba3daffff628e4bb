//! A transfer as it is asked for.

use std::sync::Arc;

use forebay_core::transfer::CopyShape;
use forebay_hal::Priority;

use super::engine::{Engine, TransferEngine};
use super::figures::Progress;
use super::job::{Direction, HostEnd, Observer, Order, Supply};

/// How a transfer is made.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    priority: Priority,
    pub(super) first: usize,
    pub(super) region: Option<Region>,
    /// Of a comparison: one of so many places.
    pub(super) sample: Option<u64>,
    observer: Option<Observer>,
}

/// Rows, or rows in slices: what is copied of host memory and of an array that hold more. All in elements.
///
/// ```
/// # use forebay::transfer::{Region, TransferEngine};
/// # use forebay::{HostDevice, Pool, StreamHandle};
/// # let device = HostDevice::open()?;
/// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
/// let picture: Vec<u8> = (0..16).collect(); // four rows of four
/// let mut array = pool.zeros::<u8>(6, StreamHandle::DEFAULT)?;
/// // The left three columns of two rows, packed on the device.
/// let region = Region::rows(3, 2).host_pitch(4, 0);
/// engine.scope(|transfers| transfers.upload(&picture, &mut array).region(region).submit().map(drop))??;
/// assert_eq!(array.to_vec()?, [0, 1, 2, 4, 5, 6]);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub(super) extent: [usize; 3],
    /// From a row to the next, and from a slice to the next.
    pub(super) host: [usize; 2],
    pub(super) device: [usize; 2],
}

impl Region {
    /// `rows` rows of `width` elements, without gaps on either side.
    pub fn rows(width: usize, rows: usize) -> Self {
        Self::volume(width, rows, 1)
    }

    /// `slices` slices of `rows` rows of `width` elements, without gaps on either side.
    pub fn volume(width: usize, rows: usize, slices: usize) -> Self {
        let packed = [width, width.saturating_mul(rows)];
        Self { extent: [width, rows, slices], host: packed, device: packed }
    }

    /// From a row to the next and from a slice to the next in host memory.
    pub fn host_pitch(mut self, row: usize, slice: usize) -> Self {
        self.host = [row, slice];
        self
    }

    /// From a row to the next and from a slice to the next in the array.
    pub fn device_pitch(mut self, row: usize, slice: usize) -> Self {
        self.device = [row, slice];
        self
    }
}

impl Choices {
    /// A transfer of a shape, whose sides are host memory and device memory by direction.
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

/// The two ends of a transfer, and whether it owns or borrows them.
pub trait Ends: Sized {
    /// A ticket, or the error with what was owned.
    type Submitted;

    /// Begins the transfer.
    #[doc(hidden)]
    fn begin(self, engine: &TransferEngine, choices: Choices) -> Self::Submitted;
}

/// A transfer that [`submit`](Self::submit) begins.
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

    /// The same as another transfer that it is a part of.
    pub(super) fn with(mut self, choices: Choices) -> Self {
        self.choices = choices;
        self
    }

    /// Above or below other transfers: of several, a piece of the most urgent one begins first. Pinned memory is copied by
    /// the device in one call, whatever the priority.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.choices.priority = priority;
        self
    }

    /// The index of the array's first element that takes part; 0 if this is not called.
    pub fn at(mut self, first: usize) -> Self {
        self.choices.first = first;
        self
    }

    /// Copies a region of the two sides instead of consecutive elements.
    pub fn region(mut self, region: Region) -> Self {
        self.choices.region = Some(region);
        self
    }

    /// Calls `observer` after each piece, on the thread that copied it. Pieces end in any order, and two calls may
    /// overlap. Pinned memory is one piece, at `submit`.
    pub fn on_progress(mut self, observer: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.choices.observer = Some(Observer(Arc::new(observer)));
        self
    }

    /// Begins the transfer.
    ///
    /// It does not wait for the transfer, but for the oldest of those whose tickets were dropped once 1,024 of them are not
    /// done.
    pub fn submit(self) -> E::Submitted {
        self.ends.begin(self.engine, self.choices)
    }
}
