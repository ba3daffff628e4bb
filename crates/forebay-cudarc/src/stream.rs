//! cudarc streams that forebay may use.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};
use forebay::handle::Pod;
use forebay::{Allocate, CudaDevice, DeviceArray, Stream, StreamHandle};

use crate::{Error, Result, Slice};

/// A cudarc stream, adopted by a forebay device.
///
/// cudarc destroys a stream with its last `Arc`. This value holds one and is the last to release it: on drop, the
/// device and all its pools forget the stream first. Every [`Slice`] of the stream holds this value in turn, so keep it
/// only as long as you allocate.
///
/// Blocks that you allocate with [`handle`](Self::handle) yourself do not hold it: free them, or move them to another
/// stream, before it goes.
pub struct AdoptedStream {
    // Above `cuda`, and so dropped before it: the stream is forgotten while it still exists.
    stream: Stream,
    cuda: Arc<CudaStream>,
}

impl AdoptedStream {
    /// Adopts `stream`. The default stream becomes [`StreamHandle::DEFAULT`], `per_thread_stream()`
    /// [`StreamHandle::PER_THREAD`].
    ///
    /// Fails if the stream belongs to a context other than the device's.
    pub fn new(device: &Arc<CudaDevice>, stream: &Arc<CudaStream>) -> Result<Arc<Self>> {
        same_context(device, stream.context())?;
        let cuda = Arc::clone(stream);
        // SAFETY: cudarc's value names a live stream of this context while it lives, and it is dropped after the
        // adopted one.
        let stream = unsafe { Stream::foreign(device, cuda.cu_stream().addr() as u64) }?;
        Ok(Arc::new(Self { stream, cuda }))
    }

    /// The handle for calls to forebay.
    pub fn handle(&self) -> StreamHandle {
        self.stream.handle()
    }

    /// forebay's stream.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// cudarc's stream.
    pub fn cuda(&self) -> &Arc<CudaStream> {
        &self.cuda
    }

    /// Allocates `length` elements for this stream. Their contents are undefined: write to the slice before you read it.
    /// Fails and panics as [`Slice::from_array`].
    pub fn slice<T: Pod, A: Allocate + Clone>(
        self: &Arc<Self>,
        allocator: &A,
        length: usize,
    ) -> Result<Slice<T, A>> {
        self.check(allocator)?;
        let array = DeviceArray::new(allocator, length, self.handle())?;
        Ok(Slice::from_array(array, self)?)
    }

    /// Refuses an allocator whose device does not know the stream.
    pub(crate) fn check<A: Allocate>(&self, allocator: &A) -> Result<()> {
        if self.handle().is_per_thread() {
            return Err(Error::PerThreadStream);
        }
        let (theirs, ours) = (allocator.device(), self.stream.device());
        // By the object alone: one device may have several tables of functions.
        if core::ptr::addr_eq(Arc::as_ptr(theirs), Arc::as_ptr(ours)) {
            return Ok(());
        }
        let name = |device: &dyn forebay::Device| device.descriptor().to_string();
        Err(Error::OtherDevice { allocator: name(&**theirs), stream: name(&**ours) })
    }
}

impl fmt::Debug for AdoptedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdoptedStream").field("handle", &self.handle()).finish_non_exhaustive()
    }
}

/// Whether cudarc and forebay work in the same context.
pub(crate) fn same_context(device: &CudaDevice, context: &CudaContext) -> Result<()> {
    let (cudarc, forebay) = (context.cu_ctx().addr() as u64, device.raw_context());
    if cudarc == forebay { Ok(()) } else { Err(Error::OtherContext { cudarc, forebay }) }
}
