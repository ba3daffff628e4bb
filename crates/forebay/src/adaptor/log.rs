//! A log with a line for each operation.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_core::{Address, Bytes};
use forebay_hal::{Call, StreamHandle};

use super::Adapt;
use super::ledger::Ledger;
use crate::sync::lock;
use crate::{Allocate, Block, Request, Result};

/// The first line of a log.
const HEADER: &str = "Thread,Time,Action,Pointer,Size,Stream";

/// The calling thread's number, in the order in which threads first wrote to any log. Avoids the system call for the
/// system's own thread number.
fn thread_number() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: u64 = LAST.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    }
    // The thread is exiting and its number is gone: 0.
    NUMBER.try_with(|&number| number).unwrap_or_default()
}

/// The time of day in UTC, to the microsecond.
struct TimeOfDay;

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A clock set before 1970 shows midnight.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seconds = now.as_secs() % (24 * 60 * 60);
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{hour:02}:{minute:02}:{second:02}.{:06}", now.subsec_micros())
    }
}

/// The writer and its state.
#[derive(Debug)]
struct Log<W> {
    writer: W,
    /// Requested sizes of live blocks: the line of a free needs them.
    sizes: Ledger<Bytes>,
    lost: u64,
    error: Option<io::Error>,
    /// Whether the last line may be incomplete.
    torn: bool,
}

impl<W: Write> Log<W> {
    fn line(&mut self, action: &str, address: Address, size: Bytes, stream: StreamHandle) {
        let (thread, size) = (thread_number(), size.get());
        // The default stream is a plain 0 in logs.
        let stream =
            if stream == StreamHandle::DEFAULT { "0" } else { &format!("{:#x}", stream.0) };
        self.write(&format!("{thread},{TimeOfDay},{action},{address},{size},{stream}\n"));
    }

    fn write(&mut self, line: &str) {
        // After a failure, start with a newline so that a truncated line does not spoil the next.
        let start = if self.torn { "\n" } else { "" };
        let written = self.writer.write_all(format!("{start}{line}").as_bytes());
        self.torn = written.is_err();
        if let Err(error) = written {
            self.lost += 1;
            self.error = Some(error);
        }
    }
}

/// An allocator that logs its operations as RMM does: `Thread,Time,Action,Pointer,Size,Stream`. `forebay replay` and
/// RMM's tools read such logs.
///
/// Sizes are the requested ones. A request that failed is an `allocate failure`. A free that failed, or of a block that
/// was not allocated through the adaptor, leaves no line. So every log is consistent: no address is allocated twice
/// without a free in between, and nothing is freed that was not allocated.
///
/// An allocation never fails because of its log. The adaptor [counts](Self::lost_lines) lines that it could not write
/// and [keeps](Self::take_error) the last error. The writer must not allocate from this allocator, which waits for it.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::adaptor::Logged;
/// use forebay::{Allocate, Bytes, Pool, Request};
/// # let device = forebay::HostDevice::open()?;
/// # let stream = StreamHandle::DEFAULT;
///
/// let logged = Logged::new(Pool::new(&device)?, Vec::new());
/// let block = logged.allocate_request(Request::new(Bytes::new(1000), stream))?;
/// logged.free(block.address(), stream)?;
/// let (_, log) = logged.into_parts();
/// let log = String::from_utf8(log)?;
/// assert!(log.lines().nth(1).is_some_and(|line| line.ends_with(",1000,0")));
/// assert!(log.lines().nth(2).is_some_and(|line| line.contains(",free,0x")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Logged<A, W> {
    inner: A,
    log: Mutex<Log<W>>,
}

impl<A: Allocate, W: Write + Send> Logged<A, W> {
    /// Logs the calls to `inner` to `writer`, after a line with the column names. It writes line by line, so wrap a
    /// file in a [`BufWriter`](io::BufWriter).
    pub fn new(inner: A, writer: W) -> Self {
        let mut log = Log { writer, sizes: Ledger::new(), lost: 0, error: None, torn: false };
        log.write(&format!("{HEADER}\n"));
        Self { inner, log: Mutex::new(log) }
    }

    /// The number of lines that could not be written. In a forked child, 0 for the parent's adaptor.
    pub fn lost_lines(&self) -> u64 {
        self.lock().map_or(0, |log| log.lost)
    }

    /// Takes the error of the last lost line; `None` until another line is lost.
    pub fn take_error(&self) -> Option<io::Error> {
        self.lock().ok()?.error.take()
    }

    /// Flushes the writer. Fails in a forked child.
    pub fn flush(&self) -> io::Result<()> {
        self.lock().map_err(io::Error::other)?.writer.flush()
    }

    /// Returns the allocator and the writer. [`flush`](Self::flush) a buffered writer first.
    pub fn into_parts(self) -> (A, W) {
        let log = self.log.into_inner().unwrap_or_else(PoisonError::into_inner);
        (self.inner, log.writer)
    }

    /// Fails in a forked child: the parent may have held the lock at the fork, so it might never be released.
    fn lock(&self) -> Result<MutexGuard<'_, Log<W>>> {
        self.inner.device().descriptor().check_process(Call::Allocate)?;
        // If the writer panicked, a line may be lost; everything else is consistent.
        Ok(lock(&self.log))
    }
}

impl<A: Allocate, W: Write + Send> Adapt for Logged<A, W> {
    fn allocate(&self, request: Request) -> Result<Block> {
        // Check before allocating a block that could not be logged.
        self.inner.device().descriptor().check_process(Call::Allocate)?;
        let (size, stream) = (request.size(), request.stream());
        let allocated = self.inner.allocate_request(request);
        let mut log = self.lock()?;
        match &allocated {
            Ok(block) => {
                let address = block.address();
                let past = log.sizes.enter(address, size);
                if let Some(past) = past {
                    // The block recorded at that address was freed past this adaptor, by now at the latest.
                    log.line("free", address, past, stream);
                }
                log.line("allocate", address, size, stream);
            }
            Err(_) => log.line("allocate failure", Address::NULL, size, stream),
        }
        allocated
    }

    fn free_by(
        &self,
        address: Address,
        stream: StreamHandle,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        // Hold the lock across the free, so that the next block at this address is logged after this.
        let mut log = self.lock()?;
        free()?;
        let size = if address.is_null() { Some(Bytes::ZERO) } else { log.sizes.remove(address) };
        if let Some(size) = size {
            log.line("free", address, size, stream);
        }
        Ok(())
    }
}

adaptor!(Logged<A, W: Write, Send>);
