//! Observers that are attached to and detached from a living pool.

use core::fmt;
use std::sync::Arc;

use forebay_core::Bytes;

use crate::pool::common::event::{Attached, Observer};
use crate::pool::front::Hits;
use crate::pool::turn::UserRef;
use crate::pool::views::snapshot::still_live;
use crate::{Result, Tag};

/// An observer attached to a pool, from [`Pool::observe`](crate::Pool::observe) until this is dropped.
#[must_use = "the observer is detached when this is dropped"]
pub struct Observation {
    shared: UserRef,
    attached: Arc<Attached>,
}

impl Observation {
    pub(in crate::pool) fn new(shared: &UserRef, observer: Observer) -> Result<Self> {
        shared.fork_generation.check()?;
        // Under the settings lock, like every other change of what may be a hit.
        let settings = shared.settings();
        shared.front.set_hits(Hits::None);
        shared.front.all.wait_for_hits();
        let (attached, live) = shared.history.attach(observer, || {
            still_live(&shared.map, &shared.map.live_blocks())
                .map(|(address, known)| (address, Bytes::new(known.requested()), Tag::of(known)))
                .collect()
        });
        drop(settings);
        let observation = Self { shared: shared.clone(), attached };
        shared.history.catch_up(&observation.attached, live);
        Ok(observation)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if self.shared.is_from_parent() {
            return;
        }
        let settings = self.shared.settings();
        self.shared.history.detach(&self.attached);
        self.shared.set_hits(&settings);
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").field("pool", &self.shared.id).finish_non_exhaustive()
    }
}
