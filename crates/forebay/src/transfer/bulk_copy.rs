//! The engine's implementation of bulk copies for arrays.

use std::sync::Arc;

use forebay_hal::{Copy, NamedStream, Place};

use super::builder::Choices;
use super::engine::Engine;
use super::job::Direction;
use super::owned::begin;
use super::worker::wait;
use crate::Result;
use crate::bulk::BulkCopy;

impl BulkCopy for Engine {
    unsafe fn copy(self: Arc<Self>, copy: &Copy, stream: NamedStream) -> Result<()> {
        let direction =
            if matches!(copy.to(), Place::Device(_)) { Direction::Up } else { Direction::Down };
        // SAFETY: as the caller promised, until the transfer was waited for. The host's memory is touched by threads of
        // this process alone, so it is let go of whatever the device does.
        let id = unsafe { begin(&self, direction, copy, Choices::default(), stream) }?;
        wait(&self, id)
    }
}
