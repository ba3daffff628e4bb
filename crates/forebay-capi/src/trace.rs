//! Recordings of a pool's requests, for `forebay replay`.
//!
//! A recording is the pool's history, turned on and off while the pool runs. A full history drops its oldest
//! events, so a recording of a longer run has the end of it.

use core::ffi::c_char;
use std::path::Path;
use std::time::Instant;

use forebay::Settings;
use forebay_trace::format::{check_ending, write_path};
use forebay_trace::trace_of_pool;

use crate::error::status_of;
use crate::pool::forebay_pool;
use crate::status::{Failure, forebay_status};
use crate::table;
use crate::text::{self, Out};

/// Begins to record what a pool is asked: the last `events` of it, 16,777,216 at most. Until
/// the recording ends, allocating and freeing take up to twice as long. With the pool's setting "stacks" on, which
/// `forebay_pool_set` changes, each allocation has its call stack: it takes some microseconds then.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_trace_start(pool: forebay_pool, events: u64) -> forebay_status {
    status_of(|| {
        if events == 0 {
            return Err(Failure::argument("events", 0, "1 to 16777216"));
        }
        // What is refused drops no history.
        Settings::parse_conf(&format!("history:{events}"))?;
        let entry = table::find(pool)?;
        let mut recording = entry.recording();
        if recording.is_some() {
            let words = "a recording of this pool is under way already: stop that one first";
            return Err(Failure::new(forebay_status::Busy, words));
        }
        let before = entry.pool().settings().history();
        // What happened before the recording is not of it.
        entry.pool().set("history", "0")?;
        entry.pool().set("history", &events.to_string())?;
        *recording = Some((before, Instant::now()));
        Ok(())
    })
}

/// Ends the recording and writes it to `path`, by its ending as `forebay convert` does: CSV (`.csv`), forebay's own
/// form (`.fbt`) and others. Transfers of the pool's device that began meanwhile, such as by `forebay_upload`, are in
/// it: the last 65,536 that did not fail. `events`, where it is not null, gets how many there were. Where it cannot be
/// written it goes on, and can be stopped with another path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_trace_stop(
    pool: forebay_pool,
    path: *const c_char,
    events: *mut u64,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::optional(events) };
    to.result(|| {
        // SAFETY: as the caller promises.
        let path = Path::new(unsafe { text::read_str(path, "path") }?);
        let entry = table::find(pool)?;
        // Not locked while stacks are named, for which Python's lock may be waited for.
        let Some((before, since)) = *entry.recording() else {
            let words = "no recording of this pool is under way: start one first";
            return Err(Failure::new(forebay_status::InvalidArgument, words));
        };
        let told = |error| {
            let failure = Failure::from(error);
            Failure::new(failure.status, format!("{}: {failure}", path.display()))
        };
        check_ending(path).map_err(told)?;
        let engine = entry.device().transfers().clone();
        let transfers = engine.map(|engine| engine.history()).unwrap_or_default();
        let trace = trace_of_pool("recorded through C", entry.pool(), Some(since), &transfers);
        write_path(&trace, path).map_err(told)?;
        let mut recording = entry.recording();
        // Another thread may have stopped it as well, and begun the next.
        if recording.is_some_and(|(_, begun)| begun == since) {
            entry.pool().set("history", &before.to_string())?;
            *recording = None;
        }
        Ok(trace.len() as u64)
    })
}
