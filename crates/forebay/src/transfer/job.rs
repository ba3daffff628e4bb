//! A transfer, from the first option that the program sets until its end.

use core::task::Waker;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use forebay_core::transfer::{CopyShape, Item, Load, Packing, Piece, Pieces};
use forebay_core::{Address, Bytes};
use forebay_hal::{Event, Location, Priority, StreamHandle};

use super::files::Files;
use super::options::TransferOptions;
use super::region::Region;
use super::statistics::Progress;
use crate::Error;
use crate::sync::lock;

/// The number of a transfer.
pub(super) type JobId = u64;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Direction {
    #[default]
    Up,
    Down,
}

impl Direction {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Up => Self::Down,
            Self::Down => Self::Up,
        }
    }

    /// The two sides of a copy: where to, and where from.
    pub(super) fn ends(self, host: Address, device: Address) -> (Location, Location) {
        match self {
            Self::Up => (Location::Device(device), Location::Host(host)),
            Self::Down => (Location::Host(host), Location::Device(device)),
        }
    }
}

/// The host's end of a transfer.
#[derive(Clone, Debug, Default)]
pub(super) enum HostEnd {
    /// In memory, by address.
    #[default]
    Memory,
    /// In files, by offset.
    Files(Arc<Files>),
    /// In memory, by address: compared with what comes from the device. Holds the first address.
    Compared(u64),
}

/// The unit of copying: at most what fits in a slot.
#[derive(Clone, Debug)]
pub(super) enum Part {
    Rows(Piece),
    Load(Arc<[Item]>, Load),
}

impl Part {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Rows(piece) => piece.bytes().get(),
            Self::Load(_, load) => load.size,
        }
    }
}

/// The source of the parts.
#[derive(Debug, Default)]
pub(super) enum PartSource {
    /// None: the device copies directly.
    #[default]
    Nothing,
    Rows(Pieces),
    Items(Arc<[Item]>, Packing),
}

impl Iterator for PartSource {
    type Item = Part;

    fn next(&mut self) -> Option<Part> {
        match self {
            Self::Nothing => None,
            Self::Rows(pieces) => pieces.next().map(Part::Rows),
            Self::Items(items, packing) => {
                packing.load(items).map(|load| Part::Load(Arc::clone(items), load))
            }
        }
    }
}

/// A callback of the program, called after each piece.
#[derive(Clone)]
pub(super) struct Observer(pub(super) Arc<dyn Fn(Progress) + Send + Sync>);

impl core::fmt::Debug for Observer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Observer")
    }
}

/// The phase of a transfer.
#[derive(Clone, Debug, Default)]
pub(super) enum Phase {
    /// Parts are still to start, or in flight.
    #[default]
    Running,
    /// All parts were handed to the device, which has finished with them at the event.
    Ordered(Arc<Event>),
    Done,
    /// The host no longer uses the memory; the transfer's stream still may.
    Failed(Error),
}

/// The waker of a transfer that is polled as a future. A thread of the device locks it too, so this lock guards nothing
/// else.
#[derive(Debug, Default)]
pub(super) struct Signal {
    waker: Mutex<Option<Waker>>,
    /// Whether the device was asked to wake it.
    pub(super) asked: AtomicBool,
}

impl Signal {
    pub(super) fn set(&self, waker: &Waker) {
        let before = lock(&self.waker).replace(waker.clone());
        drop(before);
    }

    pub(super) fn wake(&self) {
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A transfer: what the program chose, what there is to copy, and how far it is.
#[derive(Debug, Default)]
pub struct Job {
    pub(super) priority: Priority,
    /// The array's first element.
    pub(super) first: usize,
    pub(super) region: Option<Region>,
    /// For a comparison: check one in so many places.
    pub(super) sample: Option<u64>,
    pub(super) observer: Option<Observer>,

    pub(super) direction: Direction,
    pub(super) host: HostEnd,
    pub(super) supply: PartSource,
    pub(super) total: u64,

    pub(super) stream: StreamHandle,
    /// The next part to start; `None` if there is none.
    pub(super) next: Option<Part>,
    /// Parts that were started in vain.
    pub(super) returned: Vec<Part>,
    pub(super) under_way: u32,
    pub(super) moved: u64,
    pub(super) failure: Option<Error>,
    pub(super) phase: Phase,
    /// Whether a thread is about to record the end.
    pub(super) concluding: bool,
    pub(super) signal: Arc<Signal>,
    /// When it was submitted, if the engine keeps a history.
    pub(super) begun: Option<Instant>,
}

impl Job {
    /// What there is to copy: the rows of a shape, through slots.
    pub(super) fn through_slots(
        self,
        options: &TransferOptions,
        direction: Direction,
        host: HostEnd,
        shape: &CopyShape,
    ) -> Self {
        let pieces = shape.pieces(options.chunk, u64::MAX).paced(options.pace());
        let (supply, total) = (PartSource::Rows(pieces), shape.bytes().get());
        Self { direction, host, supply, total, ..self }
    }

    /// The transfer is about to start on `stream`.
    pub(super) fn start(&mut self, stream: StreamHandle) {
        self.stream = stream;
        self.next = self.supply.next();
    }

    /// Starts the next part.
    pub(super) fn begin_part(&mut self) -> Option<Part> {
        let part = match self.returned.pop() {
            Some(part) => part,
            None => {
                let part = self.next.take()?;
                self.next = self.supply.next();
                part
            }
        };
        self.under_way += 1;
        Some(part)
    }

    /// Ends the transfer early: parts that have not started never will.
    pub(super) fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
        self.next = None;
        self.returned.clear();
    }

    /// Takes back a part that could not start after all, unless the transfer has failed.
    pub(super) fn put_back(&mut self, part: Part) {
        self.under_way -= 1;
        if self.failure.is_none() {
            self.returned.push(part);
        }
    }

    /// Whether a part is still to start.
    pub(super) fn has_next(&self) -> bool {
        self.next.is_some() || !self.returned.is_empty()
    }

    /// Whether no part is in flight or to come, and the end is not recorded yet.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Running)
            && self.under_way == 0
            && !self.has_next()
            && !self.concluding
    }

    pub(super) fn progress(&self) -> Progress {
        Progress { moved: Bytes::new(self.moved), total: Bytes::new(self.total) }
    }
}
