//! Streams, events, and functions of the host.

use core::ffi::{c_int, c_void};

use forebay_cuda::sys::{Code, HostFunction, RawContext, RawEvent, RawStream};

use crate::runtime::{Answer, exports, put, same};

same! {
    hipStreamCreateWithPriority =
        stream_create(stream: *mut RawStream, flags: u32, priority: c_int);
    hipStreamGetId = stream_get_id(stream: RawStream, id: *mut u64);
    hipStreamIsCapturing = stream_is_capturing(stream: RawStream, status: *mut u32);
    hipThreadExchangeStreamCaptureMode = thread_exchange_capture_mode(mode: *mut c_int);
    hipLaunchHostFunc =
        launch_host_function(stream: RawStream, function: HostFunction, data: *mut c_void);
    hipEventCreateWithFlags = event_create(event: *mut RawEvent, flags: u32);
    hipEventQuery = event_query(event: RawEvent);
    hipEventSynchronize = event_synchronize(event: RawEvent);
    hipEventElapsedTime = event_elapsed(milliseconds: *mut f32, start: RawEvent, end: RawEvent);
}

/// HIP's answer for a stream that is gone.
fn of_stream(answer: Answer) -> Answer {
    answer.map_err(|code| match code {
        Code::ERROR_INVALID_HANDLE => Code::ERROR_CONTEXT_IS_DESTROYED,
        _ => code,
    })
}

exports! {
    fn hipStreamQuery(stream: RawStream) |runtime| {
        // SAFETY: the caller's stream.
        of_stream(runtime.call(|table| unsafe { table.stream_query(stream) }))
    }

    fn hipStreamSynchronize(stream: RawStream) |runtime| {
        // SAFETY: the caller's stream.
        of_stream(runtime.call(|table| unsafe { table.stream_synchronize(stream) }))
    }

    fn hipStreamWaitEvent(stream: RawStream, event: RawEvent, flags: u32) |runtime| {
        // SAFETY: the caller's stream and event.
        of_stream(runtime.call(|table| unsafe { table.stream_wait_event(stream, event, flags) }))
    }

    fn hipEventRecord(event: RawEvent, stream: RawStream) |runtime| {
        // SAFETY: the caller's stream and event.
        of_stream(runtime.call(|table| unsafe { table.event_record(event, stream) }))
    }

    fn hipStreamGetDevice(stream: RawStream, device: *mut c_int) |runtime| {
        let mut context = RawContext::NULL;
        // SAFETY: a place of our own, and the caller's stream.
        runtime.call(|table| unsafe { table.stream_get_context(stream, &raw mut context) })?;
        // SAFETY: a place of the caller's.
        unsafe { put(device, runtime.device_of(context)?) }
    }

    fn hipStreamWaitValue32(
        stream: RawStream,
        address: u64,
        value: u32,
        flags: u32,
        mask: u32,
    ) |runtime| {
        // CUDA compares all bits.
        if mask != u32::MAX {
            return Err(Code::ERROR_INVALID_VALUE);
        }
        // SAFETY: as the caller of HIP's function promised.
        runtime.call(|table| unsafe { table.stream_wait_value(stream, address, value, flags) })
    }
}
