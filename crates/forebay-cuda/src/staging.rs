//! Pinned staging buffers for copies of pageable host memory.
//!
//! The driver copies pageable memory too, but makes the caller wait for it, and may read it before its turn
//! in the stream. Here such a copy is a host task plus a copy of pinned memory, both in stream order, so
//! that the caller does not wait and nothing is read early.

use std::sync::Mutex;

use forebay_core::Bytes;
use forebay_hal::Progress;
use forebay_sync::lock;

use crate::context::Context;
use crate::event::{EventCore, EventPool};
use crate::sys::values::host_alloc;
use crate::sys::{Outcome, RawStream};

/// The smallest staging buffer.
const LEAST: Bytes = Bytes::new(64 << 10);

/// The largest: larger copies go in pieces. Filling two megabytes takes longer than all calls for a piece
/// together, so more would only cost memory.
pub(crate) const MAX: Bytes = Bytes::mib(2);

/// Buffers that streams may be using, from which on [`StagingBuffers::take_if_few`] gives none.
const FEW: usize = 64;

/// A piece of pinned memory.
#[derive(Debug)]
pub(crate) struct StagingBuffer {
    pub(crate) address: u64,
    pub(crate) size: Bytes,
    /// As much memory of the device, from the first copy on that asked for it.
    device: Option<u64>,
}

impl StagingBuffer {
    /// Memory of the device, as large as the buffer, in which rows are gathered before they go to the host in one
    /// piece. `None` where the device has none left.
    pub(crate) fn device_memory(&mut self, context: &Context) -> Option<u64> {
        if self.device.is_none() {
            let (mut address, size) = (0, self.size.get());
            let allocated = context.call(|table| {
                // SAFETY: the address is written to a place of our own.
                unsafe { table.mem_alloc(&raw mut address, size) }?;
                table.mem_alloc.check_allocated(address)
            });
            if allocated.is_ok() {
                context.note_inner(address, size);
                self.device = Some(address);
            }
        }
        self.device
    }
}

/// The staging buffers of a context that no stream uses.
#[derive(Debug)]
pub(crate) struct StagingBuffers {
    context: &'static Context,
    events: &'static EventPool,
    spare: Mutex<Vec<StagingBuffer>>,
    /// Returned ones, each with the event after which nothing uses it.
    retired: Mutex<Vec<(StagingBuffer, EventCore)>>,
}

impl StagingBuffers {
    pub(crate) fn new(context: &'static Context, events: &'static EventPool) -> Self {
        Self { context, events, spare: Mutex::default(), retired: Mutex::default() }
    }

    /// A buffer of at least `size`, or of the largest size.
    pub(crate) fn take(&self, size: Bytes) -> Outcome<StagingBuffer> {
        self.collect();
        self.take_collected(size)
    }

    /// As [`take`](Self::take), for callers that have another way. A program that enqueues without ever waiting thus does
    /// not pin more and more memory.
    pub(crate) fn take_if_few(&self, size: Bytes) -> Option<StagingBuffer> {
        self.collect();
        let are_few = lock(&self.retired).len() < FEW;
        are_few.then(|| self.take_collected(size).ok()).flatten()
    }

    fn take_collected(&self, size: Bytes) -> Outcome<StagingBuffer> {
        let size = size.min(MAX);
        let mut spare = lock(&self.spare);
        let fits = spare.iter().enumerate().filter(|(_, stage)| stage.size >= size);
        if let Some(place) = fits.min_by_key(|(_, stage)| stage.size).map(|(place, _)| place) {
            return Ok(spare.swap_remove(place));
        }
        drop(spare);
        let size = Bytes::new(size.get().next_power_of_two()).max(LEAST);
        let mut address = 0;
        self.context.call(|table| {
            // Mapped, for which HIP makes memory coherent.
            let flags = host_alloc::PORTABLE | host_alloc::DEVICE_MAP;
            // SAFETY: the address is written to a place of our own.
            unsafe { table.mem_host_alloc(&raw mut address, size.get(), flags) }?;
            table.mem_host_alloc.check_allocated(address)
        })?;
        self.context.note_inner(address, size.get());
        Ok(StagingBuffer { address, size, device: None })
    }

    /// Takes back a buffer that work on `stream`, which is live, may still use.
    pub(crate) fn retire(&self, stage: StagingBuffer, stream: RawStream) {
        // Without an event nothing tells when the buffer is unused, so it is leaked.
        if let Ok(event) = self.events.take_recorded(stream) {
            lock(&self.retired).push((stage, event));
        }
    }

    /// Makes the buffers whose work is done available again.
    fn collect(&self) {
        let mut retired = lock(&self.retired);
        let mut index = 0;
        while let Some((_, event)) = retired.get(index) {
            if event.query() == Ok(Progress::Done) {
                let (stage, _) = retired.swap_remove(index);
                lock(&self.spare).push(stage);
            } else {
                index += 1;
            }
        }
    }
}
