//! The worker thread of a stream.

use core::fmt;
use std::io;
use std::sync::Arc;

use forebay_core::{Address, Bytes, Span};
use forebay_hal::{self as hal, HostTask, run_host_task};
use forebay_sync::thread;
use rustix::mm::Advice;

use super::event::Record;
use super::queue::Queue;
use crate::decompression::run_decompress;
use crate::mapping::{pointer, system_page};
use crate::space::Space;
use crate::transfer::{run_copy, run_fill};

/// One piece of work.
pub(crate) enum Command {
    /// A copy, whose caller keeps the promises of `Transfers::copy`.
    Copy(hal::Copy),
    /// A fill, whose caller keeps the promises of `Transfers::fill`.
    Fill(hal::Fill),
    /// LZ4 blocks, whose caller keeps the promises of `Decompression::decompress`.
    Decompress(hal::Lz4Blocks),
    /// Bring managed memory in.
    Populate(Span),
    /// A host function.
    Task(HostTask),
    /// Reach a point.
    Record(Arc<Record>),
    /// Wait until another stream has reached a point.
    Wait(Arc<Record>),
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy(copy) => copy.fmt(f),
            Self::Fill(fill) => fill.fmt(f),
            Self::Decompress(blocks) => blocks.fmt(f),
            Self::Populate(span) => write!(f, "Populate({span})"),
            Self::Task(_) => f.write_str("Task"),
            Self::Record(record) => write!(f, "Record({record:?})"),
            Self::Wait(record) => write!(f, "Wait({record:?})"),
        }
    }
}

impl Command {
    /// Does it.
    fn run(self) {
        match self {
            // SAFETY: such a command is made by `Transfers::copy` alone, whose caller promised that
            // the rows stay memory until it is done; the worker holds the space, so a device that
            // was dropped meanwhile has not taken its side away.
            Self::Copy(copy) => unsafe { run_copy(&copy) },
            // SAFETY: as for copies, by `Transfers::fill`.
            Self::Fill(fill) => unsafe { run_fill(&fill) },
            // SAFETY: as for copies, by `Decompression::decompress`.
            Self::Decompress(blocks) => unsafe { run_decompress(&blocks) },
            Self::Populate(span) => populate(span),
            Self::Task(task) => run_host_task(task),
            Self::Record(record) => record.reach(),
            Self::Wait(record) => record.wait(),
        }
    }
}

/// Starts the thread of `queue`. It is joined by nobody, for a task it runs may be what drops the
/// device; it ends by itself when the queue is closed and empty.
pub(super) fn start(queue: Arc<Queue>, space: Arc<Space>) -> io::Result<()> {
    let name = format!("forebay-{}", queue.id().0);
    thread::spawn(&name, move || {
        while let Some(command) = queue.next() {
            command.run();
            queue.finish();
        }
        // Only now may the memory go that the commands used.
        drop(space);
    })
}

/// Brings the pages that `span` touches in, as if they had been written, keeping what they hold.
fn populate(span: Span) {
    let start = Bytes::new(span.start().get()).align_down(system_page());
    let size = Bytes::new(span.end().get()).saturating_sub(start);
    let Ok(length) = size.to_usize() else { return };
    let start = pointer(Address::new(start.get()));
    // SAFETY: populating changes no contents. Prefetching is a hint: a system that is too old for
    // it, or short of memory, refuses, and the memory comes in when it is touched.
    let _ = unsafe { rustix::mm::madvise(start.cast(), length, Advice::LinuxPopulateWrite) };
}
