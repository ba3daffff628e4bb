//! How the pools of a GPU stand, as JSON, for the Python package to render.

use core::ffi::{c_char, c_int};
use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay::{Bytes, Pool, Scope, StatisticsSnapshot};

use super::captures::PoolNumber;
use super::guarded;
use super::{captures, record};
use crate::error::note;
use crate::pools;

/// Peaks of a pool since they were reset.
struct Peaks {
    /// What measures from the last look on.
    scope: Scope,
    /// The most bytes out of the heap up to then.
    out: Bytes,
    /// The most ever held when they were reset.
    held_before: Bytes,
    /// The most held at any look since.
    held_seen: Bytes,
}

static PEAKS: Mutex<BTreeMap<c_int, Peaks>> = Mutex::new(BTreeMap::new());

fn peaks() -> MutexGuard<'static, BTreeMap<c_int, Peaks>> {
    PEAKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The most bytes out of the heap and held, since the last reset or ever.
fn peaks_of(device: c_int, pool: &Pool) -> (Bytes, Bytes) {
    let figures = pool.statistics();
    let mut peaks = peaks();
    let Some(peaks) = peaks.get_mut(&device) else {
        return (figures.peak_out, figures.peak_held);
    };
    let ended = core::mem::replace(&mut peaks.scope, pool.scope()).end();
    peaks.out = peaks.out.max(ended.peak);
    peaks.held_seen = peaks.held_seen.max(figures.held);
    // Where more was held since than ever before, that is the peak; else it lies somewhere between what
    // was seen and what was held before, and what was seen is told.
    let higher = figures.peak_held > peaks.held_before;
    (peaks.out, if higher { figures.peak_held } else { peaks.held_seen })
}

/// Lets the peaks of GPU `device` begin anew. 0, or -1 with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_reset_peaks(device: c_int) -> c_int {
    guarded(-1, || match pools::of(device) {
        Ok(pool) => {
            let figures = pool.statistics();
            let scope = pool.scope();
            let (held_before, held_seen) = (figures.peak_held, figures.held);
            peaks().insert(device, Peaks { scope, out: Bytes::ZERO, held_before, held_seen });
            0
        }
        Err(reason) => {
            note(&reason);
            -1
        }
    })
}

/// The figures of GPU `device`: an object with `statistics` (as in form `forebay.pool.v1`) and `pages` of
/// its pool, `peak_out_bytes` and `peak_held_bytes` since the last reset, `refusals`, `limit_bytes`,
/// `settings` (an object of texts), and `graphs` (a list of objects with `first`, `second`, `statistics`
/// and `pages`). Text for `forebay_string_free`; null where there is no such GPU, with the reason in
/// [`forebay_last_error`](crate::error::forebay_last_error).
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_figures(device: c_int) -> *mut c_char {
    written(device, |pool, text| {
        let (out, held) = peaks_of(device, pool);
        let refusals = pools::refusals(device);
        text.push('{');
        write_statistics(text, pool);
        let _ = write!(
            text,
            ",\"peak_out_bytes\":{},\"peak_held_bytes\":{},\"refusals\":{refusals},\"limit_bytes\":{},\
             \"settings\":{{",
            out.get(),
            held.get(),
            pool.limit().get()
        );
        for (index, entry) in pool.settings().entries().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let (name, value) = (quoted(entry.key.name()), quoted(&entry.value));
            let _ = write!(text, "{comma}{name}:{value}");
        }
        text.push_str("},\"graphs\":");
        each_graph(text, device, write_statistics);
        text.push('}');
    })
}

fn write_statistics(text: &mut String, pool: &Pool) {
    // Whole numbers, texts and lists of them: there is nothing JSON could not hold.
    let statistics = StatisticsSnapshot::from(&pool.statistics());
    let statistics = serde_json::to_string(&statistics).unwrap_or_default();
    let _ = write!(text, "\"statistics\":{statistics},\"pages\":{}", pool.page_count());
}

/// Where everything of GPU `device` lies: an object with `spans` (lists of address and size), `blocks`
/// (lists of address, size, size asked for, tag), and `graphs` (objects with `first`, `second`
/// and the same). Otherwise as [`forebay_torch_figures`].
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_layout(device: c_int) -> *mut c_char {
    written(device, |pool, text| {
        text.push('{');
        write_layout(text, pool);
        text.push_str(",\"graphs\":");
        each_graph(text, device, write_layout);
        text.push('}');
    })
}

/// What was recorded of GPU `device` ([`forebay_torch_record`](super::forebay_torch_record)), the oldest
/// first: lists of what (`alloc`, `free`, `oom`), address, size asked for, stream, microseconds since
/// 1970, and the place in the program. Otherwise as [`forebay_torch_figures`].
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_records(device: c_int) -> *mut c_char {
    guarded(core::ptr::null_mut(), || {
        let mut text = String::new();
        record::write(&mut text, device);
        given(text)
    })
}

fn written(device: c_int, write: impl FnOnce(&Pool, &mut String)) -> *mut c_char {
    guarded(core::ptr::null_mut(), || match pools::of(device) {
        Ok(pool) => {
            let mut text = String::new();
            write(pool, &mut text);
            given(text)
        }
        Err(reason) => {
            note(&reason);
            core::ptr::null_mut()
        }
    })
}

fn given(text: String) -> *mut c_char {
    crate::text::leave(text).unwrap_or_else(|failure| {
        note(&failure);
        core::ptr::null_mut()
    })
}

/// A list of the private pools of a GPU, each an object with its number and what `write` adds.
fn each_graph(text: &mut String, device: c_int, write: impl Fn(&mut String, &Pool)) {
    text.push('[');
    for (index, (number, pool)) in captures::pools_of(device).iter().enumerate() {
        let PoolNumber { first, second } = number;
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}{{\"first\":{first},\"second\":{second},");
        write(text, pool);
        text.push('}');
    }
    text.push(']');
}

fn write_layout(text: &mut String, pool: &Pool) {
    let layout = pool.layout();
    text.push_str("\"spans\":[");
    for (index, span) in layout.spans.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(text, "{comma}[{},{}]", span.start().get(), span.size().get());
    }
    text.push_str("],\"blocks\":[");
    for (index, block) in layout.blocks.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let _ = write!(
            text,
            "{comma}[{},{},{},{}]",
            block.address,
            block.size_bytes,
            block.requested_bytes,
            quoted(&block.tag)
        );
    }
    text.push(']');
}

/// Text as JSON has it.
fn quoted(text: &str) -> String {
    // There is no text that JSON could not hold.
    serde_json::to_string(text).unwrap_or_default()
}
