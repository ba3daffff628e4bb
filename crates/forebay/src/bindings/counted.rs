//! Byte buffers with counted views, for languages without a borrow checker.
//!
//! In Rust, a guard that outlives a conflicting operation does not compile. Here every view is recorded with its range,
//! and an operation that conflicts with a live view fails. Any thread may make any call.
//!
//! | while this lives | refused on the same bytes | refused on the whole buffer |
//! |---|---|---|
//! | a host view, to read | writes, on either side | resize, compact, invalidate, close |
//! | a host view, to write | every other access | the same |
//! | a device view | host access, unless both only read | the same |
//!
//! Device views do not conflict with each other: streams order them.

use core::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Address, BufferState, Bytes, Replica};
use forebay_hal::{Call, StreamHandle, invalid};

use super::object::{Counted, CountedError};
use crate::buffer::{Access, Buffer, BufferSlice, BufferSliceMut, BufferStatistics};
use crate::sync::fork::ForkGeneration;
use crate::sync::lock;

/// A buffer of bytes with counted views.
#[derive(Debug)]
pub struct CountedBuffer {
    buffer: Counted<Buffer<u8>>,
    /// The live views. Adding one takes a turn; removing one does not.
    views: Mutex<Vec<LiveView>>,
    fork_generation: ForkGeneration,
}

#[derive(Debug)]
struct LiveView {
    number: u64,
    replica: Replica,
    bytes: Range<u64>,
    access: Access,
}

/// A view: its number and its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// The number to end it with, unique in the process.
    pub number: u64,
    /// The address of the first byte; arbitrary for an empty view.
    pub address: Address,
}

/// The state of a buffer at one moment.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct CountedStatistics {
    /// Its id in the manager's list.
    pub id: u64,
    /// Its size.
    pub size: Bytes,
    /// Which replicas exist, and which is newer.
    pub state: BufferState,
    /// Number of live views.
    pub views: usize,
    /// Memory use and copies.
    pub statistics: BufferStatistics,
}

type Result<T> = core::result::Result<T, CountedError>;

/// `size` bytes from `offset` on. The end saturates; the buffer then refuses the range.
fn range(offset: u64, size: u64) -> Range<u64> {
    offset..offset.saturating_add(size)
}

fn index(bytes: &Range<u64>) -> Range<usize> {
    let index = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
    index(bytes.start)..index(bytes.end)
}

fn slice<'a>(buffer: &'a Buffer<u8>, bytes: &Range<u64>) -> Result<BufferSlice<'a, u8>> {
    Ok(buffer.slice(index(bytes))?)
}

fn slice_mut<'a>(buffer: &'a mut Buffer<u8>, bytes: &Range<u64>) -> Result<BufferSliceMut<'a, u8>> {
    Ok(buffer.slice_mut(index(bytes))?)
}

impl LiveView {
    fn conflicts(&self, replica: Replica, bytes: &Range<u64>, access: Access) -> bool {
        let overlaps = self.bytes.start < bytes.end && bytes.start < self.bytes.end;
        let writes = access != Access::Read || self.access != Access::Read;
        let both_on_device = replica == Replica::Device && self.replica == Replica::Device;
        overlaps && writes && !both_on_device
    }

    fn in_the_way(&self) -> CountedError {
        let purpose = if self.access == Access::Read { "reading" } else { "writing" };
        let (bytes, side) = (&self.bytes, self.replica);
        let said = match side {
            Replica::Host => {
                format!(
                    "mapped on the host for {purpose} by a view that still lives: release it first"
                )
            }
            Replica::Device => {
                "exported on the device: release what they were exported to first".into()
            }
        };
        CountedError::InUse(format!(
            "bytes {} to {} of the buffer are {said}",
            bytes.start, bytes.end
        ))
    }
}

impl CountedBuffer {
    /// Takes `buffer` and counts its views from now on.
    pub fn new(buffer: Buffer<u8>) -> Self {
        Self {
            buffer: Counted::new("buffer", buffer),
            views: Mutex::default(),
            fork_generation: ForkGeneration::here(),
        }
    }

