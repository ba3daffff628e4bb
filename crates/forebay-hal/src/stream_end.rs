//! Telling others that a stream is about to go.

use std::sync::Arc;

use forebay_sync::fork::ForkSafeMutex;

use crate::{Device, StreamHandle};

/// Called with a stream whose [`Stream`](crate::Stream) is dropped: it is about to be destroyed or, if it was adopted,
/// may be destroyed by its maker.
pub type StreamEnd = fn(&Arc<dyn Device>, StreamHandle);

static TOLD: ForkSafeMutex<Vec<StreamEnd>> = ForkSafeMutex::new(Vec::new());

/// Calls `told` with every [`Stream`](crate::Stream) that is dropped, while the stream still exists, on the thread that
/// drops it. The default streams are left out, because they never end. Registering a function again does nothing.
///
/// For caches that are keyed by stream: a driver may reuse the handle of a destroyed stream.
pub fn on_stream_end(told: StreamEnd) {
    let mut all = TOLD.lock();
    if !all.iter().any(|&known| core::ptr::fn_addr_eq(known, told)) {
        all.push(told);
    }
}

/// Tells everyone.
pub(crate) fn tell_stream_end(device: &Arc<dyn Device>, stream: StreamHandle) {
    // Called without the lock: whoever is told may make and drop streams.
    let all = TOLD.lock().clone();
    for told in all {
        told(device, stream);
    }
}
