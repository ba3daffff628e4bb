//! Telling others that a stream is about to go.

use std::sync::Arc;

use forebay_sync::fork::ForkSafeMutex;

use crate::{Device, StreamHandle};

/// Told of a stream that is about to be destroyed by the [`Stream`](crate::Stream) that owns it.
pub type StreamEnd = fn(&Arc<dyn Device>, StreamHandle);

static TOLD: ForkSafeMutex<Vec<StreamEnd>> = ForkSafeMutex::new(Vec::new());

/// Has `told` called with every owned [`Stream`](crate::Stream) that goes, while the stream is still there, on the
/// thread that drops it. A function is told once, however often it is given here.
///
/// For caches that are keyed by stream: the driver may give the handle of a stream that went to the next.
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
