//! Ordering streams on the device.

use std::sync::Arc;

use forebay_hal::{Call, Device, Event, EventKind, StreamHandle};

use crate::Result;

/// Makes what is enqueued on `later` from now on wait for all that was enqueued on `earlier`. The
/// host does not wait. Where it fails some of the waits may have been made, which harms nothing.
pub(crate) fn after(
    device: &Arc<dyn Device>,
    later: StreamHandle,
    earlier: impl IntoIterator<Item = StreamHandle>,
) -> Result<()> {
    let mut others = earlier.into_iter().filter(|&stream| stream != later).peekable();
    if others.peek().is_none() {
        return Ok(());
    }
    device.descriptor().check_process(Call::RecordEvent)?;
    // One event serves all: a wait is for the record that was the latest when it was made. And it
    // may go at once: what waits for it holds.
    let event = Event::new(device, EventKind::Order)?;
    for stream in others {
        device.record_event(event.handle(), stream)?;
        device.wait_event(later, event.handle())?;
    }
    Ok(())
}
