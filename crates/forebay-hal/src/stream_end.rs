//! Telling others that a stream is about to go.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_sync::fork::ForkSafeMutex;

use crate::{Device, StreamHandle};

/// Called with a stream whose [`Stream`](crate::Stream) is dropped: it is about to be destroyed or, if it was adopted,
/// may be destroyed by its maker.
pub type StreamEnd = fn(&Arc<dyn Device>, StreamHandle);

static TOLD: ForkSafeMutex<Vec<StreamEnd>> = ForkSafeMutex::new(Vec::new());

/// The streams that are adopted, by device object, and how often each is.
static ADOPTED: ForkSafeMutex<BTreeMap<(usize, StreamHandle), usize>> =
    ForkSafeMutex::new(BTreeMap::new());

/// Which device object and which stream. A living [`Stream`](crate::Stream) keeps the device where it is.
fn key(device: &Arc<dyn Device>, stream: StreamHandle) -> (usize, StreamHandle) {
    (Arc::as_ptr(device).cast::<()>().addr(), stream)
}

/// A stream is adopted once more.
pub(crate) fn count_adoption(device: &Arc<dyn Device>, stream: StreamHandle) {
    *ADOPTED.lock().entry(key(device, stream)).or_default() += 1;
}

/// An adoption of a stream ends; whether it was the last.
pub(crate) fn is_last_adoption(device: &Arc<dyn Device>, stream: StreamHandle) -> bool {
    let mut adopted = ADOPTED.lock();
    let key = key(device, stream);
    match adopted.get_mut(&key) {
        Some(count) if *count > 1 => {
            *count -= 1;
            false
        }
        _ => {
            adopted.remove(&key);
            true
        }
    }
}

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

/// Calls every registered function.
pub(crate) fn tell_stream_end(device: &Arc<dyn Device>, stream: StreamHandle) {
    // Without the lock: a function may create and drop streams.
    let all = TOLD.lock().clone();
    for told in all {
        told(device, stream);
    }
}
