//! Streams: created here, or adopted from another library.

use core::ffi::c_void;
use std::sync::Arc;

use forebay::hal::Progress;
use forebay::{Pool, Priority, Stream, StreamHandle};

use crate::device::{DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::status::{Failure, forebay_status};
use crate::table::{self, entry};
use crate::text::Out;

/// A stream. All zeros is the default stream of whichever device a call is about.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_stream {
    /// Not to be looked at.
    pub id: u64,
}

/// The object of a stream handle.
pub(crate) struct StreamEntry {
    stream: Stream,
    device: Arc<DeviceEntry>,
}

impl StreamEntry {
    pub(crate) fn handle(&self) -> StreamHandle {
        self.stream.handle()
    }

    pub(crate) fn device(&self) -> &DeviceEntry {
        &self.device
    }
}

entry!(
    forebay_stream: StreamEntry,
    Stream,
    fn stream_words(&self) -> (StreamHandle, u64) {
        (self.handle(), self.device.number())
    }
);

/// The device's handle of a stream; `None` where the stream does not belong to `device`.
#[inline(always)]
pub(crate) fn fast_lookup(stream: forebay_stream, device: &DeviceEntry) -> Option<StreamHandle> {
    if stream.id == 0 {
        return Some(StreamHandle::DEFAULT);
    }
    let (handle, number) = table::stream(stream.id)?;
    (number == device.number()).then_some(handle)
}

/// The device's handle of a stream, or why there is none.
pub(crate) fn on_device(
    stream: forebay_stream,
    device: &DeviceEntry,
) -> Result<StreamHandle, Failure> {
    fast_lookup(stream, device).ok_or_else(|| wrong_stream(stream, device))
}

fn wrong_stream(stream: forebay_stream, device: &DeviceEntry) -> Failure {
    match table::find(stream) {
        Ok(entry) => Failure::new(
            forebay_status::WrongDevice,
            format!(
                "the stream is of {}, and the call is about {}: use a stream of that device",
                entry.device.descriptor(),
                device.descriptor()
            ),
        ),
        Err(failure) => failure,
    }
}

/// The entry of a stream of any device; `None` for the default stream.
pub(crate) fn entry(stream: forebay_stream) -> Result<Option<Arc<StreamEntry>>, Failure> {
    if stream.id == 0 { Ok(None) } else { table::find(stream).map(Some) }
}

/// The priority that a number means.
pub(crate) fn priority_of(number: i32) -> Priority {
    match number {
        ..0 => Priority::Low,
        0 => Priority::Normal,
        1.. => Priority::High,
    }
}

/// Creates a stream of a device. `priority` is above 0 for high, below 0 for low, and ignored where the
/// device has no priorities.
#[must_use = "there is no stream where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_create(
    device: forebay_device,
    priority: i32,
    stream: *mut forebay_stream,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(stream, "stream") };
    to.result(|| {
        let device = table::find(device)?;
        let stream = Stream::new(device.device(), priority_of(priority))?;
        table::open(Arc::new(StreamEntry { stream, device }))
    })
}

/// Adopts a stream that another library made, such as a `cudaStream_t`. Closing the handle does not
/// destroy it.
///
/// # Safety
///
/// * `raw` is a live stream of that device, and stays so until the handle is closed: the driver follows
///   it.
#[must_use = "there is no stream where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_adopt(
    device: forebay_device,
    raw: *mut c_void,
    stream: *mut forebay_stream,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(stream, "stream") };
    to.result(|| {
        let device = table::find(device)?;
        // SAFETY: the caller promises that it is a live stream of the device.
        let stream = unsafe { Stream::foreign(device.device(), raw.addr() as u64) }?;
        table::open(Arc::new(StreamEntry { stream, device }))
    })
}

/// The driver's handle of a stream, for calls of other libraries: with CUDA, the `cudaStream_t`.
#[must_use = "there is no stream where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_raw(
    stream: forebay_stream,
    raw: *mut *mut c_void,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(raw, "raw") };
    to.result(|| {
        let value = entry(stream)?.map_or(0, |entry| {
            let streams = entry.device.device().foreign_streams();
            streams.map_or(entry.handle().0, |streams| streams.raw_stream(entry.handle()))
        });
        let value = usize::try_from(value)
            .map_err(|_| Failure::argument("stream", value, "one whose value is a pointer here"))?;
        Ok(core::ptr::without_provenance_mut(value))
    })
}

/// A stream and its device. Where the stream is not the default one, the device may be left out.
fn with_device(
    device: forebay_device,
    stream: forebay_stream,
) -> Result<(Arc<DeviceEntry>, StreamHandle), Failure> {
    let device = match entry(stream)? {
        Some(entry) if device.id == 0 => Arc::clone(&entry.device),
        _ => table::find(device)?,
    };
    let handle = on_device(stream, &device)?;
    Ok((device, handle))
}

/// Waits until all work of a stream is done. The default stream is that of `device`; for others
/// `device` may be all zeros.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_synchronize(
    device: forebay_device,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let (device, stream) = with_device(device, stream)?;
        Ok(device.device().synchronize_stream(stream)?)
    })
}

/// Whether all work of a stream is done: 1 if so, else 0. Does not wait. The default stream is that of
/// `device`; for others `device` may be all zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_stream_query(
    device: forebay_device,
    stream: forebay_stream,
    done: *mut i32,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(done, "done") };
    to.result(|| {
        let (device, stream) = with_device(device, stream)?;
        let progress = device.device().query_stream(stream)?;
        Ok(i32::from(progress == Progress::Done))
    })
}

/// Closes a stream. A stream that was created here is destroyed once its work is done; an adopted one may be
/// destroyed by its maker from then on. All pools of the device forget it first, so that memory freed on it
/// serves other streams. Free a block of it that is still live by `forebay_free_synchronized`, or by
/// `forebay_free` on a stream that was made to wait for this one's work before. The stream is closed in any
/// case; where a pool could not forget it, the status is an error.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_close(stream: forebay_stream) -> forebay_status {
    status_of(|| {
        let entry = table::close(stream)?;
        if entry.handle() == StreamHandle::DEFAULT {
            return Ok(());
        }
        // Pools of other bindings and pools without an open handle included.
        let mut result = Ok(());
        for pool in Pool::all_of(entry.device.device()) {
            result = result.and(pool.forget_stream(entry.handle()));
        }
        Ok(result?)
    })
}
