//! What was allocated and freed, one by one, for as long as someone wants it recorded.
//!
//! Whoever wants to know where in a program each request was made gives a function that is called for
//! every block, on the thread that asked; what it gives back is kept with the record.

use core::ffi::{c_int, c_void};
use core::fmt::Write as _;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use super::guarded;
use super::watch::{RECORDED, WATCHED};

/// Called with the GPU, the address of the block and its size; gives a number for the place in the
/// program, 0 for none.
pub type Ask = unsafe extern "C" fn(c_int, u64, u64) -> u64;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    /// A block was given out.
    Allocated,
    /// A block was given back.
    Freed,
    /// A request was refused.
    Refused,
}

/// A record.
#[derive(Clone, Copy, Debug)]
struct Record {
    device: c_int,
    happened: Happened,
    address: u64,
    size: u64,
    stream: u64,
    /// Microseconds since 1970.
    time: u64,
    place: u64,
}

struct Records {
    kept: VecDeque<Record>,
    most: usize,
    ask: Option<Ask>,
}

static RECORDS: Mutex<Records> = Mutex::new(Records { kept: VecDeque::new(), most: 0, ask: None });

fn records() -> MutexGuard<'static, Records> {
    RECORDS.lock().unwrap_or_else(PoisonError::into_inner)
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
        let mut records = records();
        records.kept.clear();
        records.most = usize::try_from(most).unwrap_or(usize::MAX);
        records.ask = ask;
        if most > 0 {
            WATCHED.fetch_or(RECORDED, Ordering::SeqCst);
        } else {
            WATCHED.fetch_and(!RECORDED, Ordering::SeqCst);
        }
    });
}

/// Notes what happened; the oldest goes where there are too many. The address of a request that was
/// refused is what the device had left.
pub(super) fn note(
    device: c_int,
    happened: Happened,
    address: u64,
    size: u64,
    stream: *mut c_void,
) {
    let ask = records().ask;
    // With no lock held: it may come back here, as a program's garbage collector does that frees.
    let place = match ask {
        // SAFETY: as whoever set it promised.
        Some(ask) if happened != Happened::Freed => unsafe { ask(device, address, size) },
        _ => 0,
    };
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
    let stream = stream.addr() as u64;
    let mut records = records();
    if records.most == 0 {
        return;
    }
    while records.kept.len() >= records.most {
        records.kept.pop_front();
    }
    records.kept.push_back(Record { device, happened, address, size, stream, time, place });
}

/// The records of a GPU, the oldest first, as JSON: lists of what, address, size, stream, time, place.
pub(super) fn write(text: &mut String, device: c_int) {
    text.push('[');
    let records = records();
    let of_device = records.kept.iter().filter(|record| record.device == device);
    for (index, record) in of_device.enumerate() {
        let happened = match record.happened {
            Happened::Allocated => "alloc",
            Happened::Freed => "free",
            Happened::Refused => "oom",
        };
        let Record { address, size, stream, time, place, .. } = record;
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}[\"{happened}\",{address},{size},{stream},{time},{place}]");
    }
    text.push(']');
}
