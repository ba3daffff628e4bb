//! Double buffering: the device works on one buffer while the host fills the other.

use bytemuck::Pod;

use super::memory::BufferManager;
use super::typed::Buffer;
use crate::Result;

/// Two buffers of equal length: front and back.
///
/// ```
/// use forebay::buffer::{BufferManager, DoubleBuffer};
/// use forebay::{HostDevice, StreamHandle};
///
/// let memory = BufferManager::new(&HostDevice::open()?)?;
/// let mut frames = DoubleBuffer::<f32>::new(&memory, 1024)?;
/// for step in 0..10 {
///     // Waits only for the copy of two steps ago: that of the last step reads the other buffer.
///     frames.back().host_overwrite()?.fill(step as f32);
///     frames.swap();
///     let on_device = frames.front().on_device(StreamHandle::DEFAULT)?;
///     // ... launch a kernel that reads `on_device.address()`
/// #   let _ = on_device;
/// }
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Debug)]
pub struct DoubleBuffer<T: Pod> {
    front: Buffer<T>,
    back: Buffer<T>,
}

impl<T: Pod> DoubleBuffer<T> {
    /// Allocates two buffers of `length` elements each.
    #[track_caller]
    pub fn new(memory: &BufferManager, length: usize) -> Result<Self> {
        Ok(Self { front: memory.buffer(length)?, back: memory.buffer(length)? })
    }

    /// The buffer in use.
    pub fn front(&mut self) -> &mut Buffer<T> {
        &mut self.front
    }

    /// The buffer being prepared.
    pub fn back(&mut self) -> &mut Buffer<T> {
        &mut self.back
    }

    /// Swaps front and back. Neither copies nor waits.
    pub fn swap(&mut self) {
        core::mem::swap(&mut self.front, &mut self.back);
    }
}
