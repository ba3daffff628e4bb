//! Streams: command queues that run in strict order.
//!
//! Each stream has a shared event, its timeline. Each enqueued item gets the next value: a command buffer waits for the
//! previous value and signals its own, and so does a host function. So the value shows the progress of the stream to
//! the device, to other streams and to the host:
//!
//! ```text
//!   timeline   0 ─── 1 ─────────── 2 ──────────── 3
//!              buffer   host function   buffer       enqueue: wait for the last value, signal the next
//! ```

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use block2::RcBlock;
use dispatch2::DispatchQueue;
use forebay_hal::{Call, Error, Progress, Result};
use forebay_sync::lock;
use objc2::AllocAnyThread;
use objc2::rc::{Retained, autoreleasepool};
use objc2::runtime::ProtocolObject;
use objc2_metal::{
    MTLCommandBuffer, MTLCommandBufferStatus, MTLCommandQueue, MTLDevice, MTLEvent, MTLSharedEvent,
    MTLSharedEventListener,
};

use crate::buffer::BufferRef;

/// A command buffer as Metal's interface has it.
pub(crate) type Commands = ProtocolObject<dyn MTLCommandBuffer>;

/// How many command buffers of a stream may be uncompleted. At its own limit Metal makes the caller wait, which only calls
/// named `synchronize` may do: here one more is refused.
const MAX_UNCOMPLETED: usize = 1024;

/// How long one call of a wait takes at most, in milliseconds; it is made again until the value is reached.
const WAIT_MS: u64 = 500;

/// Whether the device still works.
#[derive(Debug, Default)]
pub(crate) struct Health {
    lost: OnceLock<String>,
}

impl Health {
    /// An error once the device is lost.
    pub(crate) fn check(&self, call: Call) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::Lost { call, reason: reason.as_str().into() }),
            None => Ok(()),
        }
    }
}

/// A stream.
pub(crate) struct StreamCore {
    queue: Retained<ProtocolObject<dyn MTLCommandQueue>>,
    timeline: Retained<ProtocolObject<dyn MTLSharedEvent>>,
    /// Calls this stream's functions of the host, on a queue of its own: one that blocks holds back no other stream.
    listener: Retained<MTLSharedEventListener>,
    /// The value of what was enqueued last. Held while a value is taken and enqueued, so that they are in order.
    last: Mutex<u64>,
    uncompleted: AtomicUsize,
    health: Arc<Health>,
}

impl StreamCore {
    /// A new stream; `None` where Metal makes none.
    pub(crate) fn new(
        device: &ProtocolObject<dyn MTLDevice>,
        health: &Arc<Health>,
    ) -> Option<Arc<Self>> {
        autoreleasepool(|_| {
            let queue = device.newCommandQueueWithMaxCommandBufferCount(MAX_UNCOMPLETED + 1)?;
            let timeline = device.newSharedEvent()?;
            let serial = DispatchQueue::new("forebay.stream", None);
            // SAFETY: a queue that nobody else has.
            let listener = unsafe {
                MTLSharedEventListener::initWithDispatchQueue(
                    MTLSharedEventListener::alloc(),
                    &serial,
                )
            };
            Some(Arc::new(Self {
                queue,
                timeline,
                listener,
                last: Mutex::new(0),
                uncompleted: AtomicUsize::new(0),
                health: Arc::clone(health),
            }))
        })
    }

    /// The shared event, for the work of other streams.
    pub(crate) fn timeline(&self) -> &ProtocolObject<dyn MTLEvent> {
        ProtocolObject::from_ref(&*self.timeline)
    }

    /// The value of what was enqueued last.
    pub(crate) fn last(&self) -> u64 {
        *lock(&self.last)
    }

    /// Whether a value was reached.
    pub(crate) fn has_reached(&self, value: u64) -> bool {
        self.timeline.signaledValue() >= value
    }

    /// Whether everything was reached that was enqueued.
    pub(crate) fn is_done(&self) -> bool {
        self.has_reached(self.last())
    }

