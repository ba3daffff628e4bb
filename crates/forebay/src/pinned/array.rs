//! Elements in pinned memory, which the host and a device use in turn.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use forebay_core::{Address, Alignment, Bytes};
use forebay_hal::{self as hal, Call, Device, Location, NamedStream, StreamHandle, fresh_handle};

use super::pool::{Parts, PinnedPool};
use crate::handle::Pod;
use crate::pool::WorkEvent;
use crate::range::{check_device, check_length};
use crate::sync::lock;
use crate::{Allocate, DeviceArray, Error, OwnedBlock, Request, Result};

/// How work uses the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// It reads: the host may read meanwhile.
    Reads,
    /// It writes: the host may neither read nor write.
    Writes,
}

/// Work that uses the memory and may still be pending.
#[derive(Clone, Debug)]
struct Use {
    /// A sequence number.
    number: u64,
    access: Access,
    stream: NamedStream,
    /// An event after the work; `None` if the device could not record one, so that only a wait for the whole device can
    /// tell.
    end: Option<WorkEvent>,
}

/// An array of plain elements in pinned host memory, made by [`PinnedPool::array`]. After it is dropped, its memory
/// returns to the pool as soon as all work that uses it is done.
///
/// The host accesses the elements by [`host`](Self::host) and [`host_mut`](Self::host_mut), which wait for work that
/// uses them: work that the array itself enqueued, and work recorded by [`read_on`](Self::read_on) and
/// [`written_on`](Self::written_on). While the host holds a slice, the borrow checker rejects conflicting copies:
///
/// ```compile_fail,E0502
/// # fn f(mut array: forebay::PinnedArray<u8>, from: forebay::DeviceArray<u8>) -> Result<(), forebay::Error> {
/// let slice = array.host()?;
/// array.copy_from(&from)?; // would write to the slice
/// println!("{slice:?}");
/// # Ok(())
/// # }
/// ```
#[must_use = "the array is freed when it is dropped"]
pub struct PinnedArray<T: Pod> {
    /// Freed on the host's stream, which means that no work uses it.
    block: ManuallyDrop<OwnedBlock<Arc<Parts>>>,
    length: usize,
    /// Uses not yet known to be done. Adding a use that writes needs an exclusive borrow.
    uses: Mutex<Vec<Use>>,
    element: PhantomData<T>,
}

/// # Arrays
impl PinnedPool {
    /// Allocates an array of `length` elements. They keep whatever values the memory had before.
    ///
    /// ```
    /// use forebay::{HostDevice, PinnedPool};
    ///
    /// let pool = PinnedPool::new(&HostDevice::open()?)?;
    /// let mut array = pool.array::<u32>(3)?;
    /// array.host_mut()?.copy_from_slice(&[1, 2, 3]);
    /// assert_eq!(array.host()?, [1, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn array<T: Pod>(&self, length: usize) -> Result<PinnedArray<T>> {
        PinnedArray::new(self, length)
    }
}

