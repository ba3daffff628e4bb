//! The probe: writes patterns to a pool's memory and reads them back, in the order of a stream.

use std::sync::{Arc, Mutex};

use forebay_core::{Address, Bytes, Span, StreamId};
use forebay_hal::{Call, Copy, Device, Fill, Location, Pattern, Priority, Stream, StreamHandle};

use crate::pool::common::log::CallLog;
use crate::report::RecentFree;
use crate::sync::tracked::lock;
use crate::{Error, Result};

/// The bytes read back at once: enough that the transfer dominates the time, few enough not to matter on the host. A
/// multiple of every pattern.
const CHUNK: Bytes = Bytes::mib(4);

/// A byte that differs from the pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct Mismatch {
    at: Address,
    expected: u8,
    found: u8,
}

impl Mismatch {
    /// The finding for a damaged canary of the block at `address`.
    pub(in crate::pool) fn overrun(self, address: Address, size: Bytes) -> Error {
        let Self { at: written, expected, found } = self;
        Error::Overrun { address, size, written, expected, found }
    }

    /// The finding for a write to free memory, with the block that `at` names as the last one there.
    pub(in crate::pool) fn after_free(
        self,
        at: impl FnOnce(Address) -> Option<RecentFree>,
    ) -> Error {
        let Self { at: written, expected, found } = self;
        Error::WrittenAfterFree { written, expected, found, block: at(written) }
    }
}

/// Host buffers that device memory is read into.
#[derive(Debug, Default)]
struct HostBuffers {
    /// Unused buffers. Each reader takes its own: it waits for a stream with it, and must not block others.
    spare: Vec<Box<[u8]>>,
    /// Buffers that a copy may still write to, because waiting for it failed.
    lent: Vec<Box<[u8]>>,
}

/// Writes and reads patterns.
#[derive(Debug)]
pub(in crate::pool) struct Probe {
    device: Arc<dyn Device>,
    buffers: Mutex<HostBuffers>,
    own: Mutex<Option<Stream>>,
    log: CallLog,
}

impl Probe {
    pub(in crate::pool) fn new(device: &Arc<dyn Device>, log: &CallLog) -> Self {
        let (buffers, own) = (Mutex::default(), Mutex::default());
        Self { device: Arc::clone(device), buffers, own, log: log.clone() }
    }

    /// Waits for all work of the device.
    pub(in crate::pool) fn synchronize(&self) -> Result<()> {
        let wait = || self.device.synchronize_device();
        Ok(self.log.wait(Call::SynchronizeDevice, Bytes::ZERO, wait)?)
    }

    /// The identity of the stream behind a handle.
    pub(in crate::pool) fn stream_id(&self, stream: StreamHandle) -> Result<StreamId> {
        Ok(self.log.make(Call::StreamId, Bytes::ZERO, || self.device.stream_id(stream))?)
    }

