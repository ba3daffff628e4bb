//! Memory from forebay or cudarc, in cudarc's terms.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Bound, Range, RangeBounds};
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, DriverError,
    LaunchArgs, PushKernelArg, SyncOnDrop,
};
use forebay::handle::Pod;
use forebay::{Address, Allocate, DeviceArray, OwnedBlock, Pool};

use crate::uses::{Uses, is_per_thread};
use crate::{AdoptedStream, Error, Refused, View, ViewMut};

/// Elements on a GPU, for cudarc's kernels and all functions that take a `DevicePtr`.
///
/// The memory is either a pool's block ([`from_array`](Self::from_array), [`AdoptedStream::slice`]), which the drop
/// frees in the order of the slice's stream, or a cudarc slice ([`from_cuda`](Self::from_cuda)), which the driver then
/// frees as usual. The [crate's documentation](crate) says what that order covers.
///
/// It never lends a `&mut CudaSlice`: swapping that for another would make the driver free the pool's memory.
///
/// ```compile_fail,E0596
/// # fn swap(slice: &mut forebay_cudarc::Slice<f32>, other: &mut cudarc::driver::CudaSlice<f32>) {
/// // SAFETY: no other stream reads it.
/// let inner: &mut cudarc::driver::CudaSlice<f32> = unsafe { &mut *slice.as_cuda() };
/// std::mem::swap(inner, other);
/// # }
/// ```
///
/// ```compile_fail,E0614
/// # fn swap(slice: &mut forebay_cudarc::Slice<f32>, other: &mut cudarc::driver::CudaSlice<f32>) {
/// std::mem::swap(&mut **slice, other);
/// # }
/// ```
///
/// It cannot be dropped or converted while a kernel's arguments borrow it:
///
/// ```compile_fail,E0505
/// # use cudarc::driver::{CudaFunction, PushKernelArg};
/// # fn drop_early(slice: forebay_cudarc::Slice<f32>, stream: &cudarc::driver::CudaStream, kernel: &CudaFunction) {
/// let mut launch = stream.launch_builder(kernel);
/// launch.arg(&slice);
/// let block = slice.into_block();
/// launch.arg(&1_u32);
/// # }
/// ```
#[must_use = "the memory is freed when this is dropped"]
pub struct Slice<T, A: Allocate = Pool> {
    /// Taken out only where `memory` becomes `Gone`, and when this is dropped.
    inner: ManuallyDrop<CudaSlice<T>>,
    uses: Uses,
    memory: Memory<A>,
}

/// Who frees the memory.
enum Memory<A: Allocate> {
    /// A pool, when the block is dropped; the stream is kept until after that.
    Pool { block: OwnedBlock<A>, _stream: Arc<AdoptedStream> },
    /// The driver, when cudarc's slice is dropped.
    Cudarc,
    /// The caller, who took it.
    Gone,
}

impl<T, A: Allocate> Slice<T, A> {
    /// Converts an array to a slice without copying. The slice belongs to `stream`, which waits on the device for the
    /// array's stream if that is a different one.
    ///
    /// Fails and returns the array if another device object adopted the stream, or if the stream is a per-thread
    /// default stream.
    ///
    /// # Panics
    ///
    /// cudarc creates two events for the slice while its event tracking is on, and panics if the driver refuses.
    pub fn from_array(
        mut array: DeviceArray<T, A>,
        stream: &Arc<AdoptedStream>,
    ) -> Result<Self, Refused<DeviceArray<T, A>>>
    where
        T: Pod,
    {
        let context = stream.cuda().context();
        let ready = stream
            .check(array.block().allocator())
            .and_then(|()| Ok(array.hand_over_to(stream.handle())?))
            // cudarc panics where an error is left from an earlier call: here it is one.
            .and_then(|()| Ok(context.bind_to_thread()?));
        if let Err(error) = ready {
            return Err(Refused::new(array, error));
        }
        let (address, length) = (array.address().get(), array.len());
        // SAFETY: the array has so many elements there, and lives until this slice has given up cudarc's.
        let mut inner = unsafe { stream.cuda().upgrade_device_ptr::<T>(address, length) };
        // The memory may be in use by earlier work of its stream: other streams wait for that by the write event.
        drop(inner.device_ptr_mut(stream.cuda()));
        let memory = Memory::Pool { block: array.into_block(), _stream: Arc::clone(stream) };
        Ok(Self { inner: ManuallyDrop::new(inner), uses: Uses::new(context), memory })
    }

