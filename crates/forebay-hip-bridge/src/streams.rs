//! Streams, events, and functions of the host.

use core::ffi::{c_int, c_void};

use forebay_cuda::sys::{Code, HostFunction, RawContext, RawEvent, RawStream};

use crate::runtime::{exports, put, same};

same! {
    hipStreamCreateWithPriority =
        stream_create(stream: *mut RawStream, flags: u32, priority: c_int);
    hipStreamQuery = stream_query(stream: RawStream);
    hipStreamSynchronize = stream_synchronize(stream: RawStream);
    hipStreamWaitEvent = stream_wait_event(stream: RawStream, event: RawEvent, flags: u32);
    hipStreamGetId = stream_get_id(stream: RawStream, id: *mut u64);
    hipStreamIsCapturing = stream_is_capturing(stream: RawStream, status: *mut u32);
    hipThreadExchangeStreamCaptureMode = thread_exchange_capture_mode(mode: *mut c_int);
    hipLaunchHostFunc =
        launch_host_function(stream: RawStream, function: HostFunction, data: *mut c_void);
    hipEventCreateWithFlags = event_create(event: *mut RawEvent, flags: u32);
    hipEventRecord = event_record(event: RawEvent, stream: RawStream);
    hipEventQuery = event_query(event: RawEvent);
    hipEventSynchronize = event_synchronize(event: RawEvent);
    hipEventElapsedTime = event_elapsed(milliseconds: *mut f32, start: RawEvent, end: RawEvent);
}

exports! {
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
