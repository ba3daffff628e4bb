//! Live blocks, with their age, tag and call stack.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::time::Instant;

use forebay_core::{Address, Bytes, counted};
use forebay_hal::StreamHandle;

use super::Adapt;
use super::ledger::Ledger;
use crate::report::Stack;
use crate::{Allocate, Block, Request, Result, Tag};

/// Number of blocks a report lists by default.
const LISTED: usize = 32;

/// A live block, as recorded by the tracker.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LiveBlock {
    /// The block.
    pub block: Block,
    /// The requested size.
    pub requested: Bytes,
    /// The stream of the request.
    pub stream: StreamHandle,
    /// The number of the allocation, counted from 1.
    pub number: u64,
    /// The time of the allocation, since the tracker was made.
    pub at: Duration,
    /// The tag that the thread had entered.
    pub tag: Tag,
    /// The call stack of the request, if the tracker captures stacks.
    pub stack: Stack,
}

impl fmt::Display for LiveBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (address, requested, stream) = (self.block.address(), self.requested, self.stream);
        write!(f, "block {} at {address}: {requested} ({} B)", self.number, requested.get())?;
        write!(f, " on {stream}, {:.6} s from the start", self.at.as_secs_f64())?;
        if self.tag != Tag::NONE {
            write!(f, ", \"{}\"", self.tag.name())?;
        }
        Ok(())
    }
}

/// Live blocks, oldest first. `{}` shows the first few, `{:#}` all of them with their call stacks.
#[derive(Clone, Debug, Default)]
pub struct Leaks {
    blocks: Vec<LiveBlock>,
}

impl Leaks {
    /// The blocks, oldest first.
    pub fn blocks(&self) -> &[LiveBlock] {
        &self.blocks
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Their total size, after rounding.
    pub fn size(&self) -> Bytes {
        self.blocks.iter().fold(Bytes::ZERO, |sum, live| sum.saturating_add(live.block.size()))
    }
}

impl fmt::Display for Leaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.blocks.len();
        if count == 0 {
            return f.write_str("no blocks are live");
        }
        let size = self.size();
        let are = if count == 1 { "is" } else { "together are" };
        write!(f, "{} of {size} ({} B) {are} live", counted(count, "block"), size.get())?;
        let listed = if f.alternate() { count } else { LISTED };
        for live in self.blocks.iter().take(listed) {
            write!(f, "\n  {live}")?;
            if f.alternate() {
                write!(f, "{:#}", live.stack)?;
            }
        }
        match count.saturating_sub(listed) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// An allocator that tracks its live blocks.
///
/// ```
/// # use forebay::StreamHandle;
/// use forebay::adaptor::Tracked;
/// use forebay::{Allocate, Bytes, Pool, Request};
/// # let device = forebay::HostDevice::open()?;
/// # let stream = StreamHandle::DEFAULT;
///
/// let tracked = Tracked::new(Pool::new(&device)?);
/// let weights = forebay::tag("weights");
/// let kept = tracked.allocate_request(Request::new(Bytes::mib(1), stream))?;
/// drop(weights);
/// let freed = tracked.allocate_request(Request::new(Bytes::mib(2), stream))?;
/// tracked.free(freed.address(), stream)?;
/// let leaks = tracked.leaks();
/// assert_eq!(leaks.blocks().len(), 1);
/// assert!(leaks.to_string().contains("1.00 MiB (1048576 B)"));
/// assert!(leaks.to_string().ends_with("\"weights\""));
/// # tracked.free(kept.address(), stream)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Tracked<A> {
    inner: A,
    begun: Instant,
    numbers: AtomicU64,
    /// Whether it captures the stack of each request.
    stacks: bool,
    ledger: Ledger<LiveBlock>,
}

impl<A: Allocate> Tracked<A> {
    /// Tracks the blocks of `inner`.
    pub fn new(inner: A) -> Self {
        let (begun, numbers) = (Instant::now(), AtomicU64::new(0));
        Self { inner, begun, numbers, stacks: false, ledger: Ledger::new() }
    }

    /// Captures the call stack of every request from now on, which takes a few microseconds each.
    #[must_use]
    pub fn with_stacks(mut self) -> Self {
        self.stacks = true;
        self
    }

    /// The blocks that are live now; at the end of a program, those that leaked. Blocks that were freed without this
    /// adaptor are left out. In a forked child, none for the parent's adaptor.
    pub fn leaks(&self) -> Leaks {
        let mut blocks = self.ledger.entries();
        // Query the inner allocator without holding the ledger's locks, so that other threads can free.
        blocks.retain(|live| {
            let there = self.inner.block_at(live.block.address());
            there.is_some_and(|block| block.generation() == live.block.generation())
        });
        blocks.sort_unstable_by_key(|live| live.number);
        Leaks { blocks }
    }
}

impl<A: Allocate> Adapt for Tracked<A> {
    fn allocate(&self, request: Request) -> Result<Block> {
        self.ledger.check_process()?;
        let block = self.inner.allocate_request(request)?;
        if !block.address().is_null() {
            let live = LiveBlock {
                block,
                requested: request.size(),
                stream: request.stream(),
                number: self.numbers.fetch_add(1, Ordering::Relaxed).wrapping_add(1),
                at: self.begun.elapsed(),
                tag: Tag::current(),
                stack: if self.stacks { Stack::capture() } else { Stack::NONE },
            };
            self.ledger.enter(block.address(), live);
        }
        Ok(block)
    }

    fn free_by(
        &self,
        address: Address,
        _: StreamHandle,
        free: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.ledger.free(address, free).map(drop)
    }
}

adaptor!(Tracked<A>);
