//! Observers that are attached to and detached from a living pool.

use core::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::Bytes;

use crate::pool::common::event::Observer;
use crate::pool::shared::{SLOW_PATH, Shared};
use crate::{Result, Tag};

/// An observer attached to a pool, from [`Pool::observe`](crate::Pool::observe) until this is dropped.
#[must_use = "the observer is detached when this is dropped"]
pub struct Observation {
    shared: Arc<Shared>,
    observer: Observer,
}

impl Observation {
    pub(in crate::pool) fn new(shared: &Arc<Shared>, observer: Observer) -> Result<Self> {
        shared.birth.check()?;
        // Under the settings lock, like every other change of the fast epoch.
        let settings = shared.settings();
        shared.fast_epoch.store(SLOW_PATH, Ordering::Relaxed);
        // Waits for threads that are on the fast path.
        shared.thread_caches.each(|_| ());
        shared.history.attach(&observer, || {
            let live = shared.map.live_blocks().into_iter();
            live.filter_map(|block| {
                let known = shared.map.slot(block.address)?.state_at(block.address);
                let known = known.filter(|known| known.live())?;
                let tag = Tag::numbered(usize::from(known.tag())).unwrap_or(Tag::NONE);
                Some((block.address, Bytes::new(known.requested()), tag))
            })
            .collect()
        });
        drop(settings);
        Ok(Self { shared: Arc::clone(shared), observer })
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        if self.shared.is_inherited() {
            return;
        }
        let settings = self.shared.settings();
        self.shared.history.detach(&self.observer);
        self.shared.update_fast_epoch(&settings);
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observation").field("pool", &self.shared.id).finish_non_exhaustive()
    }
}
