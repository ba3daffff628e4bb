//! Streams as the pool tells them apart: by small numbers.

use std::collections::{BTreeMap, HashMap};

use forebay_core::line::Streams;
use forebay_hal::StreamHandle;

/// The streams a pool has seen.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    numbers: HashMap<StreamHandle, u32>,
    handles: BTreeMap<u32, StreamHandle>,
    /// Numbers of streams that are to be forgotten, and may not be given again yet.
    leaving: Streams,
    /// When each number was asked for last, by the count of questions.
    asked: BTreeMap<u32, u64>,
    questions: u64,
}

impl Lanes {
    /// The number of a stream that has one.
    pub(super) fn get(&mut self, stream: StreamHandle) -> Option<u32> {
        let number = self.numbers.get(&stream).copied()?;
        self.questions += 1;
        self.asked.insert(number, self.questions);
        Some(number)
    }

    /// A number for a stream that has none; `None` where all are taken.
    pub(super) fn enrol(&mut self, stream: StreamHandle) -> Option<u32> {
        if let Some(number) = self.get(stream) {
            return Some(number);
        }
        let taken = |number: &u32| {
            self.handles.contains_key(number) || self.leaving.contains(Streams::only(*number))
        };
        let number = (0..Streams::MOST).find(|number| !taken(number))?;
        self.numbers.insert(stream, number);
        self.handles.insert(number, stream);
        self.get(stream)
    }

    /// The stream that was not asked for for the longest.
    pub(super) fn oldest(&self) -> Option<StreamHandle> {
        let asked = |number: &u32| self.asked.get(number).copied();
        let oldest = self.handles.iter().min_by_key(|(number, _)| asked(number))?;
        Some(*oldest.1)
    }

    /// The stream of a number, unless it is leaving.
    pub(super) fn handle(&self, number: u32) -> Option<StreamHandle> {
        self.handles.get(&number).copied()
    }

    /// Takes a stream out; its number stays taken until [`gone`](Self::gone).
    pub(super) fn leave(&mut self, stream: StreamHandle) -> Option<u32> {
        let number = self.numbers.remove(&stream)?;
        self.handles.remove(&number);
        self.asked.remove(&number);
        self.leaving = self.leaving.or(Streams::only(number));
        Some(number)
    }

    /// Takes back that a stream leaves.
    pub(super) fn stay(&mut self, stream: StreamHandle, number: u32) {
        self.leaving = self.leaving.without(Streams::only(number));
        self.numbers.insert(stream, number);
        self.handles.insert(number, stream);
    }

    /// Its work is done: the number may be given again.
    pub(super) fn gone(&mut self, number: u32) {
        self.leaving = self.leaving.without(Streams::only(number));
    }
}
