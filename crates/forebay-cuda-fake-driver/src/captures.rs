//! Streams being captured into graphs: their work is counted and never runs.
//!
//! ```text
//!   begin(s) ── s captures ── record(e, s): e is captured ── wait(t, e): t captures too ── end(s): none does
//! ```
//!
//! A graph is a number without contents: launching one does nothing. As with the real driver, a captured
//! stream can neither be asked nor waited for, nor wait for an event from outside its capture, and calls
//! that are unsafe while a stream captures are refused to threads whose mode does not allow them. Each of these
//! invalidates the capture.

use core::cell::Cell;
use core::ffi::{c_int, c_ulonglong, c_void};
use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use cudarc::driver::sys::{
    CUevent, CUgraph, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use crate::answer::{Answer, exports, put};
use crate::context::{handle, number};
use crate::machine::LegacySync;
use crate::streams::{blocking_streams, stream};

thread_local! {
    /// How strict the driver is to this thread while a stream is captured: 0 is global, 2 relaxed.
    static MODE: Cell<c_int> = const { Cell::new(0) };
}

/// The mode in which captures of other threads count too.
const GLOBAL: c_int = 0;

/// The mode in which nothing is refused.
const RELAXED: c_int = 2;

/// Handles of graphs are this and the number of the capture.
const GRAPH: u64 = 0x6000_0000;

/// A capture under way.
#[derive(Clone, Copy)]
struct Capture {
    /// The handle of the stream it began on.
    origin: u64,
    thread: ThreadId,
    mode: CUstreamCaptureMode,
    /// Whether nothing was done that a graph cannot have.
    valid: bool,
}

#[derive(Default)]
struct Captures {
    last: u64,
    /// Captures under way, by number.
    live: HashMap<u64, Capture>,
    /// The capture each captured stream belongs to.
    streams: HashMap<u64, u64>,
    /// The capture in which an event was recorded last.
    events: HashMap<u64, u64>,
}

impl Captures {
    /// Invalidates a capture, if it still is one, for a call that gives this code.
    fn invalidate(&mut self, id: u64, code: CUresult) -> CUresult {
        if let Some(capture) = self.live.get_mut(&id) {
            capture.valid = false;
        }
        code
    }

    fn status_of(&self, id: Option<u64>) -> CUstreamCaptureStatus {
        use CUstreamCaptureStatus as S;
        match id.and_then(|id| self.live.get(&id)) {
            Some(capture) if capture.valid => S::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            Some(_) => S::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            None => S::CU_STREAM_CAPTURE_STATUS_NONE,
        }
    }
}

static CAPTURES: LazyLock<Mutex<Captures>> = LazyLock::new(Mutex::default);

fn captures() -> MutexGuard<'static, Captures> {
    CAPTURES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls that a driver refuses while a stream is captured, unless the thread's mode allows them. Asked of an
/// H200 with CUDA 13.0, which lets every call for addresses and pages through; but for `cuModuleLoadData`, of which
/// others report it.
const UNSAFE: [&str; 9] = [
    "cuModuleLoadData",
    "cuMemAlloc",
    "cuMemFree",
    "cuMemHostAlloc",
    "cuMemHostRegister",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuStreamQuery",
    "cuStreamSynchronize",
];

/// Refuses an unsafe call to this thread, and invalidates the captures it would have broken. `pretended` is a
/// capture that a test only claims.
pub(crate) fn refuse_unsafe_call(name: &str, pretended: bool) -> Answer {
    let (mode, thread) = (MODE.get(), std::thread::current().id());
    if mode == RELAXED || !UNSAFE.contains(&name) {
        return Ok(());
    }
    let mut refused = pretended;
    for capture in captures().live.values_mut() {
        let meant = match capture.mode {
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL => {
                mode == GLOBAL || capture.thread == thread
            }
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL => capture.thread == thread,
            CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED => false,
        };
        capture.valid &= !meant;
        refused |= meant;
    }
    match refused {
        true => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
        false => Ok(()),
    }
}

/// Refuses to wait for a device while any stream is captured, in every mode.
pub(crate) fn refuse_device_wait() -> Answer {
    let mut captures = captures();
    captures.live.values_mut().for_each(|capture| capture.valid = false);
    match captures.live.is_empty() {
        true => Ok(()),
        false => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
    }
}

/// Refuses, with this code, what cannot be done with a stream that is captured.
pub(crate) fn refuse_captured_stream(stream: u64, code: CUresult) -> Answer {
    let mut captures = captures();
    match captures.streams.get(&stream).copied() {
        Some(id) => Err(captures.invalidate(id, code)),
        None => Ok(()),
    }
}

/// Whether work for this stream becomes a node of a graph and does not run.
pub(crate) fn takes_work(on: CUstream) -> bool {
    captures().streams.contains_key(&number(on))
}

/// Records an event on a stream; whether the stream's capture took the record.
pub(crate) fn takes_record(event: CUevent, on: CUstream) -> bool {
    let mut captures = captures();
    let capture = captures.streams.get(&number(on)).copied();
    match capture {
        Some(capture) => captures.events.insert(number(event), capture),
        None => captures.events.remove(&number(event)),
    };
    capture.is_some()
}

/// Makes a stream wait for an event; whether a capture took the wait.
pub(crate) fn takes_wait(on: CUstream, event: CUevent) -> Answer<bool> {
    let mut captures = captures();
    let stream = captures.streams.get(&number(on)).copied();
    match (stream, captures.events.get(&number(event)).copied()) {
        (None, None) => Ok(false),
        (Some(mine), None) => {
            Err(captures.invalidate(mine, CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION))
        }
        (Some(mine), Some(theirs)) if mine != theirs => {
            Err(captures.invalidate(mine, CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE))
        }
        (_, Some(capture)) if captures.live.contains_key(&capture) => {
            captures.streams.insert(number(on), capture);
            Ok(true)
        }
        _ => Err(CUresult::CUDA_ERROR_CAPTURED_EVENT),
    }
}

/// An error where the event was last recorded in a capture: nobody can ask or wait for it.
pub(crate) fn refuse_captured_event(event: CUevent) -> Answer {
    let mut captures = captures();
    match captures.events.get(&number(event)).copied() {
        Some(id) => Err(captures.invalidate(id, CUresult::CUDA_ERROR_CAPTURED_EVENT)),
        None => Ok(()),
    }
}

/// Forgets an event that is destroyed.
pub(crate) fn forget_event(event: CUevent) {
    captures().events.remove(&number(event));
}

exports! {
    "cuStreamBeginCapture" 10010 fn cuStreamBeginCapture_v2(on: CUstream, mode: CUstreamCaptureMode) {
        stream(on)?;
        let mut captures = captures();
        if number(on) <= 1 {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        if captures.streams.contains_key(&number(on)) {
            return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
        }
        captures.last += 1;
        let (id, thread) = (captures.last, std::thread::current().id());
        captures.live.insert(id, Capture { origin: number(on), thread, mode, valid: true });
        captures.streams.insert(number(on), id);
        Ok(())
    }

    "cuStreamEndCapture" 10000 fn cuStreamEndCapture(on: CUstream, graph: *mut CUgraph) {
        stream(on)?;
        let mut captures = captures();
        let id = captures.streams.get(&number(on)).copied();
        let id = id.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        let capture = captures.live.get(&id).copied();
        let capture = capture.ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
        if capture.origin != number(on) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
        }
        let relaxed = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        if capture.mode != relaxed && capture.thread != std::thread::current().id() {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }
        captures.live.remove(&id);
        captures.streams.retain(|_, of| *of != id);
        let made = if capture.valid { GRAPH + id } else { 0 };
        // SAFETY: a place of the caller's.
        unsafe { put(graph, handle(made)) }?;
        match capture.valid {
            true => Ok(()),
            false => Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
        }
    }

    "cuThreadExchangeStreamCaptureMode" 10010 fn cuThreadExchangeStreamCaptureMode(mode: *mut c_int) {
        // SAFETY: a place of the caller's, or null.
        match unsafe { mode.as_mut() } {
            Some(mode) if (0..=RELAXED).contains(mode) => {
                *mode = MODE.replace(*mode);
                Ok(())
            }
            _ => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    "cuStreamIsCapturing" 10000 fn cuStreamIsCapturing(
        on: CUstream,
        status: *mut CUstreamCaptureStatus,
    ) {
        let entry = stream(on)?;
        let blocking = match entry.tie {
            LegacySync::Legacy => blocking_streams(entry)?,
            _ => Vec::new(),
        };
        let captures = captures();
        // Work there would wait for theirs. The captures stay as they are.
        if blocking.iter().any(|(other, _)| captures.streams.contains_key(other)) {
            return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        }
        let id = captures.streams.get(&number(on)).copied();
        // SAFETY: a place of the caller's.
        unsafe { put(status, captures.status_of(id)) }
    }

    "cuStreamGetCaptureInfo" 11030 fn cuStreamGetCaptureInfo_v2(
        on: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut c_ulonglong,
        graph: *mut CUgraph,
        dependencies: *mut *const c_void,
        count: *mut usize,
    ) {
        stream(on)?;
        let captures = captures();
        let capture = captures.streams.get(&number(on)).copied();
        // SAFETY: places of the caller's, all but the first of them optional.
        unsafe {
            put(status, captures.status_of(capture))?;
            let _ = put(id, capture.unwrap_or(0));
            let _ = put(graph, handle(capture.map_or(0, |id| GRAPH + id)));
            let _ = put(dependencies, core::ptr::null());
            let _ = put(count, 0);
        }
        Ok(())
    }
}
