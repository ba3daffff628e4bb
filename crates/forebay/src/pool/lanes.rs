//! Streams as the pool tells them apart: by small numbers.

use std::collections::BTreeMap;

use forebay_core::line::Streams;
use forebay_hal::StreamHandle;

use crate::{Error, Result};

/// The streams a pool has seen.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    numbers: BTreeMap<StreamHandle, u32>,
    handles: BTreeMap<u32, StreamHandle>,
    /// Numbers of streams that are to be forgotten, and may not be given again yet.
    leaving: Streams,
}

impl Lanes {
    /// The number of a stream; a new one for one not seen before.
    pub(super) fn number(&mut self, stream: StreamHandle) -> Result<u32> {
        if let Some(&number) = self.numbers.get(&stream) {
            return Ok(number);
        }
        let taken = |number: &u32| {
            self.handles.contains_key(number) || self.leaving.contains(Streams::only(*number))
        };
        let free = (0..Streams::MOST).find(|number| !taken(number));
        let number = free.ok_or(Error::TooManyStreams { stream, most: Streams::MOST })?;
        self.numbers.insert(stream, number);
        self.handles.insert(number, stream);
        Ok(number)
    }

    /// The stream of a number, unless it is leaving.
    pub(super) fn handle(&self, number: u32) -> Option<StreamHandle> {
        self.handles.get(&number).copied()
    }

    /// Takes a stream out; its number stays taken until [`gone`](Self::gone).
    pub(super) fn leave(&mut self, stream: StreamHandle) -> Option<u32> {
        let number = self.numbers.remove(&stream)?;
        self.handles.remove(&number);
        self.leaving = self.leaving.or(Streams::only(number));
        Some(number)
    }

    /// Its work is done: the number may be given again.
    pub(super) fn gone(&mut self, number: u32) {
        self.leaving = self.leaving.without(Streams::only(number));
    }
}
