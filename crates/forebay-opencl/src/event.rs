//! Events of the contract: names for points in streams.
//!
//! An event stands for the last command of its stream when it was recorded. Waits hold that command's OpenCL event, so
//! recording again or destroying the name does not affect them.

use std::sync::Mutex;

use forebay_hal::{EventEntry, EventTable};
use forebay_sync::lock;

use crate::context::Context;
use crate::object::Event;

/// The events of all OpenCL devices.
pub(crate) static EVENTS: EventTable<Latest> = EventTable::new();

/// The latest record of an event.
pub(crate) type Latest = Mutex<Option<Record>>;

/// A point that a stream comes to, or came to.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) context: &'static Context,
    /// `None` where the stream had nothing to do.
    pub(crate) event: Option<Event>,
}

/// What a wait for an event is for; `None` where nothing is to be waited for.
pub(crate) fn awaited(event: &EventEntry<Latest>) -> Option<(&'static Context, Event)> {
    let Record { context, event } = lock(&event.state).clone()?;
    Some((context, event?))
}
