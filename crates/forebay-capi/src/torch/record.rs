//! A recording of every allocation and free.
//!
//! A caller that wants to know where in the program each request came from passes a callback. It is called for
//! every block, on the allocating thread, and its result is stored with the event.

use core::ffi::{c_int, c_void};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_sync::lock;

use super::guarded;
use super::slow_path::{FLAGS, RECORDING};

/// Called with the GPU, the address of the block and its size; gives a number for the place in the
/// program, 0 for none.
pub type Ask = unsafe extern "C" fn(c_int, u64, u64) -> u64;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventKind {
    /// A block was allocated.
    Allocated,
    /// A block was freed.
    Freed,
    /// A request was refused.
    Refused,
}

/// A recorded event.
#[derive(Clone, Copy, Debug)]
struct Event {
    device: c_int,
    kind: EventKind,
    address: u64,
    size: u64,
    stream: u64,
    /// Microseconds since 1970.
    time: u64,
    place: u64,
}

struct Recording {
    events: VecDeque<Event>,
    capacity: usize,
    ask: Option<Ask>,
}

static RECORDING_STATE: Mutex<Recording> =
    Mutex::new(Recording { events: VecDeque::new(), capacity: 0, ask: None });

fn recording() -> MutexGuard<'static, Recording> {
    lock(&RECORDING_STATE)
}

/// Records what is allocated and freed from now on: the last `most`, 0 for none. `ask` may be null.
/// What was recorded before is forgotten.
///
/// # Safety
///
/// * `ask` is null or a function of that kind, which any thread may call until another one is set and
///   every call that was under way then has returned. It does not unwind.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_record(most: u64, ask: Option<Ask>) {
    guarded((), || {
        let mut recording = recording();
        recording.events.clear();
        recording.capacity = usize::try_from(most).unwrap_or(usize::MAX);
        recording.ask = ask;
        if most > 0 {
            FLAGS.fetch_or(RECORDING, Ordering::SeqCst);
        } else {
            FLAGS.fetch_and(!RECORDING, Ordering::SeqCst);
        }
    });
}

/// Appends an event, and drops the oldest where there are too many. The address of a refused request is the
/// free memory of the device.
pub(super) fn push(device: c_int, kind: EventKind, address: u64, size: u64, stream: *mut c_void) {
    let ask = recording().ask;
    // Without the lock: the callback may come back here, such as when a garbage collector frees.
    let place = match ask {
        // SAFETY: the caller of `forebay_torch_record` promised that any thread may call it.
        Some(ask) if kind != EventKind::Freed => unsafe { ask(device, address, size) },
        _ => 0,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    let stream = stream.addr() as u64;
    let mut recording = recording();
    if recording.capacity == 0 {
        return;
    }
    while recording.events.len() >= recording.capacity {
        recording.events.pop_front();
    }
    recording.events.push_back(Event { device, kind, address, size, stream, time, place });
}

/// An event as the Python package reads it: what happened, address, size, stream, time, place.
pub(super) type EventRow = (&'static str, u64, u64, u64, u64, u64);

/// The recorded events of a GPU, the oldest first.
pub(super) fn events(device: c_int) -> Vec<EventRow> {
    let recording = recording();
    let of_device = recording.events.iter().filter(|event| event.device == device);
    of_device
        .map(|&Event { kind, address, size, stream, time, place, .. }| {
            let kind = match kind {
                EventKind::Allocated => "alloc",
                EventKind::Freed => "free",
                EventKind::Refused => "oom",
            };
            (kind, address, size, stream, time, place)
        })
        .collect()
}
