//! Where memory comes from, apart from the device that orders the work with it.

use core::fmt;

use forebay_core::{Address, Bytes, PageSize};

use crate::{Descriptor, MemoryInfo, PageOptions, Result, StreamHandle, VirtualMemory};

/// Where the memory of a pool comes from: pages to be mapped, or else segments. A [`Queue`](crate::Queue) orders the
/// work that uses it.
///
/// The plain memory of a device is one source, its pinned and its managed memory are others.
///
/// # Safety
///
/// An implementation promises:
///
/// * Live segments do not overlap, and begin at multiples of [`segment_granule`](Self::segment_granule).
/// * [`pages`](Self::pages) are there always or never.
/// * [`Error::OutOfMemory`](crate::Error::OutOfMemory) carries the requested size.
/// * After [`free`](Self::free) the memory may be allocated again at once.
pub unsafe trait MemorySource: Send + Sync + fmt::Debug {
    /// The descriptor of the device, with the name of this memory and the capabilities that it has.
    fn descriptor(&self) -> &Descriptor;

    /// How much memory there is. Not for hot paths: a driver takes microseconds for it.
    fn memory_info(&self) -> Result<MemoryInfo>;

    /// The calls for pages; `None` if the memory comes in segments.
    fn pages(&self) -> Option<&dyn VirtualMemory>;

    /// What new pages are to be.
    fn page_options(&self) -> PageOptions {
        PageOptions::default()
    }

    /// What addresses and sizes of segments are multiples of.
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

    /// The stream that stands for the host, if it is the host that uses the memory: nothing is ever enqueued there, so
    /// that memory which is free in its order is free now. It must not be made to wait for an event: the host would not
    /// wait with it, and would write to memory that other streams still use.
    fn host_stream(&self) -> Option<StreamHandle> {
        None
    }

    /// Whether work of a lost device may go on using the memory, because it is the host's. Then it is never given back.
    fn outlives_device(&self) -> bool {
        false
    }
}
