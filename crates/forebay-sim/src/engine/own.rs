//! The default stream of each thread, created when its thread first names it and closed when the thread is gone.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use forebay_core::{DeviceOrdinal, StreamId};
use forebay_hal::{Call, Priority, Result, StreamHandle, own_thread};

use super::State;

thread_local! {
    /// There as long as the thread.
    static ALIVE: Arc<()> = Arc::new(());
}

/// A thread's default stream.
#[derive(Debug)]
struct OwnStream {
    stream: StreamId,
    /// Gone with the thread; nothing for a thread that was ending when it named its stream.
    thread: Option<Weak<()>>,
}

impl OwnStream {
    fn is_orphan(&self) -> bool {
        self.thread.as_ref().is_some_and(|thread| thread.strong_count() == 0)
    }
}

/// The threads' default streams, by device and by the name that means one thread.
#[derive(Debug, Default)]
pub(crate) struct OwnStreams(BTreeMap<(DeviceOrdinal, StreamHandle), OwnStream>);

impl State {
    /// The default stream of the calling thread, under either of its names.
    pub(super) fn own_stream(
        &mut self,
        call: Call,
        device: DeviceOrdinal,
        handle: StreamHandle,
    ) -> Result<StreamId> {
        own_thread(call, handle)?;
        let key = (device, handle.resolved());
        if let Some(own) = self.own.0.get(&key) {
            return Ok(own.stream);
        }
        // Their names never come back, so nobody can give these streams work any more; what they
        // have still runs.
        let orphans = self.own.0.extract_if(.., |_, own| own.is_orphan());
        let orphans: Vec<_> = orphans.map(|(_, own)| own.stream).collect();
        orphans.into_iter().for_each(|stream| self.close(stream));
        let stream = self.add_lane(device, Priority::Normal);
        let thread = ALIVE.try_with(Arc::downgrade).ok();
        self.own.0.insert(key, OwnStream { stream, thread });
        Ok(stream)
    }
}
