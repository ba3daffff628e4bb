//! Futures that wait for the host's replica without blocking, for any executor.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use forebay_hal::{Call, invalid};

use super::access::Access;
use super::guard::bytes_of;
use super::slice::BufferSlice;
use super::typed::Buffer;
use crate::Result;
use crate::sync::lock;

/// Set by the device when copies are done.
#[derive(Debug, Default)]
struct Signal {
    done: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A future of elements in host memory, made by [`Buffer::fetch`]. The first poll starts the copies; the device wakes
/// the task when they are done.
///
/// A poll blocks in three cases: the device cannot run host functions, its memory is the host's own, or copies to the
/// device still read host memory.
///
/// Dropping it early is safe: copies in flight finish in memory that stays valid, and their data is copied again when
/// needed.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Fetch<'a, T: Pod> {
    /// `None` after completion.
    slice: Option<BufferSlice<'a, T>>,
    signal: Option<Arc<Signal>>,
}

impl<T: Pod> Buffer<T> {
    /// Returns the elements in host memory once their copies are done, as a future for any executor.
    ///
    /// ```
    /// # use forebay::buffer::BufferManager;
    /// # use forebay::HostDevice;
    /// # use std::task::{Context, Poll, Waker};
    /// # let memory = BufferManager::new(&HostDevice::open()?)?;
    /// let buffer = memory.buffer::<f32>(1000)?;
    /// let mut fetch = std::pin::pin!(buffer.fetch());
    /// // In a program, `buffer.fetch().await?`.
    /// let view = loop {
    ///     match fetch.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
    ///         Poll::Ready(view) => break view?,
    ///         Poll::Pending => std::thread::yield_now(),
    ///     }
    /// };
    /// assert_eq!(view.len(), 1000);
    /// # use std::future::Future;
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn fetch(&self) -> Fetch<'_, T> {
        Fetch { slice: Some(self.as_slice()), signal: None }
    }
}

impl<'a, T: Pod> Fetch<'a, T> {
    /// Enqueues the copies and requests a signal after them. `None` if a blocking wait is needed.
    fn start(slice: &BufferSlice<'a, T>) -> Result<Option<Arc<Signal>>> {
        let mut replicas = slice.raw.shared()?;
        if replicas.is_unified() {
            return Ok(None);
        }
        replicas.start_host(bytes_of::<T>(&slice.elements), Access::Read)?;
        let signal = Arc::<Signal>::default();
        let sent = Arc::clone(&signal);
        let task = move || {
            sent.done.store(true, Ordering::Release);
            // Wake without holding the lock: an executor may poll at once.
            let waker = lock(&sent.waker).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        Ok(replicas.after_arrivals(Box::new(task)).then_some(signal))
    }

    /// Waits for the copies that were started, if there are any, and returns the elements.
    fn finish(slice: &BufferSlice<'a, T>) -> Result<&'a [T]> {
        slice.raw.shared()?.finish_host(Access::Read)?;
        slice.host()
    }

    /// `None` until the copies are done.
    fn advance(&mut self, context: &Context<'_>) -> Option<Result<&'a [T]>> {
        let Some(slice) = self.slice.take() else {
            let allowed = "a future that was not ready before";
            return Some(Err(invalid(Call::Copy, "future", "one polled again", allowed).into()));
        };
        if let Err(error) = slice.raw.check_process() {
            return Some(Err(error));
        }
        if self.signal.is_none() {
            match Self::start(&slice) {
                Ok(signal) => self.signal = signal,
                Err(error) => return Some(Err(error)),
            }
        }
        if let Some(signal) = &self.signal {
            let before = lock(&signal.waker).replace(context.waker().clone());
            drop(before);
            if !signal.done.load(Ordering::Acquire) {
                if slice.raw.drive() {
                    context.waker().wake_by_ref();
                }
                self.slice = Some(slice);
                return None;
            }
        }
        Some(Self::finish(&slice))
    }
}

// Nothing in it is structurally pinned.
impl<T: Pod> Unpin for Fetch<'_, T> {}

impl<'a, T: Pod> Future for Fetch<'a, T> {
    type Output = Result<&'a [T]>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.get_mut().advance(context).map_or(Poll::Pending, Poll::Ready)
    }
}
