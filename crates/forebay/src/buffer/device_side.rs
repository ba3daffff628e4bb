//! The device's replica: a block, and the streams whose work uses it.
//!
//! Streams are known by handle and id, as handles are reused. If a stream is gone, or is another thread's default
//! stream, which this thread cannot name, we wait for the whole device instead.

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, Span, StreamId};
use forebay_hal::{self as hal, Advice, Call, Device, NamedStream, StreamHandle};

use super::access::Access;
use crate::handle::order::after;
use crate::{OwnedBlock, Pool, Request, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KnownStream {
    handle: StreamHandle,
    /// `None` if the device could not tell: the stream is then treated as gone.
    id: Option<StreamId>,
}

impl KnownStream {
    fn of(device: &dyn Device, handle: StreamHandle) -> hal::Result<Self> {
        Ok(Self { handle, id: Some(device.stream_id(handle)?) })
    }

    /// Whether this thread can use the stream by its handle.
    fn is_there(self, device: &dyn Device) -> bool {
        self.id.is_some() && device.stream_id(self.handle).ok() == self.id
    }

    /// Waits for its work so far.
    fn wait(self, device: &dyn Device) -> hal::Result<()> {
        if self.is_there(device) {
            device.synchronize_stream(self.handle)
        } else {
            device.synchronize_device()
        }
    }

    /// Whether the stream was destroyed.
    fn is_gone(self, device: &dyn Device) -> bool {
        !self.handle.is_of_another_thread() && !self.is_there(device)
    }
}

/// The most streams whose reads are known one by one. Threads that end leave theirs behind.
const MAX_READERS: usize = 64;

/// A stream whose work reads a block.
#[derive(Clone, Copy, Debug)]
struct Reader {
    stream: KnownStream,
    /// Whether what it does from now on comes after the last write.
    follows: bool,
}

/// The block of a buffer, and the streams that use it.
#[derive(Debug)]
pub(super) struct DeviceSide {
    block: OwnedBlock,
    /// The stream of the last write; `None` once that was waited for.
    writer: Option<KnownStream>,
    /// Streams that may read, now or later: reads borrow the buffer together, so only an exclusive use forgets them.
    readers: Vec<Reader>,
    /// Whether more streams may read than `readers` names. A write then waits for the whole device.
    is_crowded: bool,
    /// Advice to undo before the block is passed on.
    advised: Vec<Advice>,
}

/// The advice that undoes `advice`; `None` for advice that itself undoes another.
fn undone(advice: Advice) -> Option<Advice> {
    match advice {
        Advice::ReadMostly => Some(Advice::NotReadMostly),
        Advice::PreferredLocation(_) => Some(Advice::NoPreferredLocation),
        Advice::AccessedBy(by) => Some(Advice::NotAccessedBy(by)),
        _ => None,
    }
}

impl Drop for DeviceSide {
    fn drop(&mut self) {
        let device = self.block.allocator().device();
        if self.advised.is_empty() || device.descriptor().is_from_parent() {
            return;
        }
        let Some(managed) = device.managed_memory() else { return };
        let Ok(span) = Span::new(self.block.address(), self.block.size()) else { return };
        for undo in self.advised.iter().filter_map(|&advice| undone(advice)) {
            // A drop cannot return the error, and advice changes no data.
            let _ = managed.advise(span, undo);
        }
    }
}

impl DeviceSide {
    /// Allocates a block of `size` bytes for `stream`.
    pub(super) fn allocate(
        pool: &Pool,
        size: u64,
        alignment: Alignment,
        stream: StreamHandle,
    ) -> Result<Self> {
        let writer = Some(KnownStream::of(&**pool.device(), stream)?);
        let request = Request::new(Bytes::new(size), stream);
        let block = OwnedBlock::new(pool, request.aligned_to(alignment.max(Alignment::BLOCK)))?;
        Ok(Self { block, writer, readers: Vec::new(), is_crowded: false, advised: Vec::new() })
    }

    pub(super) fn address(&self) -> Address {
        self.block.address()
    }

    /// Advises the device how the block, which is managed memory, will be used.
    pub(super) fn advise(&mut self, advice: Advice) -> Result<()> {
        let device = self.block.allocator().device();
        let span = Span::new(self.block.address(), self.block.size())
            .map_err(|error| hal::Error::quantity(Call::Advise, "size", &error))?;
        if let Some(managed) = device.managed_memory() {
            managed.advise(span, advice)?;
            if !self.advised.contains(&advice) {
                self.advised.push(advice);
            }
        }
        Ok(())
    }

    /// The size of the block.
    pub(super) fn size(&self) -> u64 {
        self.block.size().get()
    }

    fn users(&self) -> impl Iterator<Item = KnownStream> + '_ {
        self.writer.into_iter().chain(self.readers.iter().map(|reader| reader.stream))
    }

    /// Orders an access on `stream` after earlier ones: a read after the last write, a write after all uses. `fills`
    /// says that the access begins with a write of what the replica lacks. Waits on the host only if an earlier stream
    /// is gone.
    pub(super) fn order(
        &mut self,
        device: &Arc<dyn Device>,
        stream: StreamHandle,
        access: Access,
        fills: bool,
    ) -> Result<()> {
        let user = KnownStream::of(&**device, stream)?;
        if self.users().any(|earlier| earlier != user && earlier.is_gone(&**device)) {
            device.synchronize_device()?;
            self.settle(&**device, stream);
        }
        if self.users().next().is_none() && !self.is_crowded {
            self.block.reset_to(stream);
        }
        if fills || access.writes() {
            if !self.is_crowded {
                self.block.hand_over_to(stream)?;
            } else {
                device.synchronize_device()?;
                // Those that read beside a fill go on; a write has the buffer for itself.
                self.is_crowded = !access.writes();
                self.move_to(stream);
            }
            let readers: Vec<_> = self.users().filter(|&reader| reader != user).collect();
            self.writer = Some(user);
            self.readers.clear();
            if access == Access::Read {
                readers.into_iter().for_each(|reader| self.read_by(reader, false));
            }
        } else if self.writer != Some(user)
            && !self.readers.iter().any(|reader| reader.stream == user && reader.follows)
        {
            after(device, stream, self.writer.map(|writer| NamedStream::now(writer.handle)))?;
            self.read_by(user, true);
        }
        Ok(())
    }

    /// Records a stream that reads.
    fn read_by(&mut self, stream: KnownStream, follows: bool) {
        self.block.used_on(stream.handle);
        let has_room = self.readers.len() < MAX_READERS;
        match self.readers.iter_mut().find(|reader| reader.stream == stream) {
            Some(reader) => reader.follows = follows,
            None if has_room => self.readers.push(Reader { stream, follows }),
            None => self.is_crowded = true,
        }
    }

    /// Moves the block to `stream`, since all work so far is done. What streams that nobody names read later stays recorded.
    fn move_to(&mut self, stream: StreamHandle) {
        if self.is_crowded {
            self.block.used_on(stream);
        } else {
            self.block.reset_to(stream);
        }
    }

    /// Records that all work so far is done, and moves the block to `stream`. Streams that are still there may go on to
    /// read.
    fn settle(&mut self, device: &dyn Device, stream: StreamHandle) {
        let living: Vec<_> = self.users().filter(|user| !user.is_gone(device)).collect();
        self.move_to(stream);
        self.writer = None;
        self.readers.clear();
        living.into_iter().for_each(|user| self.read_by(user, true));
    }

    /// Returns a stream whose newly enqueued work runs after the last write.
    pub(super) fn stream_after_write(&mut self, device: &dyn Device) -> Result<StreamHandle> {
        match self.writer {
            Some(writer) if writer.is_there(device) => return Ok(writer.handle),
            Some(_) => {
                device.synchronize_device()?;
                self.settle(device, StreamHandle::DEFAULT);
            }
            None => {}
        }
        Ok(StreamHandle::DEFAULT)
    }

    /// Records that work on `stream`, enqueued [after the last write](Self::stream_after_write), reads the block.
    pub(super) fn read_on(&mut self, device: &dyn Device, stream: StreamHandle) {
        let user = KnownStream { handle: stream, id: device.stream_id(stream).ok() };
        if self.writer != Some(user) {
            self.read_by(user, true);
        }
    }

    /// Whether work that writes may be pending.
    pub(super) fn is_written(&self) -> bool {
        self.writer.is_some()
    }

    /// Waits on the host for the work that writes the block.
    pub(super) fn wait_for_writes(&mut self, device: &dyn Device) -> Result<()> {
        if let Some(writer) = self.writer {
            writer.wait(device)?;
            self.writer = None;
            self.read_by(writer, true);
        }
        Ok(())
    }

    /// Waits on the host for all work that uses the block.
    pub(super) fn wait(&mut self, device: &dyn Device) -> Result<()> {
        self.wait_for_writes(device)?;
        let is_known = |reader: &Reader| reader.stream.is_there(device);
        if self.is_crowded || !self.readers.iter().all(is_known) {
            device.synchronize_device()?;
        } else {
            self.readers
                .iter()
                .try_for_each(|reader| device.synchronize_stream(reader.stream.handle))?;
        }
        Ok(())
    }

    /// As [`wait`](Self::wait), for an exclusive use: no earlier reader goes on.
    pub(super) fn wait_and_forget(&mut self, device: &dyn Device) -> Result<()> {
        if self.writer.is_some() || !self.readers.is_empty() {
            self.wait(device)?;
            self.block.reset_to(self.block.stream());
            self.readers.clear();
            self.is_crowded = false;
        }
        Ok(())
    }
}
