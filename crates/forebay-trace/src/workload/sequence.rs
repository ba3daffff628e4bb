//! The requests to one allocator, from first to last.

use forebay_core::Bytes;

use crate::{InvalidEvent, Trace, TraceBuilder};

/// How a phase is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Not timed: preparation or cleanup.
    Untimed,
    /// From its first event to its last.
    Together,
    /// Each allocation with the free that follows it.
    Each,
}

/// A part of a sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Phase {
    /// The name of its figure; empty if it is not timed.
    pub case: String,
    /// The number of events, over all threads.
    pub events: usize,
    /// How it is timed.
    pub timing: Timing,
}

impl Phase {
    /// The number of operations: an allocation and its free are one.
    pub fn operations(&self) -> u64 {
        (self.events as u64).div_ceil(2)
    }
}

/// Requests in phases, for a fresh allocator. Each stream is a separate thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    trace: Trace,
    phases: Vec<Phase>,
    limit: Option<Bytes>,
}

impl Sequence {
    /// The requests, with those of several threads interleaved.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// The phases, which together cover all requests.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.trace.streams().len()
    }

    /// The memory that the device should have; `None` if any sufficient amount will do.
    pub fn limit(&self) -> Option<Bytes> {
        self.limit
    }
}

/// The name of a block of a sequence in the making.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key(u64);

/// A sequence in the making.
#[derive(Debug)]
pub(super) struct SequenceBuilder {
    builder: TraceBuilder,
    phases: Vec<Phase>,
    told: usize,
    keys: u64,
    limit: Option<Bytes>,
}

impl SequenceBuilder {
    /// An empty sequence.
    pub(super) fn new(name: &str) -> Self {
        let builder = TraceBuilder::new(name);
        Self { builder, phases: Vec::new(), told: 0, keys: 0, limit: None }
    }

    /// Sets the memory of the device.
    pub(super) fn limit(mut self, limit: Bytes) -> Self {
        self.limit = Some(limit);
        self
    }

    /// A block that stays.
    pub(super) fn hold(&mut self, size: Bytes) -> Result<Key, InvalidEvent> {
        self.hold_on(size, 0)
    }

    /// The end of a block that stayed.
    pub(super) fn release(&mut self, key: Key) -> Result<(), InvalidEvent> {
        self.builder.free(key.0, 0)
    }

    /// A block that goes at once.
    pub(super) fn pair(&mut self, size: Bytes) -> Result<(), InvalidEvent> {
        self.pair_on(size, 0)
    }

    /// So many of them.
    pub(super) fn pairs(&mut self, size: Bytes, count: u32) -> Result<(), InvalidEvent> {
        (0..count).try_for_each(|_| self.pair(size))
    }

    /// A block that goes at once, on a thread of its own.
    pub(super) fn pair_on(&mut self, size: Bytes, thread: u64) -> Result<(), InvalidEvent> {
        let key = self.hold_on(size, thread)?;
        self.builder.free(key.0, thread)
    }

    /// So many blocks held together, then freed in the order they came.
    pub(super) fn batch(&mut self, size: Bytes, count: u32) -> Result<(), InvalidEvent> {
        let held: Result<Vec<Key>, InvalidEvent> = (0..count).map(|_| self.hold(size)).collect();
        held?.into_iter().try_for_each(|key| self.release(key))
    }

    fn hold_on(&mut self, size: Bytes, thread: u64) -> Result<Key, InvalidEvent> {
        let key = Key(self.keys);
        self.keys += 1;
        self.builder.allocate(key.0, size, thread)?;
        Ok(key)
    }

    /// What came since the last phase is preparation.
    pub(super) fn untimed(&mut self) {
        self.phase(String::new(), Timing::Untimed);
    }

    /// What came since the last phase is timed as one.
    pub(super) fn together(&mut self, case: impl Into<String>) {
        self.phase(case.into(), Timing::Together);
    }

    /// What came since the last phase is pairs that are timed one by one.
    pub(super) fn each(&mut self, case: impl Into<String>) {
        self.phase(case.into(), Timing::Each);
    }

    fn phase(&mut self, case: String, timing: Timing) {
        let events = self.builder.len() - self.told;
        self.told = self.builder.len();
        if events > 0 {
            self.phases.push(Phase { case, events, timing });
        }
    }

    /// The sequence. What came since the last phase is not timed.
    pub(super) fn finish(mut self) -> Sequence {
        self.untimed();
        Sequence { trace: self.builder.finish(), phases: self.phases, limit: self.limit }
    }
}