    /// Converts cudarc's slice without copying. Fails and returns it if it belongs to a per-thread default stream.
    pub fn from_cuda(slice: CudaSlice<T>) -> Result<Self, Refused<CudaSlice<T>>> {
        if is_per_thread(slice.stream()) {
            return Err(Refused::new(slice, Error::PerThreadStream));
        }
        let uses = Uses::new(slice.context());
        Ok(Self { inner: ManuallyDrop::new(slice), uses, memory: Memory::Cudarc })
    }

    /// Returns cudarc's slice, whose stream then waits on the device for all work that used it. Fails and returns this
    /// slice if a pool owns the memory.
    pub fn into_cuda(mut self) -> Result<CudaSlice<T>, Refused<Self>> {
        if !matches!(self.memory, Memory::Cudarc) {
            return Err(Refused::new(self, Error::NotFromCudarc));
        }
        if let Err(error) = self.settle() {
            return Err(Refused::new(self, error));
        }
        self.memory = Memory::Gone;
        // SAFETY: it is taken once: the drop sees that it is gone.
        Ok(unsafe { ManuallyDrop::take(&mut self.inner) })
    }

    /// Returns the block, which belongs to the slice's stream; that stream waits on the device for all work that used
    /// it. Fails and returns this slice if cudarc owns the memory.
    pub fn into_block(mut self) -> Result<OwnedBlock<A>, Refused<Self>> {
        if !matches!(self.memory, Memory::Pool { .. }) {
            return Err(Refused::new(self, Error::NotFromAPool));
        }
        if let Err(error) = self.settle() {
            return Err(Refused::new(self, error));
        }
        match core::mem::replace(&mut self.memory, Memory::Gone) {
            Memory::Pool { block, .. } => {
                // SAFETY: it is taken once: the drop sees that it is gone. The driver must not free the memory.
                unsafe { ManuallyDrop::take(&mut self.inner) }.leak();
                Ok(block)
            }
            // Looked at above.
            other => {
                self.memory = other;
                Err(Refused::new(self, Error::NotFromAPool))
            }
        }
    }

    /// The address of the first element.
    pub fn address(&self) -> Address {
        match &self.memory {
            Memory::Pool { block, .. } => block.address(),
            // Nothing is read by this, so there is nothing to order.
            _ => {
                let (pointer, guard) = self.inner.device_ptr(self.inner.stream());
                core::mem::forget(guard);
                Address::new(pointer)
            }
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// The block, if a pool owns the memory.
    pub fn block(&self) -> Option<&OwnedBlock<A>> {
        match &self.memory {
            Memory::Pool { block, .. } => Some(block),
            _ => None,
        }
    }

    /// A part, for reading; `None` if it reaches past the last element.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Option<View<'_, T>> {
        let range = numbers(&range, self.len())?;
        Some(View { view: self.inner.try_slice(range)?, uses: &self.uses })
    }

    /// A part, for writing; `None` if it reaches past the last element.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> Option<ViewMut<'_, T>> {
        let range = numbers(&range, self.len())?;
        Some(ViewMut { view: self.inner.try_slice_mut(range)?, uses: &self.uses })
    }

    /// cudarc's slice, for functions that accept nothing else.
    ///
    /// # Safety
    ///
    /// * Other streams than the slice's that it is read on are [noted](Self::used_on): of several reads cudarc remembers
    ///   only the last.
    pub unsafe fn as_cuda(&self) -> &CudaSlice<T> {
        self.uses.note_elsewhere(self.inner.context());
        &self.inner
    }

