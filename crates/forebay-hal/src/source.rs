//! Sources of memory, separate from the device that orders work on it.

use core::fmt;

use forebay_core::{Address, Bytes, PageSize};

use crate::{Descriptor, MemoryInfo, PageOptions, Result, StreamHandle, VirtualMemory};

/// The source of a pool's memory: pages to be mapped, or segments. A [`Queue`](crate::Queue) orders the work that uses
/// it.
///
/// A device's plain memory is one source; its pinned and managed memory are others.
///
/// # Safety
///
/// An implementation promises:
///
/// * Live segments do not overlap, and begin at multiples of [`segment_granule`](Self::segment_granule).
/// * [`pages`](Self::pages) is always `Some` or always `None`.
/// * [`Error::OutOfMemory`](crate::Error::OutOfMemory) carries the requested size.
/// * After [`free`](Self::free) the memory may be allocated again at once.
pub unsafe trait MemorySource: Send + Sync + fmt::Debug {
    /// The device's descriptor, with this memory's name and capabilities.
    fn descriptor(&self) -> &Descriptor;

    /// The memory figures. Not for hot paths: a driver takes microseconds to answer.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// The calls for pages; `None` if the memory comes in segments.
    fn pages(&self) -> Option<&dyn VirtualMemory>;

    /// The options for new pages.
    fn page_options(&self) -> PageOptions {
        PageOptions::default()
    }

    /// The granularity of segment addresses and sizes.
    fn segment_granule(&self) -> PageSize {
        PageSize::DEVICE
    }

    /// Allocates a segment of `size` bytes. Its contents are undefined.
    fn allocate(&self, size: Bytes) -> Result<Address>;

    /// Frees a segment, by its first address.
    ///
    /// # Safety
    ///
    /// * No running or enqueued work uses the segment.
    /// * Nothing reads or writes it from now on.
    unsafe fn free(&self, segment: Address) -> Result<()>;

    /// The stream that represents the host, if the host uses the memory. Nothing is ever enqueued there, so memory that
    /// is free in its order is free now. Never make it wait for an event: the host would not wait with it, and would
    /// write to memory that other streams still use.
    fn host_stream(&self) -> Option<StreamHandle> {
        None
    }

    /// Whether work of a lost device may still use the memory because it is host memory. Such memory is never freed.
    fn outlives_device(&self) -> bool {
        false
    }
}
