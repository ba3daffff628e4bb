//! Streams as the pool tells them apart: by small numbers.

use forebay_core::line::Streams;
use forebay_hal::StreamHandle;

const MOST: usize = Streams::MOST as usize;

/// A number, and who has it.
#[derive(Clone, Copy, Debug, Default)]
enum Lane {
    /// Nobody.
    #[default]
    Free,
    /// This stream, which was last asked for at that count of questions.
    Taken(StreamHandle, u64),
    /// A stream that is to be forgotten: the number may not be given again yet.
    Leaving,
}

/// The streams a pool has seen.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: [Lane; MOST],
    questions: u64,
    /// Streams of which it is not known whether they are still those they were.
    doubted: Vec<StreamHandle>,
}

impl Default for Lanes {
    fn default() -> Self {
        Self { lanes: [Lane::Free; MOST], questions: 0, doubted: Vec::new() }
    }
}

impl Lanes {
    /// The number of a stream that has one. Most programs have few streams, and those that are used
    /// come first: a short search.
    pub(super) fn get(&mut self, stream: StreamHandle) -> Option<u32> {
        self.questions += 1;
        let questions = self.questions;
        (0_u32..).zip(&mut self.lanes).find_map(|(number, lane)| match lane {
            Lane::Taken(handle, asked) if *handle == stream => {
                *asked = questions;
                Some(number)
            }
            _ => None,
        })
    }

    /// Whether a stream has a number.
    pub(super) fn knows(&self, stream: StreamHandle) -> bool {
        let is_it = |lane: &Lane| matches!(lane, Lane::Taken(handle, _) if *handle == stream);
        self.lanes.iter().any(is_it)
    }

    fn lane(&mut self, number: u32) -> Option<&mut Lane> {
        self.lanes.get_mut(usize::try_from(number).ok()?)
    }

    /// A number for a stream, its own where it has one; `None` where all are taken.
    pub(super) fn enrol(&mut self, stream: StreamHandle) -> Option<u32> {
        if let Some(number) = self.get(stream) {
            return Some(number);
        }
        let questions = self.questions;
        let mut lanes = (0_u32..).zip(&mut self.lanes);
        let (number, lane) = lanes.find(|(_, lane)| matches!(lane, Lane::Free))?;
        *lane = Lane::Taken(stream, questions);
        Some(number)
    }

    /// Notes whether a stream may be another than it was: then nothing can be learnt by its handle.
    pub(super) fn set_doubted(&mut self, stream: StreamHandle, doubted: bool) {
        self.doubted.retain(|&other| other != stream);
        self.doubted.extend(doubted.then_some(stream));
    }

    fn is_doubted(&self, stream: StreamHandle) -> bool {
        self.doubted.contains(&stream)
    }

    /// The stream that was not asked for for the longest, of those that can be waited for.
    pub(super) fn oldest(&self) -> Option<StreamHandle> {
        let taken = self.lanes.iter().filter_map(|lane| match *lane {
            Lane::Taken(stream, asked) if !self.is_doubted(stream) => Some((asked, stream)),
            _ => None,
        });
        taken.min().map(|(_, stream)| stream)
    }

    /// The stream of a number, unless it is leaving or may be another.
    pub(super) fn handle(&self, number: u32) -> Option<StreamHandle> {
        match *self.lanes.get(usize::try_from(number).ok()?)? {
            Lane::Taken(stream, _) if !self.is_doubted(stream) => Some(stream),
            _ => None,
        }
    }

    /// Takes a stream out; its number stays taken until [`gone`](Self::gone).
    pub(super) fn leave(&mut self, stream: StreamHandle) -> Option<u32> {
        let number = self.get(stream)?;
        *self.lane(number)? = Lane::Leaving;
        Some(number)
    }

    /// Takes back that a stream leaves.
    pub(super) fn stay(&mut self, stream: StreamHandle, number: u32) {
        let questions = self.questions;
        if let Some(lane) = self.lane(number) {
            *lane = Lane::Taken(stream, questions);
        }
    }

    /// Its work is done: the number may be given again.
    pub(super) fn gone(&mut self, number: u32) {
        if let Some(lane) = self.lane(number) {
            *lane = Lane::Free;
        }
    }
}