impl<T: Pod> PinnedArray<T> {
    fn new(pool: &PinnedPool, length: usize) -> Result<Self> {
        let size = Bytes::of::<T>(length as u64)
            .map_err(|error| hal::Error::quantity(Call::AllocatePinned, "length", &error))?;
        // Blocks are aligned to 512 B in any case; few types need more.
        let alignment = Alignment::new(align_of::<T>() as u64).unwrap_or_default();
        let request = Request::new(size, pool.host()).aligned_to(alignment.max(Alignment::BLOCK));
        let block = ManuallyDrop::new(pool.owned(request)?);
        Ok(Self { block, length, uses: Mutex::new(Vec::new()), element: PhantomData })
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The host address of the first element; null if the elements have no bytes.
    pub fn address(&self) -> Address {
        self.block.address()
    }

    /// The device address of the first element, for [mapped](super::PinnedOptions::mapped) memory.
    pub fn device_address(&self) -> Result<Address> {
        Ok(self.block.allocator().source.device_address(self.address())?)
    }

    /// The elements. Waits for work that writes to them.
    pub fn host(&self) -> Result<&[T]> {
        self.wait_for(&|access| access == Access::Writes)?;
        // SAFETY: the block has room for that many elements, is aligned for them, and all bytes are values of `T`. It
        // lives as long as `self`. Nothing writes to it while `self` is borrowed: work that did is done, and an
        // exclusive borrow is needed to enqueue or record more.
        Ok(unsafe { core::slice::from_raw_parts(self.pointer().as_ptr(), self.length) })
    }

    /// The elements, to write. Waits for all work that uses them.
    pub fn host_mut(&mut self) -> Result<&mut [T]> {
        self.wait()?;
        // SAFETY: as in `host`; and work that reads them is done too, with none to come while `self` is borrowed.
        Ok(unsafe { core::slice::from_raw_parts_mut(self.pointer().as_ptr(), self.length) })
    }

    fn pointer(&self) -> NonNull<T> {
        // The device returned the address as a number. On 32-bit systems every host address fits.
        let address = usize::try_from(self.address().get()).unwrap_or(0);
        NonNull::new(ptr::with_exposed_provenance_mut(address)).unwrap_or(NonNull::dangling())
    }

    /// Copies the elements to `to`, in the order of its stream, which waits on the device for earlier work that writes
    /// to them. Does not block the host. Fails if the lengths or devices differ.
    pub fn copy_to<A: Allocate>(&self, to: &mut DeviceArray<T, A>) -> Result<()> {
        let (host, device) = (Location::Host(self.address()), Location::Device(to.address()));
        self.enqueue(Access::Reads, (device, host), to)
    }

    /// Copies `from` to the elements, in the order of its stream, which waits on the device for earlier work that uses
    /// them. Does not block the host. Fails if the lengths or devices differ.
    pub fn copy_from<A: Allocate>(&mut self, from: &DeviceArray<T, A>) -> Result<()> {
        let (host, device) = (Location::Host(self.address()), Location::Device(from.address()));
        self.enqueue(Access::Writes, (host, device), from)
    }

    /// Enqueues a copy between this array and `other`, from the second of `ends` to the first. For [`Access::Writes`]
    /// the caller must hold `self` exclusively.
    fn enqueue<A: Allocate>(
        &self,
        access: Access,
        (to, from): (Location, Location),
        other: &DeviceArray<T, A>,
    ) -> Result<()> {
        let device = self.device();
        device.descriptor().check_process(Call::Copy)?;
        check_device(other.block().allocator().device(), device)?;
        check_length("array", other.len(), self.length)?;
        let size = Bytes::of::<T>(self.length as u64)
            .map_err(|error| hal::Error::quantity(Call::Copy, "length", &error))?;
        if size.is_zero() {
            return Ok(());
        }
        let copy = hal::Copy::linear(to, from, size)?;
        // Create the event first: a copy without one could not be waited for.
        let event = match self.is_capturing() {
            true => None,
            false => Some(self.block.allocator().pool.work_event()?),
        };
        let stream = other.block().stream_to_use()?;
        self.put_after_conflicts(access, stream)?;
        // SAFETY: the host's side is this array's block, which returns to the pool only after the use that is recorded
        // below; until then the host reads or writes it only where the copy does not conflict. The device's side is the
        // other array's block, which is reused after the work of its stream, wherever the array goes.
        match unsafe { device.copy(&copy, stream) } {
            Ok(()) => self.record(access, event, stream),
            Err(error) => {
                // A failed copy no longer uses the host's memory, except on a lost device.
                if matches!(error, hal::Error::Lost { .. }) {
                    self.add(access, stream, None);
                }
                Err(error.into())
            }
        }
    }

    /// Makes `stream` wait, on the device, for conflicting work on other streams. During a capture the wait would
    /// become part of the graph: that fails, except for work of the capture itself, which the graph orders.
    fn put_after_conflicts(&self, access: Access, stream: StreamHandle) -> Result<()> {
        let device = self.device();
        let is_before = |of: NamedStream| of.handle() == stream.resolved() && !of.has_ended(device);
        let conflicts = |one: &&Use| access == Access::Writes || one.access == Access::Writes;
        let earlier: Vec<Use> = {
            let uses = lock(&self.uses);
            let others = uses.iter().filter(|one| !is_before(one.stream));
            others.filter(conflicts).cloned().collect()
        };
        let is_capturing = self.is_capturing();
        for one in earlier {
            match one.end {
                Some(_) if is_capturing => {
                    let missing = "order after work that began before a capture".into();
                    let call = Call::WaitEvent;
                    return Err(hal::Error::Unsupported { call, missing }.into());
                }
                Some(event) => event.make_wait(stream)?,
                None if is_capturing => {}
                None => device.synchronize_device()?,
            }
        }
        Ok(())
    }

    /// Records that work enqueued so far on `stream` reads the elements, such as a kernel or a copy of the program.
    /// Call it right after enqueuing that work.
    pub fn read_on(&self, stream: impl Into<StreamHandle>) -> Result<()> {
        self.use_on(Access::Reads, stream.into())
    }

    /// Records that work enqueued so far on `stream` writes to the elements, or reads and writes. Call it right after
    /// enqueuing that work.
    pub fn written_on(&mut self, stream: impl Into<StreamHandle>) -> Result<()> {
        self.use_on(Access::Writes, stream.into())
    }

    fn use_on(&self, access: Access, stream: StreamHandle) -> Result<()> {
        self.device().descriptor().check_process(Call::RecordEvent)?;
        if self.is_capturing() {
            return self.record(access, None, stream);
        }
        match self.block.allocator().pool.work_event() {
            Ok(event) => self.record(access, Some(event), stream),
            Err(error) => self.settle(access, stream, error),
        }
    }

    /// Records a use until `event`, which is recorded after the work on `stream`; without one, until a wait for the
    /// whole device, since during a capture the event would become part of the graph.
    fn record(&self, access: Access, event: Option<WorkEvent>, stream: StreamHandle) -> Result<()> {
        match event.as_ref().map_or(Ok(()), |event| event.record(stream)) {
            Ok(()) => {
                self.add(access, stream, event);
                Ok(())
            }
            Err(error) => self.settle(access, stream, error),
        }
    }

    /// Whether events must be neither recorded nor queried.
    fn is_capturing(&self) -> bool {
        self.block.allocator().is_capturing()
    }

    /// Waits for a stream whose work could not get an event. If that fails too, the stream may have ended while its
    /// work goes on: keeps the use until a wait for the whole device, and returns `error`.
    fn settle(&self, access: Access, stream: StreamHandle, error: Error) -> Result<()> {
        if self.device().synchronize_stream(stream).is_ok() {
            return Ok(());
        }
        self.add(access, stream, None);
        Err(error)
    }

    /// Adds a use, and removes those that are done, so that their number is bounded by the work in flight.
    fn add(&self, access: Access, stream: StreamHandle, end: Option<WorkEvent>) {
        let is_capturing = self.is_capturing();
        let mut uses = lock(&self.uses);
        uses.retain(|one| is_capturing || one.may_be_pending());
        let (number, stream) = (fresh_handle(), NamedStream::now(stream));
        uses.push(Use { number, access, stream, end });
    }

    /// Whether all work that uses the elements is done. Does not wait.
    pub fn is_idle(&self) -> bool {
        if self.device().descriptor().is_from_parent() {
            return false;
        }
        let is_capturing = self.is_capturing();
        let mut uses = lock(&self.uses);
        uses.retain(|one| is_capturing || one.may_be_pending());
        uses.is_empty()
    }

    /// Waits for all work that uses the elements.
    pub fn wait(&self) -> Result<()> {
        self.wait_for(&|_| true)
    }

    fn wait_for(&self, concerns: &dyn Fn(Access) -> bool) -> Result<()> {
        self.device().descriptor().check_process(Call::SynchronizeEvent)?;
        // Copy the list, so that other threads need not wait for the lock during a wait for the device.
        let pending: Vec<Use> =
            lock(&self.uses).iter().filter(|one| concerns(one.access)).cloned().collect();
        for one in &pending {
            match &one.end {
                Some(event) => event.synchronize()?,
                None => self.device().synchronize_device()?,
            }
        }
        if !pending.is_empty() {
            // Another thread may have added reads meanwhile; keep them.
            lock(&self.uses).retain(|one| !pending.iter().any(|done| done.number == one.number));
        }
        Ok(())
    }

    /// Makes the pool keep the memory until all these uses are done. Returns `false` if it cannot.
    fn record_pending(&self, uses: Vec<Use>) -> bool {
        let (pool, address) = (&self.block.allocator().pool, self.block.address());
        let is_capturing = self.is_capturing();
        let mut pending = uses.into_iter().filter(|one| is_capturing || one.may_be_pending());
        pending.all(|one| pool.record_use_until(address, one.end.as_ref()).is_ok())
    }

    fn device(&self) -> &Arc<dyn Device> {
        self.block.allocator().pool.device()
    }

    /// Whether `device` is the one that copies from and to this memory.
    pub(crate) fn is_of(&self, device: &Arc<dyn Device>) -> bool {
        ptr::addr_eq(Arc::as_ptr(device), Arc::as_ptr(self.device()))
    }
}

impl Use {
    fn may_be_pending(&self) -> bool {
        self.end.as_ref().is_none_or(|event| !event.is_reached())
    }
}

impl<T: Pod> Drop for PinnedArray<T> {
    fn drop(&mut self) {
        let uses = core::mem::take(self.uses.get_mut().unwrap_or_else(PoisonError::into_inner));
        if self.device().descriptor().is_from_parent() {
            // In a forked child, neither events nor memory are its own.
            core::mem::forget(uses);
            return;
        }
        if uses.is_empty() || self.record_pending(uses) {
            // SAFETY: it is dropped nowhere else, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.block) };
        }
        // Otherwise work may use the memory forever. Leak the block, which keeps its pool alive.
    }
}

impl<T: Pod> fmt::Debug for PinnedArray<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedArray")
            .field("element", &core::any::type_name::<T>())
            .field("length", &self.length)
            .field("block", &*self.block)
            .finish_non_exhaustive()
    }
}