    /// Fails if a live view conflicts with an access.
    fn check(&self, replica: Replica, bytes: &Range<u64>, access: Access) -> Result<()> {
        let views = lock(&self.views);
        let conflict = views.iter().find(|view| view.conflicts(replica, bytes, access));
        conflict.map_or(Ok(()), |view| Err(view.in_the_way()))
    }

    /// Fails if any view is live. For operations that move or discard the memory.
    fn check_no_views(&self) -> Result<()> {
        lock(&self.views).first().map_or(Ok(()), |view| Err(view.in_the_way()))
    }

    fn enter(&self, replica: Replica, bytes: Range<u64>, access: Access, address: Address) -> View {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        lock(&self.views).push(LiveView { number, replica, bytes, access });
        View { number, address }
    }

    /// The current state of the buffer.
    pub fn statistics(&self) -> Result<CountedStatistics> {
        self.buffer.with(|buffer| {
            let (id, size, state) = (buffer.id(), buffer.size(), buffer.state());
            let views = lock(&self.views).len();
            Ok(CountedStatistics { id, size, state, views, statistics: buffer.statistics() })
        })
    }

    /// Maps bytes in host memory until [`end_view`](Self::end_view). With write access, the host's bytes count as newer
    /// than the device's from now on. The memory does not move while the view lives.
    pub fn map(&self, offset: u64, size: u64, access: Access) -> Result<View> {
        let bytes = range(offset, size);
        self.buffer.with(|buffer| {
            self.check(Replica::Host, &bytes, access)?;
            let address = match access {
                Access::Read => Address::of_pointer(slice(buffer, &bytes)?.host()?.as_ptr()),
                Access::Update => {
                    Address::of_pointer(slice_mut(buffer, &bytes)?.host_mut()?.as_mut_ptr())
                }
                Access::Overwrite => {
                    Address::of_pointer(slice_mut(buffer, &bytes)?.host_overwrite()?.as_mut_ptr())
                }
            };
            Ok(self.enter(Replica::Host, bytes.clone(), access, address))
        })
    }

    /// Returns the address of bytes in device memory, for work that is enqueued on `stream` before the next call.
    pub fn on_device(
        &self,
        offset: u64,
        size: u64,
        access: Access,
        stream: StreamHandle,
    ) -> Result<Address> {
        let bytes = range(offset, size);
        self.buffer.with(|buffer| self.acquire_device(buffer, &bytes, access, stream))
    }

    /// As `on_device`, but as a view that lives until [`end_view`](Self::end_view).
    pub fn export(
        &self,
        offset: u64,
        size: u64,
        access: Access,
        stream: StreamHandle,
    ) -> Result<View> {
        let bytes = range(offset, size);
        self.buffer.with(|buffer| {
            let address = self.acquire_device(buffer, &bytes, access, stream)?;
            Ok(self.enter(Replica::Device, bytes.clone(), access, address))
        })
    }

    fn acquire_device(
        &self,
        buffer: &mut Buffer<u8>,
        bytes: &Range<u64>,
        access: Access,
        stream: StreamHandle,
    ) -> Result<Address> {
        self.check(Replica::Device, bytes, access)?;
        Ok(match access {
            Access::Read => slice(buffer, bytes)?.on_device(stream)?.address(),
            Access::Update => slice_mut(buffer, bytes)?.on_device_mut(stream)?.address(),
            Access::Overwrite => slice_mut(buffer, bytes)?.on_device_overwrite(stream)?.address(),
        })
    }

    /// Ends a view made by [`map`](Self::map) or [`export`](Self::export). Does not wait.
    pub fn end_view(&self, number: u64) -> Result<()> {
        // In a forked child another thread of the parent may hold the lock for ever.
        self.fork_generation.check()?;
        let mut views = lock(&self.views);
        let found = views.iter().position(|view| view.number == number);
        views.swap_remove(found.ok_or(CountedError::NoView)?);
        Ok(())
    }

    /// Replaces the bytes from `offset` on with `from`.
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<()> {
        let bytes = range(offset, from.len() as u64);
        self.buffer.with(|buffer| {
            self.check(Replica::Host, &bytes, Access::Overwrite)?;
            Ok(slice_mut(buffer, &bytes)?.copy_from_slice(from)?)
        })
    }