    /// Records that work on `stream` uses the slice, for kernels that cudarc does not track. When the slice is dropped,
    /// its own stream waits on the device for all that is enqueued there by then; for a per-thread default stream the host
    /// waits, for the whole context. Keeps the stream alive until then.
    ///
    /// This orders nothing else: order the work on `stream` after the work whose results it reads.
    pub fn used_on(&self, stream: &Arc<CudaStream>) {
        self.uses.note(stream);
    }

    /// Makes the slice's stream wait, on the device, for all work that has used the slice until now, and forgets the
    /// streams that were [noted](Self::used_on). The drop does it too.
    pub fn settle(&mut self) -> Result<(), DriverError> {
        let home = Arc::clone(self.inner.stream());
        let context = home.context();
        undisturbed(context, || {
            self.uses.wait_for_all(&home)?;
            if self.uses.are_elsewhere() && context.is_event_tracking() {
                // cudarc waits for its events only while there are streams besides the default one. They may be gone,
                // with work still to do.
                let stream = match context.is_managing_stream_synchronization() {
                    true => None,
                    false => Some(home.fork()?),
                };
                drop(self.inner.device_ptr_mut(&home));
                drop(stream);
            }
            context.check_err()
        })?;
        self.uses.clear();
        Ok(())
    }
}

/// The first element of a range and the one after its last; `None` where there is no such number.
fn numbers(range: &impl RangeBounds<usize>, length: usize) -> Option<Range<usize>> {
    let start = match range.start_bound() {
        Bound::Included(&first) => first,
        Bound::Excluded(&before) => before.checked_add(1)?,
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.checked_add(1)?,
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    Some(start..end)
}

/// Runs `act` without an error that an earlier call left in the context, which would be taken for one of its own, and puts
/// it back. That error may be of an event that was not recorded: then the host waits for the whole context.
fn undisturbed(
    context: &CudaContext,
    act: impl FnOnce() -> Result<(), DriverError>,
) -> Result<(), DriverError> {
    let earlier = context.check_err();
    let done = act();
    let done = if earlier.is_err() { done.and_then(|()| context.synchronize()) } else { done };
    context.record_err(earlier);
    done
}

impl<T, A: Allocate> Drop for Slice<T, A> {
    fn drop(&mut self) {
        if matches!(self.memory, Memory::Gone) {
            return;
        }
        let context = Arc::clone(self.inner.context());
        let settled = self.settle().or_else(|_| undisturbed(&context, || context.synchronize()));
        // SAFETY: it is taken once, here.
        let inner = unsafe { ManuallyDrop::take(&mut self.inner) };
        match core::mem::replace(&mut self.memory, Memory::Gone) {
            Memory::Pool { block, _stream } => {
                // First, and not dropped: the driver must not free the pool's memory.
                inner.leak();
                match settled {
                    Ok(()) => drop(block),
                    // The device may still use it, and nobody can tell when it is done.
                    Err(_) => core::mem::forget(block),
                }
            }
            Memory::Cudarc | Memory::Gone => drop(inner),
        }
    }
}

impl<T, A: Allocate> DeviceSlice<T> for Slice<T, A> {
    fn len(&self) -> usize {
        self.inner.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.inner.stream()
    }
}

impl<T, A: Allocate> DevicePtr<T> for Slice<T, A> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.read(&*self.inner, stream)
    }
}

impl<T, A: Allocate> DevicePtrMut<T> for Slice<T, A> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.write(&mut *self.inner, stream)
    }
}

// SAFETY: what is pushed is cudarc's own slice, which lives as long as this one is borrowed.
unsafe impl<'a, 'b: 'a, T, A: Allocate> PushKernelArg<&'b Slice<T, A>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b Slice<T, A>) -> &mut Self {
        arg.uses.note_elsewhere(arg.inner.context());
        self.arg(&*arg.inner)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T, A: Allocate> PushKernelArg<&'b mut Slice<T, A>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut Slice<T, A>) -> &mut Self {
        arg.uses.before_kernel_writes(&mut *arg.inner);
        self.arg(&mut *arg.inner)
    }
}

impl<T, A: Allocate> fmt::Debug for Slice<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slice")
            .field("element", &core::any::type_name::<T>())
            .field("length", &self.len())
            .field("block", &self.block())
            .finish_non_exhaustive()
    }
}
