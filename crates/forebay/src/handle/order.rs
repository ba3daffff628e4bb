//! Ordering streams on the device.

use std::sync::Arc;

use forebay_hal::{Call, Device, Event, EventKind, NamedStream, StreamHandle};

use crate::Result;

/// Makes work enqueued on `later` from now on wait for all work enqueued so far on `earlier`. The host does not wait,
/// unless one of these streams has ended or is another thread's default stream: no event can be recorded there, so the
/// host waits for the whole device. An error may leave some of the waits enqueued, which is harmless.
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
    // One event is enough: a wait refers to the latest record at the time of the wait. The event may be dropped at
    // once; the waits stay in effect.
    let event = Event::new(device, EventKind::Order)?;
    for stream in others {
        device.record_event(event.handle(), stream.handle())?;
        device.wait_event(later, event.handle())?;
    }
    Ok(())
}
