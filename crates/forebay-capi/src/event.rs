//! Events: points in the work of a stream that other streams and the host can wait for.

use std::sync::Arc;

use forebay::Event;
use forebay::hal::{EventKind, Progress};

use crate::device::{DeviceEntry, forebay_device};
use crate::error::status_of;
use crate::status::{Failure, forebay_status};
use crate::stream::{self, forebay_stream};
use crate::table::{self, entry};
use crate::text::Out;

/// An event. All zeros is none.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct forebay_event {
    /// Not to be looked at.
    pub id: u64,
}

/// The object of an event handle.
pub(crate) struct EventEntry {
    event: Event,
    device: Arc<DeviceEntry>,
}

entry!(forebay_event: EventEntry, Event);

/// Creates an event of a device. It counts as reached until it is recorded.
#[must_use = "there is no event where this failed"]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_event_create(
    device: forebay_device,
    event: *mut forebay_event,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(event, "event") };
    to.result(|| {
        let device = table::find(device)?;
        let event = Event::new(device.device(), EventKind::Order)?;
        table::open(Arc::new(EventEntry { event, device }))
    })
}

/// Records an event after all work that was enqueued on `stream`, a stream of the event's device. Replaces an
/// earlier record of the event.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_event_record(
    event: forebay_event,
    stream: forebay_stream,
) -> forebay_status {
    status_of(|| {
        let entry = table::find(event)?;
        let stream = stream::on_device(stream, &entry.device)?;
        Ok(entry.device.device().record_event(entry.event.handle(), stream)?)
    })
}

/// Whether an event was reached: 1 if so, or if it was never recorded, else 0. Does not wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_event_query(
    event: forebay_event,
    done: *mut i32,
) -> forebay_status {
    // SAFETY: as the caller promises.
    let to = unsafe { Out::new(done, "done") };
    to.result(|| {
        let progress = table::find(event)?.event.query()?;
        Ok(i32::from(progress == Progress::Done))
    })
}

/// Waits until an event was reached. Returns at once where it was never recorded.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_event_synchronize(event: forebay_event) -> forebay_status {
    status_of(|| Ok(table::find(event)?.event.synchronize()?))
}

/// Closes an event. Streams that were made to wait for it still do.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_event_close(event: forebay_event) -> forebay_status {
    status_of(|| table::close(event).map(drop))
}

/// Makes later work on a stream wait, on the device, for the latest record of an event. The host does not
/// wait. The event may be of another device of the same kind; the default stream is that of the event's
/// device.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_stream_wait_event(
    stream: forebay_stream,
    event: forebay_event,
) -> forebay_status {
    status_of(|| {
        let event = table::find(event)?;
        let waiting = stream::entry(stream)?;
        let device = waiting.as_ref().map_or(&*event.device, |entry| entry.device());
        if device.descriptor().kind != event.device.descriptor().kind {
            return Err(Failure::new(
                forebay_status::WrongDevice,
                format!(
                    "the stream is of {} and the event of {}: use devices of the same kind",
                    device.descriptor(),
                    event.device.descriptor()
                ),
            ));
        }
        let handle = stream::on_device(stream, device)?;
        Ok(device.device().wait_event(handle, event.event.handle())?)
    })
}
