//! The memory of a `UnifiedBuffer`: elements with a replica on the host and one on a device, and views of either.

use std::sync::Arc;

use forebay::Bytes;
use forebay::bindings::{CountedBuffer, View};
use forebay::buffer::Access;

use crate::allocation::{Allocation, MemorySpace, Pin};
use crate::array_view::ArrayView;
use crate::failure::Failure;
use crate::gil::DropDetached;
use crate::open_device::{OpenDevice, StreamRef};

/// The buffer that an array's elements are in, whole or a part of it.
pub(crate) struct Unified {
    buffer: DropDetached<Arc<CountedBuffer>>,
    /// Whether the array is a slice of another.
    is_slice: bool,
}

impl Unified {
    /// All of a new buffer.
    pub(crate) fn new(buffer: CountedBuffer) -> Self {
        Self { buffer: DropDetached::new(Arc::new(buffer)), is_slice: false }
    }

    /// The same buffer, for a part of the elements.
    pub(crate) fn slice(&self) -> Self {
        Self { is_slice: true, ..self.share() }
    }

    /// The same, for a call.
    pub(crate) fn share(&self) -> Self {
        let buffer = DropDetached::new(Arc::clone(&self.buffer));
        Self { buffer, is_slice: self.is_slice }
    }

    /// Whether both are of one buffer.
    pub(crate) fn is_of_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// Whether it is a part of the buffer.
    pub(crate) fn is_slice(&self) -> bool {
        self.is_slice
    }

    /// The buffer.
    pub(crate) fn buffer(&self) -> &CountedBuffer {
        &self.buffer
    }

    /// The buffer, for what is done to all of it.
    pub(crate) fn whole(&self) -> Result<&CountedBuffer, Failure> {
        if self.is_slice {
            let said = "this is a slice; call it on the buffer, as it concerns all elements";
            return Err(Failure::invalid(said));
        }
        Ok(&self.buffer)
    }

    fn replica_view(&self, view: View) -> ReplicaView {
        ReplicaView { buffer: Arc::clone(&self.buffer), number: view.number }
    }

    /// The elements of `array` in host memory, until the pin is dropped. Rows between them count as used too.
    pub(crate) fn on_host(
        &self,
        array: &ArrayView,
        access: Access,
    ) -> Result<(Pin, ArrayView), Failure> {
        let extent = array.in_rows().extent();
        let view = self.buffer.map(array.offset(), extent, access)?;
        let kept = self.replica_view(view);
        // As for tensors of other libraries in host memory.
        let range = (view.address, Bytes::new(extent), MemorySpace::Host);
        let host = OpenDevice::named("host")?;
        let replica = Allocation::replica(&host, &StreamRef::default_of(&host), range, kept);
        Ok((replica.pin()?, array.alone(access != Access::Read)))
    }

    /// The elements of `array` in device memory, for work on `stream`, until the pin is dropped.
    pub(crate) fn on_device(
        &self,
        device: &Arc<OpenDevice>,
        array: &ArrayView,
        access: Access,
        stream: &Arc<StreamRef>,
    ) -> Result<(Pin, ArrayView), Failure> {
        let extent = array.in_rows().extent();
        let view = self.buffer.export(array.offset(), extent, access, stream.handle())?;
        let kept = self.replica_view(view);
        let space = if device.is_host() { MemorySpace::HostDevice } else { MemorySpace::Device };
        let range = (view.address, Bytes::new(extent), space);
        let replica = Allocation::replica(device, stream, range, kept);
        Ok((replica.pin()?, array.alone(access != Access::Read)))
    }
}

/// A view of a replica, which ends when this is dropped.
struct ReplicaView {
    buffer: Arc<CountedBuffer>,
    number: u64,
}

impl Drop for ReplicaView {
    fn drop(&mut self) {
        // It is there, but in a forked child: it was entered when this was made.
        let _ = self.buffer.end_view(self.number);
    }
}
