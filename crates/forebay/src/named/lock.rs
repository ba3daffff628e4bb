//! A lock between processes and threads that is released when its holder ends.
//!
//! The system releases a file lock with the open file description it was taken on, however the process ends.
//! Descriptors sent through a socket share one description and so the lock; therefore each handle reopens the header
//! file through `/proc/self/fd`. Uses `flock`: `fcntl` locks need a file open for writing, but the header is sealed.

use core::marker::PhantomData;
use core::sync::atomic::{Ordering, fence};
use core::time::Duration;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::SharedError;
use super::socket::failed;
use crate::Result;
use crate::sync::fork::ProcessFd;
use crate::sync::lock;

/// The longest pause between two attempts of a timed lock.
const LONGEST_PAUSE: Duration = Duration::from_millis(2);

/// The lock of one handle.
#[derive(Debug)]
pub(super) struct FileLock {
    file: core::result::Result<ProcessFd, SharedError>,
    /// The thread of this process that holds it, or waits for other processes.
    holder: Mutex<Option<ThreadId>>,
    freed: Condvar,
}

/// Excludes all other holders of the lock until it is dropped.
#[derive(Debug)]
pub(super) struct Held<'a> {
    of: &'a FileLock,
    /// The holding thread is known by its id, so the guard must stay on it.
    not_send: PhantomData<*const ()>,
}

impl FileLock {
    pub(super) fn new(header: BorrowedFd<'_>) -> Self {
        let path = format!("/proc/self/fd/{}", header.as_raw_fd());
        let opened = rustix::fs::open(&path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = opened.map(ProcessFd::new).map_err(|errno| SharedError::Unsupported {
            missing: format!("locks need /proc, and {path} cannot be opened: {errno}").into(),
        });
        Self { file, holder: Mutex::default(), freed: Condvar::new() }
    }

    /// Acquires the lock; returns `None` after waiting for `patience`.
    pub(super) fn acquire(&self, patience: Option<Duration>) -> Result<Option<Held<'_>>> {
        let file = self.file.as_ref().map_err(Clone::clone)?.get()?;
        let deadline = patience.map(|patience| Instant::now().checked_add(patience));
        // A deadline that overflows is no deadline.
        let deadline = deadline.flatten();
        if !self.enter(deadline)? {
            return Ok(None);
        }
        let locked = match deadline {
            None => wait_for(file).map(|()| true),
            Some(deadline) => wait_until(file, deadline),
        };
        match locked {
            Ok(true) => {
                fence(Ordering::Acquire);
                Ok(Some(Held { of: self, not_send: PhantomData }))
            }
            Ok(false) => {
                self.leave();
                Ok(None)
            }
            Err(errno) => {
                self.leave();
                Err(failed("flock")(errno).into())
            }
        }
    }

    /// Excludes the other threads of this process that use this handle.
    fn enter(&self, deadline: Option<Instant>) -> Result<bool> {
        let me = std::thread::current().id();
        let mut holder = lock(&self.holder);
        while let Some(other) = *holder {
            if other == me {
                return Err(SharedError::AlreadyLocked.into());
            }
            holder = match deadline.map(|end| end.saturating_duration_since(Instant::now())) {
                None => self.freed.wait(holder).unwrap_or_else(PoisonError::into_inner),
                Some(Duration::ZERO) => return Ok(false),
                Some(rest) => {
                    let waited = self.freed.wait_timeout(holder, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *holder = Some(me);
        Ok(true)
    }

    /// Releases a lock whose guard was forgotten, on the thread that acquired it.
    pub(super) fn release(&self) -> Result<()> {
        self.file.as_ref().map_err(Clone::clone)?.get()?;
        if *lock(&self.holder) != Some(std::thread::current().id()) {
            return Err(SharedError::NotLocked.into());
        }
        self.abandon();
        Ok(())
    }

    /// Releases the lock, whichever thread of this process holds it.
    pub(super) fn abandon(&self) {
        // In a forked child the parent still holds the lock.
        let Some(Ok(file)) = self.file.as_ref().ok().map(ProcessFd::get) else { return };
        fence(Ordering::Release);
        // Cannot fail for a held lock.
        let _ = rustix::fs::flock(file, FlockOperation::Unlock);
        self.leave();
    }

    fn leave(&self) {
        *lock(&self.holder) = None;
        self.freed.notify_one();
    }
}

fn wait_for(file: BorrowedFd<'_>) -> core::result::Result<(), Errno> {
    rustix::io::retry_on_intr(|| rustix::fs::flock(file, FlockOperation::LockExclusive))
}

fn wait_until(file: BorrowedFd<'_>, deadline: Instant) -> core::result::Result<bool, Errno> {
    let mut pause = Duration::from_micros(50);
    loop {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let rest = deadline.saturating_duration_since(Instant::now());
        if rest.is_zero() {
            return Ok(false);
        }
        std::thread::sleep(pause.min(rest));
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.of.abandon();
    }
}
