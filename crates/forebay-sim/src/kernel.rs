//! Simulated kernels: the caller's own work, with its memory uses declared.

use core::fmt;
use core::time::Duration;
use std::sync::Arc;

use forebay_core::{Address, Bytes, Span};

use crate::engine::{PageRun, Store};

/// What a kernel does when its turn comes.
pub(crate) type KernelBody = Box<dyn FnOnce(&mut KernelMemory) + Send>;

/// A kernel to launch: its name, what it reads and writes, how long it takes, and what it computes.
///
/// ```
/// use forebay_core::{Alignment, Bytes, Span};
/// use forebay_hal::{Memory, StreamHandle, Streams};
/// use forebay_sim::{Kernel, SimMachine};
///
/// let machine = SimMachine::builder().build()?;
/// let device = machine.device(0).ok_or("no device")?;
/// let size = Bytes::new(4);
/// let address = device.allocate(size, Alignment::BLOCK)?;
/// let span = Span::new(address, size)?;
/// let kernel = Kernel::new("ones").writes(span).body(move |memory| {
///     memory.write(span, &[1; 4]);
/// });
/// // SAFETY: the memory lives, and nobody else uses it, until the stream was synchronised.
/// unsafe { device.launch(kernel, StreamHandle::DEFAULT)? };
/// device.synchronize_stream(StreamHandle::DEFAULT)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a kernel does nothing until it is launched"]
pub struct Kernel {
    pub(crate) name: String,
    pub(crate) reads: Vec<Span>,
    pub(crate) writes: Vec<Span>,
    pub(crate) duration: Duration,
    pub(crate) body: Option<KernelBody>,
}

impl Kernel {
    /// A kernel that touches nothing and takes no time.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            reads: Vec::new(),
            writes: Vec::new(),
            duration: Duration::ZERO,
            body: None,
        }
    }

    /// Adds a span that it reads.
    pub fn reads(mut self, span: Span) -> Self {
        self.reads.push(span);
        self
    }

    /// Adds a span that it writes.
    pub fn writes(mut self, span: Span) -> Self {
        self.writes.push(span);
        self
    }

    /// Sets how long it takes on the simulation's clock.
    pub fn duration(mut self, duration: Duration) -> Self {
        self.duration = duration;
        self
    }

    /// Sets what it computes. It must not call the device. A panic in it ends only the kernel.
    pub fn body(mut self, body: impl FnOnce(&mut KernelMemory) + Send + 'static) -> Self {
        self.body = Some(Box::new(body));
        self
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("reads", &self.reads)
            .field("writes", &self.writes)
            .finish_non_exhaustive()
    }
}

/// The memory a kernel declared, available while it runs.
#[derive(Debug)]
pub struct KernelMemory {
    pub(crate) reads: Vec<PageRun>,
    pub(crate) writes: Vec<PageRun>,
}

impl KernelMemory {
    /// The bytes of `span`, which must be declared as read; `None` for other spans, and on a phantom device.
    pub fn read(&self, span: Span) -> Option<Vec<u8>> {
        let mut bytes = Vec::new();
        for (store, offset, size) in within(&self.reads, span)? {
            let start = store.pointer(offset)?;
            // SAFETY: `resolve` cut the piece to lie within the store, which it holds alive;
            // nothing else runs while a kernel does, and the host was told by the contract of
            // streams to keep away from memory in use.
            bytes.extend_from_slice(unsafe { core::slice::from_raw_parts(start.as_ptr(), size) });
        }
        Some(bytes)
    }

    /// Writes `bytes` to the start of `span`, which must be declared as written. Returns false and writes nothing for
    /// other spans, for more bytes than `span` has, and on a phantom device.
    pub fn write(&mut self, span: Span, bytes: &[u8]) -> bool {
        if bytes.len() as u64 > span.size().get() {
            return false;
        }
        let Ok(span) = Span::new(span.start(), Bytes::new(bytes.len() as u64)) else {
            return false;
        };
        let Some(parts) = within(&self.writes, span) else { return false };
        let mut rest = bytes;
        for (store, offset, size) in parts {
            let (Some(start), Some((now, later))) =
                (store.pointer(offset), rest.split_at_checked(size))
            else {
                return false;
            };
            // SAFETY: as for reading.
            unsafe { core::ptr::copy_nonoverlapping(now.as_ptr(), start.as_ptr(), size) };
            rest = later;
        }
        true
    }
}

/// The parts of memory behind `span`, in order; `None` where `pieces` do not cover it.
fn within(pieces: &[PageRun], span: Span) -> Option<Vec<(&Arc<Store>, Bytes, usize)>> {
    let mut parts = Vec::new();
    let mut at = span.start();
    while at < span.end() {
        let covering = |piece: &&PageRun| {
            Span::new(piece.at, piece.size).is_ok_and(|covered: Span| covered.contains(at))
        };
        let piece = pieces.iter().find(covering)?;
        let into = at.offset_from(piece.at)?;
        let end: Address = piece.at.checked_add(piece.size)?.min(span.end());
        let size = end.offset_from(at)?;
        parts.push((&piece.store, piece.offset.checked_add(into)?, size.to_usize().ok()?));
        at = end;
    }
    Some(parts)
}
