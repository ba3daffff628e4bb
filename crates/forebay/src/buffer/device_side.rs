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

    /// Whether the handle still names the stream on this thread.
    fn is_there(self, device: &dyn Device) -> bool {
        self.id.is_some() && device.stream_id(self.handle).ok() == self.id
    }
}

/// The block of a buffer, and the streams that use it.
#[derive(Debug)]
pub(super) struct DeviceSide {
    block: OwnedBlock,
    /// The stream of the last use that wrote; `None` once all work has been waited for.
    writer: Option<KnownStream>,
    /// Streams that have read since.
    readers: Vec<KnownStream>,
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
        if self.advised.is_empty() || device.descriptor().is_inherited() {
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
        Ok(Self { block, writer, readers: Vec::new(), advised: Vec::new() })
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
        self.writer.into_iter().chain(self.readers.iter().copied())
    }

    /// Orders an access on `stream` after earlier ones: a read after the last write, a write after all uses. Waits on
    /// the host only if an earlier stream is gone.
    pub(super) fn order(
        &mut self,
        device: &Arc<dyn Device>,
        stream: StreamHandle,
        access: Access,
    ) -> Result<()> {
        let user = KnownStream::of(&**device, stream)?;
        if !self.users().all(|earlier| earlier == user || earlier.is_there(&**device)) {
            device.synchronize_device()?;
            self.forget_uses(stream);
        }
        if self.writer.is_none() && self.readers.is_empty() {
            self.forget_uses(stream);
            self.writer = Some(user);
        } else if access.writes() {
            self.block.hand_over_to(stream)?;
            self.writer = Some(user);
            self.readers.clear();
        } else if self.writer != Some(user) && !self.readers.contains(&user) {
            after(device, stream, self.writer.map(|writer| NamedStream::now(writer.handle)))?;
            self.block.used_on(stream);
            self.readers.push(user);
        }
        Ok(())
    }

    /// Returns a stream whose newly enqueued work runs after the last write.
    pub(super) fn stream_after_write(&mut self, device: &dyn Device) -> Result<StreamHandle> {
        match self.writer {
            Some(writer) if writer.is_there(device) => Ok(writer.handle),
            None if self.readers.is_empty() => Ok(StreamHandle::DEFAULT),
            _ => {
                device.synchronize_device()?;
                self.forget_uses(StreamHandle::DEFAULT);
                Ok(StreamHandle::DEFAULT)
            }
        }
    }

    /// Records that work on `stream` reads the block.
    pub(super) fn read_on(&mut self, device: &dyn Device, stream: StreamHandle) {
        self.block.used_on(stream);
        let user = KnownStream { handle: stream, id: device.stream_id(stream).ok() };
        if !self.users().any(|known| known == user) {
            self.readers.push(user);
        }
    }

    /// Waits on the host for all work that uses the block.
    #[inline]
    pub(super) fn wait(&mut self, device: &dyn Device) -> Result<()> {
        if self.writer.is_none() && self.readers.is_empty() {
            return Ok(());
        }
        self.wait_for_users(device)
    }

    #[cold]
    fn wait_for_users(&mut self, device: &dyn Device) -> Result<()> {
        for user in self.users() {
            if user.is_there(device) {
                device.synchronize_stream(user.handle)?;
            } else {
                device.synchronize_device()?;
            }
        }
        self.forget_uses(self.block.stream());
        Ok(())
    }

    /// Resets the recorded uses, once all work that uses the block is done.
    fn forget_uses(&mut self, stream: StreamHandle) {
        self.block.reset_to(stream);
        self.writer = None;
        self.readers.clear();
    }
}
