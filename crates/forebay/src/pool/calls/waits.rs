//! Waiting for the device on the host, **with no lock of the pool held**: the device's work may wait for a thread that
//! needs one.

use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};

use forebay_core::Bytes;
use forebay_hal::{Call, Progress};

use crate::Result;
use crate::pool::backing::deferred::WorkEnd;
use crate::pool::backing::{Backing, is_gone};
use crate::pool::common::log::LoggedEvent;
use crate::pool::common::wait::{Deadline, WaitBudget, poll};
use crate::pool::heap::serials::Serial;
use crate::pool::inner::PoolInner;

/// The result of a wait for the work of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum StreamWait {
    /// The work is done.
    Done,
    /// The deadline passed first.
    Pending,
    /// Only a wait for the whole device would tell.
    Unknown,
}

/// Held while a thread has memory on its way to the heap or to the device, so that another thread's request that needs
/// it waits for it.
pub(in crate::pool) struct Reclaiming<'a>(&'a PoolInner);

impl<'a> Reclaiming<'a> {
    pub(in crate::pool) fn begin(shared: &'a PoolInner) -> Self {
        shared.reclaiming.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Reclaiming<'_> {
    fn drop(&mut self) {
        self.0.reclaiming.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The deadline of a call: `max_wait` after its first wait. A request that is not served by then is refused.
pub(in crate::pool) fn deadline(pool: &PoolInner, wait: &mut WaitBudget) -> Deadline {
    wait.deadline(|| pool.settings().max_wait())
}

/// Waits for events. Returns `false` if the deadline passed or a capture began: from then on nothing is waited for.
/// A wait that is already inside the driver goes on, as it began before the capture.
pub(super) fn wait_for_events(
    pool: &PoolInner,
    events: &[Arc<LoggedEvent>],
    deadline: Deadline,
) -> Result<bool> {
    for event in events {
        if matches!(deadline, Deadline::Never) {
            if pool.captures.any() {
                return Ok(false);
            }
            if event.synchronize().is_err() {
                // A wait for the whole device covers the event too, whatever was wrong with it.
                return wait_for_device_unless_captured(pool, deadline);
            }
            continue;
        }
        let reached = poll(deadline, || {
            // Locked, so that no capture begins during the query.
            let _backing = pool.backing();
            if pool.captures.any() {
                return Ok(Some(false));
            }
            Ok((event.query()? == Progress::Done).then_some(true))
        });
        if !reached? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Waits for all work of the device. Returns `false` if the deadline passed or a capture is under way.
pub(super) fn wait_for_device_unless_captured(
    pool: &PoolInner,
    deadline: Deadline,
) -> Result<bool> {
    if pool.captures.any() { Ok(false) } else { wait_for_device(pool, deadline) }
}

/// Waits for all work of the device. Returns `false` if the deadline passed first.
///
/// The whole device cannot be polled, so with a deadline a helper thread waits. It ends when the device is done,
/// and meanwhile no second one is started. A request that comes meanwhile first waits for the helper's end and then
/// for the device itself: the wait under way does not cover work enqueued after it began.
pub(in crate::pool) fn wait_for_device(pool: &PoolInner, deadline: Deadline) -> Result<bool> {
    let wait = || pool.device.synchronize_device();
    if deadline.remaining().is_none() {
        return Ok(pool.log.wait(Call::SynchronizeDevice, Bytes::ZERO, wait).map(|()| true)?);
    }
    if deadline.has_passed() {
        return Ok(false);
    }
    // One helper at a time.
    if !poll(deadline, || Ok((!pool.waiter.swap(true, Ordering::SeqCst)).then_some(true)))? {
        return Ok(false);
    }
    let left = deadline.remaining().unwrap_or_default();
    let (tell, told) = mpsc::channel();
    let (device, waiter) = (Arc::clone(&pool.device), Arc::clone(&pool.waiter));
    let spawned = crate::sync::thread::spawn("forebay-wait", move || {
        let waited = device.synchronize_device();
        waiter.store(false, Ordering::SeqCst);
        // The receiver is gone after the deadline.
        let _ = tell.send(waited);
    });
    if spawned.is_err() {
        pool.waiter.store(false, Ordering::SeqCst);
        return Ok(false);
    }
    let receive = || told.recv_timeout(left);
    match pool.log.wait(Call::SynchronizeDevice, Bytes::ZERO, receive) {
        Ok(waited) => Ok(waited.map(|()| true)?),
        Err(_) => Ok(false),
    }
}

/// Waits, on the host, until no other thread is releasing memory. Returns `false` if none was, or the deadline
/// passed.
pub(super) fn wait_for_reclaims(pool: &PoolInner, deadline: Deadline) -> bool {
    if pool.reclaiming.load(Ordering::SeqCst) == 0 {
        return false;
    }
    let none = || (pool.reclaiming.load(Ordering::SeqCst) == 0).then_some(true);
    poll(deadline, || Ok(none())).is_ok_and(|waited| waited)
}

/// Waits, on the host, for all work enqueued so far on the stream of a serial.
pub(super) fn wait_for_stream(
    pool: &PoolInner,
    serial: Serial,
    deadline: Deadline,
) -> Result<StreamWait> {
    let event = {
        // Under this lock no thread forgets the stream, so the handle still stands for it when the event is
        // recorded.
        let _backing = pool.backing();
        let end = Backing::end_of(&pool.heap(), serial);
        match end {
            None => return Ok(StreamWait::Done),
            Some(WorkEnd::Unknown) => return Ok(StreamWait::Unknown),
            Some(WorkEnd::Event(event, _)) => event,
            Some(WorkEnd::Stream(stream, _)) => {
                match LoggedEvent::after(&pool.device, &pool.log, stream) {
                    Ok(event) => Arc::new(event),
                    Err(error) if is_gone(&error) => return Ok(StreamWait::Unknown),
                    Err(error) => return Err(error),
                }
            }
        }
    };
    let over = wait_for_events(pool, &[event], deadline)?;
    Ok(if over { StreamWait::Done } else { StreamWait::Pending })
}