    /// Whether all is done, or the device is lost.
    pub(crate) fn progress(&self, call: Call, value: u64) -> Result<Progress> {
        let reached = self.has_reached(value);
        self.health.check(call)?;
        Ok(if reached { Progress::Done } else { Progress::Pending })
    }

    /// Waits until a value is reached.
    pub(crate) fn wait(&self, call: Call, value: u64) -> Result<()> {
        // No lock is held here. A lost device's timelines go on, so this ends.
        while !self.timeline.waitUntilSignaledValue_timeoutMS(value, WAIT_MS) {}
        self.health.check(call)
    }

    /// Enqueues a command buffer, and returns its value. `kept` lives until it is completed. If `encode` fails, nothing
    /// is enqueued.
    pub(crate) fn submit(
        self: &Arc<Self>,
        call: Call,
        kept: Vec<BufferRef>,
        encode: impl FnOnce(&Commands) -> Result<()>,
    ) -> Result<u64> {
        self.health.check(call)?;
        autoreleasepool(|_| {
            let mut last = lock(&self.last);
            if self.uncompleted.load(Ordering::Relaxed) >= MAX_UNCOMPLETED {
                let what =
                    format!("{MAX_UNCOMPLETED} command buffers of the stream are uncompleted");
                return Err(Error::Busy { call, what: what.into() });
            }
            let commands = self.queue.commandBuffer().ok_or_else(|| Error::Transient {
                call,
                reason: "Metal created no command buffer".into(),
            })?;
            commands.encodeWaitForEvent_value(self.timeline(), *last);
            encode(&commands)?;
            let value = *last + 1;
            commands.encodeSignalEvent_value(self.timeline(), value);
            let core = Arc::clone(self);
            let completed = RcBlock::new(move |done: NonNull<Commands>| {
                let _ = &kept;
                // SAFETY: Metal gives the command buffer that it completed.
                core.complete(unsafe { done.as_ref() }, value);
            });
            // SAFETY: a block that Metal copies, and what it holds may be used by any thread.
            unsafe { commands.addCompletedHandler(RcBlock::as_ptr(&completed)) };
            self.uncompleted.fetch_add(1, Ordering::Relaxed);
            commands.commit();
            *last = value;
            Ok(value)
        })
    }

    /// Called once for each command buffer.
    fn complete(&self, commands: &Commands, value: u64) {
        self.uncompleted.fetch_sub(1, Ordering::Relaxed);
        if commands.status() != MTLCommandBufferStatus::Error {
            return;
        }
        let reason = commands.error().map_or_else(
            || "a command buffer failed, and Metal does not say why".to_owned(),
            |error| error.localizedDescription().to_string(),
        );
        let _ = self.health.lost.set(reason);
        // Nobody waits for ever for what did not run.
        if !self.has_reached(value) {
            self.timeline.setSignaledValue(value);
        }
    }

    /// Enqueues a function of the host, and returns its value.
    pub(crate) fn task(
        self: &Arc<Self>,
        call: Call,
        task: impl FnOnce() + Send + 'static,
    ) -> Result<u64> {
        self.health.check(call)?;
        autoreleasepool(|_| {
            let mut last = lock(&self.last);
            let (before, value) = (*last, *last + 1);
            // Metal's blocks may be called again as far as their type goes; this one is not.
            let task = Mutex::new(Some(task));
            let core = Arc::clone(self);
            let block =
                RcBlock::new(move |_: NonNull<ProtocolObject<dyn MTLSharedEvent>>, _: u64| {
                    let task = lock(&task).take();
                    if let Some(task) = task {
                        task();
                    }
                    core.timeline.setSignaledValue(value);
                });
            let block = RcBlock::as_ptr(&block);
            // SAFETY: a block that Metal copies; what it holds may be used by any thread.
            unsafe { self.timeline.notifyListener_atValue_block(&self.listener, before, block) };
            *last = value;
            Ok(value)
        })
    }
}

impl fmt::Debug for StreamCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StreamCore({} of {} done)", self.timeline.signaledValue(), self.last())
    }
}
