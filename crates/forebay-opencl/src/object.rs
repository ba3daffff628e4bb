//! OpenCL objects that release themselves on drop, and counts of them.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

use cl3::command_queue::release_command_queue;
use cl3::event::{
    CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS, CL_PROFILING_COMMAND_END, create_user_event,
    get_event_info, get_event_profiling_data, release_event, set_user_event_status,
    wait_for_events,
};
use cl3::info_type::InfoType;
use cl3::memory::release_mem_object;
use cl3::types::{cl_command_queue, cl_context, cl_event, cl_mem};
use forebay_hal::Progress;

use crate::code::{Code, DriverError, Made, Named, Outcome};
use crate::info::as_number;

/// The number of OpenCL objects that this library holds, on all devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ObjectCounts {
    /// Buffers and sub-buffers.
    pub buffers: u64,
    /// Queues, including idle ones that wait to be reused.
    pub queues: u64,
    /// Events.
    pub events: u64,
}

impl ObjectCounts {
    /// Returns the current counts.
    pub fn now() -> Self {
        let [buffers, queues, events] =
            [&BUFFERS, &QUEUES, &EVENTS].map(|count| count.load(Ordering::Relaxed));
        Self { buffers, queues, events }
    }
}

static BUFFERS: AtomicU64 = AtomicU64::new(0);
static QUEUES: AtomicU64 = AtomicU64::new(0);
static EVENTS: AtomicU64 = AtomicU64::new(0);

/// An object with one reference of ours, which goes with the value.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident($raw:ty), $count:ident, $release:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name($raw);

        // SAFETY: OpenCL allows every call with such an object from every thread, at any time.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// Takes over a reference.
            ///
            /// # Safety
            ///
            /// * The object is live, and one reference to it is given away here.
            pub(crate) unsafe fn new(raw: $raw) -> Self {
                $count.fetch_add(1, Ordering::Relaxed);
                Self(raw)
            }

            /// Its name, for calls.
            pub(crate) const fn raw(&self) -> $raw {
                self.0
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                $count.fetch_sub(1, Ordering::Relaxed);
                // SAFETY: this value has one reference, and nobody uses it afterwards. Commands that
                // still use the object have references of their own.
                let _ = unsafe { $release(self.0) };
            }
        }
    };
}

object!(
    /// A buffer or a part of one.
    Buffer(cl_mem), BUFFERS, release_mem_object
);
object!(
    /// A queue.
    Queue(cl_command_queue), QUEUES, release_command_queue
);
object!(
    /// An event.
    RawEvent(cl_event), EVENTS, release_event
);

/// An event that several may keep.
#[derive(Clone, Debug)]
pub(crate) struct Event(Arc<RawEvent>);

impl Event {
    /// Takes over an event that a call gave.
    ///
    /// # Safety
    ///
    /// * The event is live, and one reference to it is given away here.
    pub(crate) unsafe fn new(raw: cl_event) -> Self {
        // SAFETY: as the caller promised.
        Self(Arc::new(unsafe { RawEvent::new(raw) }))
    }

    /// An event that [`complete`](Self::complete) completes.
    ///
    /// # Safety
    ///
    /// * The context is live.
    pub(crate) unsafe fn user(context: cl_context) -> Outcome<Self> {
        let raw = create_user_event(context).made("clCreateUserEvent")?;
        // SAFETY: just made.
        Ok(unsafe { Self::new(raw) })
    }

    pub(crate) fn raw(&self) -> cl_event {
        self.0.raw()
    }

    /// Completes a user event.
    pub(crate) fn complete(&self) {
        // Refused only where it is complete already.
        let _ = set_user_event_status(self.raw(), CL_COMPLETE);
    }

    /// Its command's status: below zero where it failed, zero where it is done, above where it is to come.
    fn status(&self) -> Outcome<i32> {
        let told = get_event_info(self.raw(), CL_EVENT_COMMAND_EXECUTION_STATUS);
        told.of("clGetEventInfo").map(|told| match told {
            InfoType::Int(status) => status,
            _ => CL_COMPLETE,
        })
    }

    /// Whether it was reached; a refusal where its command failed.
    pub(crate) fn progress(&self) -> Outcome<Progress> {
        match self.status()? {
            CL_COMPLETE => Ok(Progress::Done),
            failed @ ..0 => {
                Err(DriverError { function: "a command on the device", code: Code(failed) })
            }
            _ => Ok(Progress::Pending),
        }
    }

    /// Whether nothing is to come any more, well or not. What cannot be asked about may be to come.
    pub(crate) fn is_over(&self) -> bool {
        self.status().is_ok_and(|status| status <= CL_COMPLETE)
    }

    /// Waits until it was reached.
    pub(crate) fn wait(&self) -> Outcome<()> {
        wait_for_events(&[self.raw()]).of("clWaitForEvents")
    }

    /// When its command ended, in nanoseconds of the device's clock.
    pub(crate) fn end_time(&self) -> Outcome<u64> {
        let told = get_event_profiling_data(self.raw(), CL_PROFILING_COMMAND_END);
        told.of("clGetEventProfilingInfo").map(|bytes| as_number(&bytes))
    }
}
