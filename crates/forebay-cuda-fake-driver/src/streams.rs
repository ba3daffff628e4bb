//! Streams, events, and functions of the host.

use core::ffi::{c_int, c_uint, c_ulonglong, c_void};
use core::sync::atomic::{AtomicU32, Ordering};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUhostFn, CUresult, CUstream, cuuint32_t,
};
use forebay_hal::{EventKind, Priority, Progress, StreamHandle, Streams};

use crate::answer::{Answer, exports, put, said};
use crate::captures;
use crate::context::{current, handle, here, number};
use crate::machine::{EventEntry, LegacySync, StreamEntry, machine};

thread_local! {
    /// The thread's own streams, by context.
    static OWN: RefCell<Own> = RefCell::default();
}

/// A thread's own streams: they go with the thread, and their work still runs.
#[derive(Default)]
struct Own(HashMap<u64, u64>);

impl Drop for Own {
    fn drop(&mut self) {
        for value in self.0.values() {
            let _ = end_stream(*value);
        }
    }
}

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// The driver has one thread for all functions of the host: one that blocks holds back the rest.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A pointer of the caller's that another thread will use.
struct Data(*mut c_void);

// SAFETY: the caller of the driver's function gives it away for whatever thread calls back.
unsafe impl Send for Data {}

impl Data {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// What a stream's handle stands for.
pub(crate) fn stream(stream: CUstream) -> Answer<StreamEntry> {
    let (context, device) = current()?;
    let value = match number(stream) {
        0 | 1 => {
            let (stream, tie) = (StreamHandle::DEFAULT, LegacySync::Legacy);
            return Ok(StreamEntry { device, context, stream, tie, priority: 0 });
        }
        2 => own_stream(context, device)?,
        value => value,
    };
    let found = machine()?.tables().streams.get(&value).copied();
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// The calling thread's own stream, made when it is first asked for.
fn own_stream(context: u64, device: u32) -> Answer<u64> {
    if let Some(known) = OWN.with_borrow(|own| own.0.get(&context).copied()) {
        return Ok(known);
    }
    let made = make_stream(context, device, 0, LegacySync::Blocking)?;
    OWN.with_borrow_mut(|own| own.0.insert(context, made));
    Ok(made)
}

/// What a stream's handle stands for, with its next work in order with the legacy default stream: work
/// there waits for all that blocking streams of its context have, and theirs for what it has.
pub(crate) fn ordered(handle: CUstream) -> Answer<StreamEntry> {
    let entry = stream(handle)?;
    match entry.tie {
        LegacySync::NonBlocking => {}
        LegacySync::Blocking => wait_for(entry, StreamHandle::DEFAULT)?,
        LegacySync::Legacy => {
            for (value, other) in blocking_streams(entry)? {
                let implicit = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
                captures::refuse_captured_stream(value, implicit)?;
                wait_for(entry, other)?;
            }
        }
    }
    Ok(entry)
}

/// The blocking streams of the context of a legacy default stream, by the driver's name and by the device's.
pub(crate) fn blocking_streams(legacy: StreamEntry) -> Answer<Vec<(u64, StreamHandle)>> {
    let tables = machine()?.tables();
    let blocking = tables.streams.iter().filter(|(_, other)| {
        other.tie == LegacySync::Blocking
            && (other.context, other.device) == (legacy.context, legacy.device)
    });
    Ok(blocking.map(|(&value, other)| (value, other.stream)).collect())
}

/// Makes later work of a stream wait for what another has. One that is gone has nothing.
fn wait_for(entry: StreamEntry, other: StreamHandle) -> Answer {
    let device = machine()?.device(entry.device)?;
    if !matches!(device.query_stream(other), Ok(Progress::Pending)) {
        return Ok(());
    }
    let event = said(device.create_event(EventKind::Order))?;
    let waits =
        device.record_event(event, other).and_then(|()| device.wait_event(entry.stream, event));
    said(device.destroy_event(event))?;
    match waits {
        // Its thread may have ended meanwhile.
        Err(forebay_hal::Error::Invalid { .. }) => Ok(()),
        waits => said(waits),
    }
}

fn end_stream(value: u64) -> Answer {
    let machine = machine()?;
    let removed = machine.tables().streams.remove(&value);
    // The names of the default stream and of a thread's own are not in the table: nobody ends those.
    let entry = removed.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    said(machine.device(entry.device)?.destroy_stream(entry.stream))?;
    machine.tables().ended.push(value);
    Ok(())
}

/// How a stream that is made with `flags` stands to the legacy default stream.
pub(crate) fn tie_of(flags: c_uint) -> LegacySync {
    if flags & NON_BLOCKING == 0 { LegacySync::Blocking } else { LegacySync::NonBlocking }
}

pub(crate) fn make_stream(
    context: u64,
    device: u32,
    priority: c_int,
    tie: LegacySync,
) -> Answer<u64> {
    let machine = machine()?;
    let kind = if priority < 0 { Priority::High } else { Priority::Normal };
    let stream = said(machine.device(device)?.create_stream(kind))?;
    let mut tables = machine.tables();
    let value = match tables.ended.pop() {
        Some(value) => value,
        None => tables.next(),
    };
    tables.streams.insert(value, StreamEntry { device, context, stream, tie, priority });
    Ok(value)
}

fn event(event: CUevent) -> Answer<EventEntry> {
    let found = machine()?.tables().events.get(&number(event)).copied();
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// What a stream's handle stands for, to be asked or waited for: the legacy default stream is done when
/// the blocking streams are.
fn looked_at(handle: CUstream) -> Answer<StreamEntry> {
    let unsupported = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    captures::refuse_captured_stream(number(handle), unsupported)?;
    let entry = stream(handle)?;
    if entry.tie == LegacySync::Legacy { ordered(handle) } else { Ok(entry) }
}

fn answered(progress: Progress) -> Answer {
    match progress {
        Progress::Done => Ok(()),
        Progress::Pending => Err(CUresult::CUDA_ERROR_NOT_READY),
    }
}

exports! {
    "cuStreamCreateWithPriority" 5050 fn cuStreamCreateWithPriority(
        place: *mut CUstream,
        flags: c_uint,
        priority: c_int,
    ) {
        let (context, device) = current()?;
        let made = make_stream(context, device, priority.clamp(-5, 0), tie_of(flags))?;
        // SAFETY: a place of the caller's.
        unsafe { put(place, handle(made)) }
    }

    "cuStreamDestroy" 4000 fn cuStreamDestroy_v2(handle: CUstream) {
        end_stream(number(handle))
    }

    "cuStreamQuery" 2000 fn cuStreamQuery(handle: CUstream) {
        let entry = looked_at(handle)?;
        answered(said(machine()?.device(entry.device)?.query_stream(entry.stream))?)
    }

    "cuStreamSynchronize" 2000 fn cuStreamSynchronize(handle: CUstream) {
        let entry = looked_at(handle)?;
        said(machine()?.device(entry.device)?.synchronize_stream(entry.stream))
    }

    "cuStreamWaitEvent" 3020 fn cuStreamWaitEvent(handle: CUstream, waited: CUevent, _flags: c_uint) {
        if captures::takes_wait(handle, waited)? {
            return Ok(());
        }
        let (entry, waited) = (ordered(handle)?, event(waited)?);
        said(machine()?.device(entry.device)?.wait_event(entry.stream, waited.event))
    }

    "cuStreamGetId" 12000 fn cuStreamGetId(handle: CUstream, id: *mut c_ulonglong) {
        let entry = stream(handle)?;
        let known = said(machine()?.device(entry.device)?.stream_id(entry.stream))?;
        // SAFETY: a place of the caller's.
        unsafe { put(id, known.0) }
    }

    "cuStreamGetPriority" 5050 fn cuStreamGetPriority(handle: CUstream, priority: *mut c_int) {
        // SAFETY: a place of the caller's.
        unsafe { put(priority, stream(handle)?.priority) }
    }

    "cuStreamGetCtx" 9020 fn cuStreamGetCtx(stream_handle: CUstream, context: *mut CUcontext) {
        let entry = stream(stream_handle)?;
        // SAFETY: a place of the caller's.
        unsafe { put(context, handle(entry.context)) }
    }

    "cuLaunchHostFunc" 10000 fn cuLaunchHostFunc(
        handle: CUstream,
        function: CUhostFn,
        data: *mut c_void,
    ) {
        if captures::takes_work(handle) {
            return Ok(());
        }
        let entry = ordered(handle)?;
        let function = function.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let data = Data(data);
        let task = Box::new(move || {
            let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: what the caller of the driver's function gave for this.
            unsafe { function(data.get()) };
        });
        said(machine()?.device(entry.device)?.enqueue_host(task, entry.stream))
    }

    "cuStreamWaitValue32" 11070 fn cuStreamWaitValue32_v2(
        handle: CUstream,
        address: CUdeviceptr,
        value: cuuint32_t,
        flags: c_uint,
    ) {
        let entry = ordered(handle)?;
        if flags != 0 || machine()?.find(address).is_none() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let task = Box::new(move || {
            let place = usize::try_from(address).unwrap_or(0);
            let word: *const AtomicU32 = core::ptr::with_exposed_provenance(place);
            // SAFETY: a word of pinned memory, which the caller of the driver's function keeps.
            let word = unsafe { &*word };
            while word.load(Ordering::Acquire).wrapping_sub(value).cast_signed() < 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        said(machine()?.device(entry.device)?.enqueue_host(task, entry.stream))
    }

    "cuEventCreate" 2000 fn cuEventCreate(place: *mut CUevent, flags: c_uint) {
        let (machine, device) = here()?;
        let (context, _) = current()?;
        let kind = if flags & 2 == 0 { EventKind::Timed } else { EventKind::Order };
        let event = said(machine.device(device)?.create_event(kind))?;
        let mut tables = machine.tables();
        let value = tables.next();
        tables.events.insert(value, EventEntry { device, context, event });
        // SAFETY: a place of the caller's.
        unsafe { put(place, handle(value)) }
    }

    "cuEventDestroy" 4000 fn cuEventDestroy_v2(destroyed: CUevent) {
        let machine = machine()?;
        let removed = machine.tables().events.remove(&number(destroyed));
        let entry = removed.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        captures::forget_event(destroyed);
        said(machine.device(entry.device)?.destroy_event(entry.event))
    }

    "cuEventRecord" 2000 fn cuEventRecord(recorded: CUevent, handle: CUstream) {
        if captures::takes_record(recorded, handle) {
            return Ok(());
        }
        let (entry, recorded) = (ordered(handle)?, event(recorded)?);
        if entry.context != recorded.context {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        said(machine()?.device(entry.device)?.record_event(recorded.event, entry.stream))
    }

    "cuEventQuery" 2000 fn cuEventQuery(asked: CUevent) {
        current()?;
        captures::refuse_captured_event(asked)?;
        let entry = event(asked)?;
        answered(said(machine()?.device(entry.device)?.query_event(entry.event))?)
    }

    "cuEventSynchronize" 2000 fn cuEventSynchronize(asked: CUevent) {
        current()?;
        captures::refuse_captured_event(asked)?;
        let entry = event(asked)?;
        said(machine()?.device(entry.device)?.synchronize_event(entry.event))
    }

    "cuEventElapsedTime" 2000 fn cuEventElapsedTime(
        milliseconds: *mut f32,
        start: CUevent,
        end: CUevent,
    ) {
        current()?;
        let (start, end) = (event(start)?, event(end)?);
        let device = machine()?.device(start.device)?;
        let time = said(device.elapsed(start.event, end.event))?;
        // SAFETY: a place of the caller's.
        unsafe { put(milliseconds, time.as_secs_f32() * 1e3) }
    }
}
