//! Host tasks in stream order.
//!
//! The driver can call host functions itself, but runs them one after another for all streams: one that blocks holds
//! back all others, which the contract forbids. So the driver's callback only passes the task to a thread of ours, and
//! the stream waits for a word in memory that the thread writes when the task is done:
//!
//! ```text
//!   stream     ... work ][ call: hand over ][ wait: word >= 7 ][ work ...
//!                               |                  ^
//!   thread                      +---> task 7 ------+ word = 7
//! ```
//!
//! Numbers go up by one for each task of a stream, so one word serves a stream for billions of tasks.

use core::ffi::c_void;
use core::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebay_hal::{HostTask, Workers, run_host_task};
use forebay_sync::lock;

use crate::context::{Context, host_pointer};
use crate::sys::values::{host_alloc, wait_value};
use crate::sys::{Outcome, RawStream};

/// How far the words lie apart: a cache line, so that threads do not fight over one.
const APART: u64 = 64;

/// How much memory words are made of at once: a page of the host.
const PAGE: usize = 4096;

/// How many words that is.
const AT_ONCE: u64 = PAGE as u64 / APART;

/// The last number of a word. HIP does not compare numbers across their end, so a stream takes another word then.
const LAST: u32 = u32::MAX;

/// A word that a stream waits for.
#[derive(Debug)]
pub(crate) struct Signal {
    /// Where the host sees it.
    host: u64,
    /// Where the device sees it.
    device: u64,
    /// The number of the last task that waits for it.
    issued: AtomicU32,
}

impl Signal {
    fn word(&self) -> &AtomicU32 {
        let pointer = host_pointer(self.host).cast_const().cast::<AtomicU32>();
        // SAFETY: pinned memory of four bytes at a multiple of 64, which is never given back and
        // only ever used as an atomic word.
        unsafe { &*pointer }
    }

    /// Whether task `number` is done.
    fn is_done(&self, number: u32) -> bool {
        !is_before(self.word().load(Ordering::Acquire), number)
    }

    /// Whether no task waits for it.
    fn is_settled(&self) -> bool {
        self.is_done(self.issued.load(Ordering::Acquire))
    }

    /// Whether it has numbers left.
    fn has_numbers(&self) -> bool {
        self.issued.load(Ordering::Acquire) < LAST
    }

    /// Says that task `number` is done. The word never goes back: a stream may still be about to
    /// look at it.
    fn finish(&self, number: u32) {
        let word = self.word();
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
            is_before(now, number).then_some(number)
        });
    }
}

/// Whether `one` comes before `other`, as the device compares: the difference as a signed number.
const fn is_before(one: u32, other: u32) -> bool {
    one.wrapping_sub(other) > i32::MAX as u32
}

/// The words of a context.
#[derive(Debug, Default)]
struct Signals(Mutex<Vec<Arc<Signal>>>);

impl Signals {
    /// An unused word that nothing waits for.
    fn take(&self, context: &Context) -> Outcome<Arc<Signal>> {
        let mut all = lock(&self.0);
        let idle = |signal: &&Arc<Signal>| {
            Arc::strong_count(signal) == 1 && signal.is_settled() && signal.has_numbers()
        };
        if let Some(signal) = all.iter().find(idle) {
            return Ok(Arc::clone(signal));
        }
        let (mut host, mut device) = (0, 0);
        let flags = host_alloc::PORTABLE | host_alloc::DEVICE_MAP;
        context.call(|table| {
            // SAFETY: the addresses are written to places of our own, and the second is asked for
            // memory just got, which is given back where there is none.
            unsafe {
                table.mem_host_alloc(&raw mut host, AT_ONCE * APART, flags)?;
                table.mem_host_alloc.check_allocated(host)?;
                table.mem_host_device_pointer(&raw mut device, host, 0).inspect_err(|_| {
                    // Nobody knows of it yet.
                    let _ = table.mem_free_host(host);
                })
            }
        })?;
        context.note_inner(host, AT_ONCE * APART);
        let bytes = host_pointer(host);
        // SAFETY: memory of that size, just got, that nobody else knows of.
        unsafe { core::ptr::write_bytes(bytes, 0, PAGE) };
        all.extend((0..AT_ONCE).map(|index| {
            let offset = index * APART;
            let issued = AtomicU32::new(0);
            Arc::new(Signal { host: host + offset, device: device + offset, issued })
        }));
        match all.last() {
            Some(signal) => Ok(Arc::clone(signal)),
            // There are some, since some were just added.
            None => Ok(Arc::new(Signal { host, device, issued: AtomicU32::new(0) })),
        }
    }
}

