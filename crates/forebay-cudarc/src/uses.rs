//! The work that uses a slice: what its stream waits for before the memory is freed, and others before they write.
//!
//! cudarc keeps two events for each slice: its latest write and its latest read. One read is too few if several streams
//! read, so each reading stream has an event here, in a list that only grows while the slice is shared.
//!
//! ```text
//!   write   stream waits for: cudarc's read and write, every event here    then records: cudarc's write
//!   read    stream waits for: cudarc's write                               then records: its event here
//!   kernel  as cudarc does: it does not say on which stream
//!   free    home stream waits for: all of them, and every stream that was noted
//! ```

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaContext, CudaEvent, CudaStream, DevicePtr, DevicePtrMut, DriverError, SyncOnDrop,
};

/// The value of the calling thread's default stream, which is another stream on every thread.
const PER_THREAD: usize = 2;

/// Whether a stream is the default stream of whichever thread calls.
pub(crate) fn is_per_thread(stream: &CudaStream) -> bool {
    stream.cu_stream().addr() == PER_THREAD
}

/// The reads of one stream, by its handle. A stream that is gone has its reads in the event; a new one with the same
/// handle waits for them first, so that its own event covers both.
#[derive(Debug)]
struct Reads {
    stream: usize,
    event: Option<CudaEvent>,
    next: Next,
}

type Next = OnceLock<Box<Reads>>;

/// The uses of one slice.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    reads: Next,
    /// Streams that the program noted.
    noted: Mutex<Vec<Arc<CudaStream>>>,
    /// Whether cudarc's events may name other streams than the slice's own.
    elsewhere: AtomicBool,
    /// Whether the slice was made before cudarc tracked anything, so that its events do not order later work after it.
    untracked: bool,
}

impl Uses {
    /// The uses of a slice that is made now.
    pub(crate) fn new(context: &CudaContext) -> Self {
        Self { untracked: !context.is_managing_stream_synchronization(), ..Self::default() }
    }

    /// Notes a stream.
    pub(crate) fn note(&self, stream: &Arc<CudaStream>) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if !noted.iter().any(|known| Arc::ptr_eq(known, stream)) {
            noted.push(Arc::clone(stream));
        }
    }

    /// Takes note that cudarc will record its events on another stream, or on one that it does not tell: a kernel's.
    pub(crate) fn note_elsewhere(&self, context: &CudaContext) {
        if context.is_managing_stream_synchronization() {
            self.elsewhere.store(true, Ordering::Relaxed);
        }
    }

    /// Orders a kernel that writes after the reads that only this list knows: the home stream waits for them, and the
    /// kernel, by cudarc's write event, for the home stream.
    pub(crate) fn before_kernel_writes<T>(&self, slice: &mut impl DevicePtrMut<T>) {
        let home = Arc::clone(slice.stream());
        self.note_elsewhere(home.context());
        if self.reads.get().is_some() {
            home.context().record_err(self.wait_for_reads(&home));
            drop(slice.device_ptr_mut(&home));
        }
    }

    /// Whether cudarc's events may name other streams than the slice's own.
    pub(crate) fn are_elsewhere(&self) -> bool {
        self.elsewhere.load(Ordering::Relaxed)
    }

    fn reads(&self) -> impl Iterator<Item = &Reads> {
        core::iter::successors(self.reads.get(), |reads| reads.next.get()).map(|reads| &**reads)
    }

    /// Makes `stream` wait for the reads.
    pub(crate) fn wait_for_reads(&self, stream: &CudaStream) -> Result<(), DriverError> {
        self.reads()
            .filter_map(|reads| reads.event.as_ref())
            .try_for_each(|event| stream.wait(event))
    }

    /// Makes `home` wait for the reads and for the streams that were noted.
    pub(crate) fn wait_for_all(&self, home: &CudaStream) -> Result<(), DriverError> {
        self.wait_for_reads(home)?;
        // Cloned: no lock is held across calls of the driver.
        let noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone();
        noted.iter().try_for_each(|stream| {
            // Another thread's default stream has no name on this one: nothing less covers it.
            if is_per_thread(stream) { stream.context().synchronize() } else { home.join(stream) }
        })
    }

    /// Forgets what `home` has waited for.
    pub(crate) fn clear(&mut self) {
        self.reads = Next::new();
        self.noted.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        *self.elsewhere.get_mut() = false;
    }

    /// A pointer for work on `stream` that reads, and what is to be dropped after that is enqueued.
    pub(crate) fn read<'a, T>(
        &'a self,
        slice: &'a impl DevicePtr<T>,
        stream: &'a CudaStream,
    ) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let home = slice.stream();
        let is_waited_for = self.begin(home, stream);
        let (pointer, cudarcs) = slice.device_ptr(stream);
        // It would replace cudarc's read event, which a kernel on another stream may have recorded.
        core::mem::forget(cudarcs);
        if is_waited_for {
            return (pointer, SyncOnDrop::sync_stream(stream));
        }
        if !home.context().is_managing_stream_synchronization() {
            return (pointer, SyncOnDrop::Sync(None));
        }
        match self.event_of(stream, home) {
            Ok(event) => (pointer, SyncOnDrop::record_event(event, stream)),
            Err(error) => {
                home.context().record_err::<()>(Err(error));
                (pointer, SyncOnDrop::sync_stream(stream))
            }
        }
    }

    /// A pointer for work on `stream` that writes, and what is to be dropped after that is enqueued.
    pub(crate) fn write<'a, T>(
        &self,
        slice: &'a mut impl DevicePtrMut<T>,
        stream: &'a CudaStream,
    ) -> (CUdeviceptr, SyncOnDrop<'a>) {
        let home = Arc::clone(slice.stream());
        let is_waited_for = self.begin(&home, stream);
        home.context().record_err(self.wait_for_reads(stream));
        if *stream != *home {
            self.note_elsewhere(home.context());
        }
        let (pointer, cudarcs) = slice.device_ptr_mut(stream);
        if is_waited_for {
            core::mem::forget(cudarcs);
            return (pointer, SyncOnDrop::sync_stream(stream));
        }
        (pointer, cudarcs)
    }

    /// Orders work on `stream` after the home stream where cudarc does not. Whether the host has to wait for that work,
    /// because no event of the slice's can be recorded after it.
    fn begin(&self, home: &CudaStream, stream: &CudaStream) -> bool {
        let context = home.context();
        // Who turns tracking off has promised to keep the order.
        if *stream == *home || !context.is_event_tracking() {
            return false;
        }
        let is_waited_for = !context.is_managing_stream_synchronization()
            || is_per_thread(stream)
            || stream.context() != context;
        if is_waited_for || self.untracked {
            context.record_err(stream.join(home));
        }
        is_waited_for
    }

    /// The event of a stream's reads.
    fn event_of(
        &self,
        stream: &CudaStream,
        home: &CudaStream,
    ) -> Result<&Option<CudaEvent>, DriverError> {
        let handle = stream.cu_stream().addr();
        let mut place = &self.reads;
        loop {
            let reads = match place.get() {
                Some(reads) => reads,
                None => {
                    let event = Some(stream.context().new_event(None)?);
                    place.get_or_init(|| {
                        Box::new(Reads { stream: handle, event, next: Next::new() })
                    })
                }
            };
            if reads.stream == handle {
                if let Some(event) = reads.event.as_ref().filter(|_| *stream != *home) {
                    // The stream may be another one by the same handle; the earlier reads must not be lost.
                    stream.wait(event)?;
                }
                return Ok(&reads.event);
            }
            place = &reads.next;
        }
    }
}