    /// Fills memory that only the caller has, in the order of `stream`.
    pub(in crate::pool) fn fill(
        &self,
        span: Span,
        pattern: Pattern,
        stream: StreamHandle,
    ) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        let fill = Fill::linear(span.start(), span.size(), pattern)?;
        // SAFETY: the memory is in a page or segment of the pool, which returns it to the device only after all work
        // enqueued on it is done.
        let fill = || unsafe { self.device.fill(&fill, stream) };
        Ok(self.log.make(Call::Fill, span.size(), fill)?)
    }

    /// Fills memory that no work uses, and waits until that is done. Allowed under locks: the probe's [own
    /// stream](Self::own_stream) has no work of the program.
    pub(in crate::pool) fn fill_now(&self, span: Span, byte: u8) -> Result<()> {
        let own = self.own_stream()?;
        self.fill(span, Pattern::U8(byte), own)?;
        let wait = || self.device.synchronize_stream(own);
        Ok(self.log.call(Call::SynchronizeStream, wait)?)
    }

    /// The probe's own stream, for memory that no work uses. Waiting for it waits for no work of the program.
    fn own_stream(&self) -> Result<StreamHandle> {
        let mut own = lock(&self.own);
        if own.is_none() {
            let make = || Stream::new(&self.device, Priority::Normal);
            *own = Some(self.log.call(Call::CreateStream, make)?);
        }
        Ok(own.as_ref().map_or(StreamHandle::DEFAULT, Stream::handle))
    }

    /// The first byte of `span` that differs from `pattern`, after all work enqueued on the stream `after`. Waits for that
    /// work. `None` for memory that no work uses: read on the probe's [own stream](Self::own_stream), allowed under locks.
    pub(in crate::pool) fn first_mismatch(
        &self,
        span: Span,
        pattern: Pattern,
        after: Option<StreamHandle>,
    ) -> Result<Option<Mismatch>> {
        let four = pattern.four_bytes();
        let mut buffer = lock(&self.buffers).spare.pop().unwrap_or_default();
        let (mut at, mut left) = (span.start(), span.size());
        let mut mismatch = None;
        while mismatch.is_none() && !left.is_zero() {
            let size = left.min(CHUNK);
            let chunk = Span::new(at, size).unwrap_or_default();
            buffer = self.read(buffer, chunk, four, after)?;
            let bytes = size.to_usize().ok().and_then(|size| buffer.get(..size));
            mismatch = first_difference(bytes.unwrap_or_default(), four).and_then(
                |(offset, found, expected)| {
                    Some(Mismatch { at: at.checked_add(Bytes::new(offset))?, expected, found })
                },
            );
            left = left.saturating_sub(size);
            at = chunk.end();
        }
        lock(&self.buffers).spare.push(buffer);
        Ok(mismatch)
    }

    /// Reads `span`, at most a chunk, into the start of `buffer`. The buffer is filled with `four` first, so that a
    /// device without real memory never yields a finding.
    fn read(
        &self,
        mut buffer: Box<[u8]>,
        span: Span,
        four: [u8; 4],
        after: Option<StreamHandle>,
    ) -> Result<Box<[u8]>> {
        let stream = after.map_or_else(|| self.own_stream(), Ok)?;
        let quantity = |error| forebay_hal::Error::quantity(Call::Copy, "size", &error);
        let size = span.size().to_usize().map_err(quantity)?;
        if buffer.len() < size {
            buffer = vec![0; size].into_boxed_slice();
        }
        let right = repeated(four);
        for piece in buffer[..size].chunks_mut(PIECE) {
            piece.copy_from_slice(&right.as_flattened()[..piece.len()]);
        }
        let to = Location::Host(Address::of_pointer(buffer.as_mut_ptr()));
        let copy = Copy::linear(to, Location::Device(span.start()), span.size())?;
        // SAFETY: the buffer is as long as the copy, only this call has it, and it is not freed before the copy is
        // done: if waiting fails, it is kept as long as the probe lives.
        let copy = || unsafe { self.device.copy(&copy, stream) };
        self.log.make(Call::Copy, span.size(), copy)?;
        let synchronize = || self.device.synchronize_stream(stream);
        let wait = || match after {
            Some(_) => self.log.wait(Call::SynchronizeStream, Bytes::ZERO, synchronize),
            None => self.log.call(Call::SynchronizeStream, synchronize),
        };
        let mut waited = wait();
        // Retried once: a transient failure would otherwise cost a buffer each time.
        if waited.as_ref().is_err_and(forebay_hal::Error::may_pass) {
            waited = wait();
        }
        if let Err(error) = waited {
            lock(&self.buffers).lent.push(buffer);
            return Err(error.into());
        }
        Ok(buffer)
    }
}

/// The bytes compared at once: comparing byte by byte is some twenty times slower.
const PIECE: usize = 4096;

/// A piece filled with four repeating bytes.
const fn repeated(four: [u8; 4]) -> [[u8; 4]; PIECE / 4] {
    [four; PIECE / 4]
}

/// The first byte that differs from four repeating bytes: its offset, its value, and the expected value.
fn first_difference(bytes: &[u8], four: [u8; 4]) -> Option<(u64, u8, u8)> {
    let right = repeated(four);
    let right = right.as_flattened();
    let mut pieces = (0_u64..).step_by(PIECE).zip(bytes.chunks(PIECE));
    let (start, piece) = pieces.find(|(_, piece)| **piece != right[..piece.len()])?;
    let mut pairs = (start..).zip(piece.iter().copied().zip(right.iter().copied()));
    let (at, (found, expected)) = pairs.find(|(_, (found, expected))| found != expected)?;
    Some((at, found, expected))
}

impl Drop for Probe {
    fn drop(&mut self) {
        let lent = core::mem::take(&mut lock(&self.buffers).lent);
        if !lent.is_empty() && self.device.synchronize_device().is_err() {
            // A copy may still write there: leaking the memory is better than reusing it.
            core::mem::forget(lent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_other_byte_is_found_wherever_it_is() {
        let four = [1, 2, 3, 4];
        for length in [0, 1, 3, 4, 5, 64, 67, PIECE, PIECE + 5] {
            let right: Vec<u8> = four.iter().copied().cycle().take(length).collect();
            assert_eq!(first_difference(&right, four), None);
            for at in 0..length {
                let mut wrong = right.clone();
                wrong[at..].fill(9);
                assert_eq!(first_difference(&wrong, four), Some((at as u64, 9, right[at])));
            }
        }
    }
}
