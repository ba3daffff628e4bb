//! Waiting for the host's replica without blocking: plain futures, for any executor.

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;

use super::guard::{HostMut, bytes_of};
use super::raw::Access;
use super::typed::{Buffer, BufferSlice};
use crate::Result;
use crate::sync::lock;

/// Set by the device when copies are done.
#[derive(Debug, Default)]
struct Signal {
    done: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// A future of elements in host memory, made by [`Buffer::fetch`](super::Buffer::fetch). Copies begin when it is first
/// polled; the device wakes it when they are done. A device that cannot run host functions is waited for in the first poll.
///
/// Dropping it early is safe: copies under way end in memory that stays, and what they brought is copied again when it is
/// needed.
#[derive(Debug)]
#[must_use = "a future does nothing unless it is polled"]
pub struct Fetch<'a, T: Pod> {
    slice: Option<BufferSlice<'a, T>>,
    access: Access,
    signal: Option<Arc<Signal>>,
}

impl<T: Pod> Buffer<T> {
    /// The elements in host memory, when the copies that they need are done: a future, for any executor.
    ///
    /// ```
    /// # use forebay::buffer::Memory;
    /// # use forebay::HostDevice;
    /// # use std::task::{Context, Poll, Waker};
    /// # let memory = Memory::new(&HostDevice::open()?)?;
    /// let mut buffer = memory.buffer::<f32>(1000)?;
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
    pub fn fetch(&mut self) -> Fetch<'_, T> {
        Fetch::new(self.as_slice(), Access::Update)
    }
}

impl<'a, T: Pod> Fetch<'a, T> {
    fn new(slice: BufferSlice<'a, T>, access: Access) -> Self {
        Self { slice: Some(slice), access, signal: None }
    }

    /// Enqueues the copies and asks for a signal after them. `None` if there is nothing to wait for.
    fn start(slice: &mut BufferSlice<'a, T>, access: Access) -> Result<Option<Arc<Signal>>> {
        slice.raw.start_host(bytes_of::<T>(&slice.elements), access)?;
        let signal = Arc::<Signal>::default();
        let told = Arc::clone(&signal);
        let task = move || {
            told.done.store(true, Ordering::Release);
            if let Some(waker) = lock(&told.waker).take() {
                waker.wake();
            }
        };
        Ok(slice.raw.after_arrivals(Box::new(task)).then_some(signal))
    }
}

// Nothing in it is pinned.
impl<T: Pod> Unpin for Fetch<'_, T> {}

impl<'a, T: Pod> Future for Fetch<'a, T> {
    type Output = Result<HostMut<'a, T>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        // Polled again after it was ready: there is nothing to give.
        let Some(slice) = &mut this.slice else { return Poll::Pending };
        if this.signal.is_none() && !slice.raw.is_unified() {
            match Self::start(slice, this.access) {
                Ok(signal) => this.signal = signal,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        if let Some(signal) = &this.signal {
            *lock(&signal.waker) = Some(context.waker().clone());
            if !signal.done.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        let Some(slice) = this.slice.take() else { return Poll::Pending };
        // What was enqueued is done, so that this waits for it no longer.
        Poll::Ready(slice.into_arrived(this.access))
    }
}

impl<T: Pod> Drop for Fetch<'_, T> {
    fn drop(&mut self) {
        if let Some(slice) = &mut self.slice {
            slice.raw.abandon_arrivals();
        }
    }
}