    /// Calls `take` with `size` bytes from `offset` on, unless the read fails.
    pub fn read(&self, offset: u64, size: u64, take: impl FnOnce(&[u8])) -> Result<()> {
        let bytes = range(offset, size);
        self.buffer.with(|buffer| {
            self.check(Replica::Host, &bytes, Access::Read)?;
            take(slice(buffer, &bytes)?.host()?);
            Ok(())
        })
    }

    /// Fills bytes by repeating the low `width` bytes of `pattern`; `width` is 1, 2, 4 or 8. Offset and size must be
    /// multiples of `width`.
    pub fn fill(&self, offset: u64, size: u64, pattern: u64, width: u32) -> Result<()> {
        let bytes = range(offset, size);
        self.buffer.with(|buffer| {
            self.check(Replica::Host, &bytes, Access::Overwrite)?;
            let mut slice = slice_mut(buffer, &bytes)?;
            // Bits above the width are ignored.
            #[allow(clippy::cast_possible_truncation)]
            match width {
                1 => slice.fill(pattern as u8)?,
                2 => slice.cast::<u16>()?.fill(pattern as u16)?,
                4 => slice.cast::<u32>()?.fill(pattern as u32)?,
                8 => slice.cast::<u64>()?.fill(pattern)?,
                other => {
                    return Err(invalid(Call::Fill, "width", other, "1, 2, 4 or 8 bytes").into());
                }
            }
            Ok(())
        })
    }

    /// Replaces all bytes with those of `from`, a buffer of the same size, possibly on another device.
    pub fn copy_from(&self, from: &Self, stream: StreamHandle) -> Result<()> {
        if core::ptr::eq(self, from) {
            return Err(invalid(Call::Copy, "from", "the buffer itself", "another buffer").into());
        }
        // Always lock in the same order, so that two threads copying in opposite directions do not deadlock.
        let self_first = core::ptr::from_ref(self) < core::ptr::from_ref(from);
        let (mut target, mut source);
        if self_first {
            target = self.buffer.take()?;
            source = from.buffer.take()?;
        } else {
            source = from.buffer.take()?;
            target = self.buffer.take()?;
        }
        let (target, source) = (target.value()?, source.value()?);
        self.check(Replica::Host, &(0..target.size().get()), Access::Overwrite)?;
        from.check(Replica::Host, &(0..source.size().get()), Access::Read)?;
        Ok(target.copy_from(source, stream)?)
    }

    /// As [`Buffer::resize`]. Calls `resized` before any other call sees the new size.
    pub fn resize(&self, size: u64, resized: impl FnOnce()) -> Result<()> {
        let length = usize::try_from(size).unwrap_or(usize::MAX);
        self.buffer.with(|buffer| {
            self.check_no_views()?;
            buffer.resize(length)?;
            resized();
            Ok(())
        })
    }

    /// As [`Buffer::compact`].
    pub fn compact(&self, replica: Replica, stream: StreamHandle) -> Result<Bytes> {
        self.buffer.with(|buffer| {
            self.check_no_views()?;
            Ok(buffer.compact(replica, stream)?)
        })
    }

    /// As [`Buffer::invalidate`].
    pub fn invalidate(&self, replica: Replica) -> Result<()> {
        self.buffer.with(|buffer| {
            self.check_no_views()?;
            buffer.invalidate(replica);
            Ok(())
        })
    }

    /// As [`Buffer::synchronize`].
    pub fn synchronize(&self, stream: StreamHandle) -> Result<()> {
        self.buffer.with(|buffer| {
            self.check(Replica::Host, &(0..buffer.size().get()), Access::Read)?;
            Ok(buffer.synchronize(stream)?)
        })
    }

    /// Drops the buffer. Every later call fails with [`CountedError::Closed`].
    pub fn close(&self) -> Result<()> {
        let mut turn = self.buffer.take()?;
        self.check_no_views()?;
        let buffer = turn.remove()?;
        drop(turn);
        drop(buffer);
        Ok(())
    }
}
