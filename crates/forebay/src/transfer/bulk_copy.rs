//! The engine's implementation of bulk copies for arrays.

use std::sync::Arc;

use forebay_hal::{Copy, Location, NamedStream};

use super::engine::Engine;
use super::job::{Direction, Job};
use super::owned::start_copy;
use super::worker::wait;
use crate::Result;
use crate::bulk::BulkCopy;

impl BulkCopy for Engine {
    unsafe fn copy(self: Arc<Self>, copy: &Copy, stream: NamedStream) -> Result<()> {
        let direction =
            if matches!(copy.to(), Location::Device(_)) { Direction::Up } else { Direction::Down };
        // SAFETY: as the caller promised, until the transfer was waited for. The host's memory is touched by threads of
        // this process alone, so it is let go of whatever the device does.
        let id = unsafe { start_copy(&self, Job::default(), direction, copy, stream) }?;
        wait(&self, id)
    }
}
