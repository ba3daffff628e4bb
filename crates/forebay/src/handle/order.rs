//! Ordering streams on the device.

use std::sync::Arc;

use forebay_hal::{Call, Device, Event, EventKind, NamedStream, StreamHandle};

use crate::Result;

/// Makes what is enqueued on `later` from now on wait for all that was enqueued on `earlier`. The
/// host does not wait, unless one of these streams has ended or is another thread's own: then no event can be recorded
/// there, and the host waits for the whole device. Where it fails some of the waits may have been made, which harms
/// nothing.
pub(crate) fn after(
    device: &Arc<dyn Device>,
    later: StreamHandle,
    earlier: impl IntoIterator<Item = NamedStream>,
) -> Result<()> {
    let is_out_of_reach =
        |stream: &NamedStream| stream.has_ended(device) || stream.handle().is_of_another_thread();
    let is_other =
        |stream: &NamedStream| stream.handle() != later.resolved() || stream.has_ended(device);
    let others: Vec<NamedStream> = earlier.into_iter().filter(is_other).collect();
    if others.is_empty() {
        return Ok(());
    }
    device.descriptor().check_process(Call::RecordEvent)?;
    if others.iter().any(is_out_of_reach) {
        return Ok(device.synchronize_device()?);
    }
    // One event serves all: a wait is for the record that was the latest when it was made. And it
    // may go at once: what waits for it holds.
    let event = Event::new(device, EventKind::Order)?;
    for stream in others {
        device.record_event(event.handle(), stream.handle())?;
        device.wait_event(later, event.handle())?;
    }
    Ok(())
}