/// A task that was submitted and has not run yet.
#[derive(Debug)]
struct PendingTask {
    /// Taken by the thread that runs it, or by the one that cancels it.
    task: Mutex<Option<Task>>,
    signal: Arc<Signal>,
    number: u32,
}

/// A host function; wrapped because closures have no `Debug`.
struct Task(HostTask);

impl core::fmt::Debug for Task {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Task")
    }
}

impl PendingTask {
    fn run(&self) {
        let task = lock(&self.task).take();
        if let Some(Task(task)) = task {
            run_host_task(task);
        }
        self.signal.finish(self.number);
    }
}

static WORKERS: Workers<Arc<PendingTask>> = Workers::new("forebay-cuda", |pending| pending.run());

/// The driver's callback for a task that may block.
unsafe extern "C" fn begin(data: *mut c_void) {
    // SAFETY: `Tasks::enqueue` gave away one count of this task, and the driver calls once.
    WORKERS.hand_over(unsafe { Arc::from_raw(data.cast_const().cast::<PendingTask>()) });
}

/// The driver's callback for a short task.
unsafe extern "C" fn run_now(data: *mut c_void) {
    // SAFETY: `Context::enqueue_brief` gave this box away, and the driver calls once.
    let task = unsafe { Box::from_raw(data.cast::<HostTask>()) };
    run_host_task(*task);
}

/// The host tasks of a context.
#[derive(Debug)]
pub(crate) struct Tasks {
    context: &'static Context,
    signals: Signals,
}

impl Tasks {
    pub(crate) fn new(context: &'static Context) -> Self {
        Self { context, signals: Signals::default() }
    }

    /// Runs `task` in the order of a live stream. `waits_for` is the signal by which that stream waits for its tasks.
    pub(crate) fn enqueue(
        &'static self,
        task: HostTask,
        stream: RawStream,
        waits_for: &mut Option<Arc<Signal>>,
    ) -> Outcome {
        let signal = match waits_for {
            Some(signal) if signal.has_numbers() => Arc::clone(signal),
            _ => self.signals.take(self.context)?,
        };
        *waits_for = Some(Arc::clone(&signal));
        let number = signal.issued.load(Ordering::Acquire).wrapping_add(1);
        let task = Mutex::new(Some(Task(task)));
        let pending = Arc::new(PendingTask { task, signal: Arc::clone(&signal), number });
        let theirs = Arc::into_raw(Arc::clone(&pending)).cast_mut().cast::<c_void>();
        let table = self.context.table();
        let launched = self.context.enter().and_then(|current| {
            // SAFETY: the stream is live, and the task, of which the driver gets one count, is
            // there until `begin` has taken it back.
            unsafe { table.launch_host_function(stream, begin, theirs) }.map(|()| current)
        });
        let _current = launched.inspect_err(|_| {
            // SAFETY: the driver has refused it, so nobody else takes this count back.
            drop(unsafe { Arc::from_raw(theirs.cast_const().cast::<PendingTask>()) });
        })?;
        signal.issued.store(number, Ordering::Release);
        // SAFETY: the stream is live, and the word is there for ever.
        let waits = unsafe {
            table.stream_wait_value(stream, signal.device, number, wait_value::GREATER_OR_EQUAL)
        };
        let Err(refusal) = waits else { return Ok(()) };
        if lock(&pending.task).take().is_some() {
            // Called off before it began: the driver's call will find nothing to run.
            return Err(refusal);
        }
        // It runs already. Work enqueued from now on comes after it all the same if nobody enqueues
        // any until it is over.
        while !signal.is_done(number) {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl Context {
    /// Whether blocking tasks are supported here.
    pub(crate) fn has_tasks(&self) -> bool {
        let table = self.table();
        table.launch_host_function.is_some()
            && table.stream_wait_value.is_some()
            && table.mem_host_alloc.is_some()
            && table.mem_host_device_pointer.is_some()
    }

    /// Runs a task that is over soon in the order of a live stream, on the driver's own thread.
    pub(crate) fn enqueue_brief(&self, task: HostTask, stream: RawStream) -> Outcome {
        let data = Box::into_raw(Box::new(task));
        // SAFETY: the stream is live, and the box, which the driver gets, is there until `run_now`
        // has taken it back.
        let launched =
            self.call(|table| unsafe { table.launch_host_function(stream, run_now, data.cast()) });
        launched.inspect_err(|_| {
            // SAFETY: the driver has refused it, so it is ours again.
            drop(unsafe { Box::from_raw(data) });
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_across_their_end() {
        assert!(is_before(0, 1) && !is_before(1, 1) && !is_before(2, 1));
        assert!(is_before(u32::MAX, 0) && is_before(u32::MAX - 5, 7));
        assert!(!is_before(0, u32::MAX));
    }
}
