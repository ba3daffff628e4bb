//! The CUDA driver's own copies, the baseline for forebay's.

use forebay_cuda::CudaDevice;
use forebay_cuda::sys::{DriverError, RawContext, RawStream, Symbols};
use forebay_hal::{DeviceKind, StreamHandle};
use libloading::Library;

use crate::output::{Fault, complain};
use crate::replay::DeviceName;

/// `cuMemcpy`: waits, and looks at the addresses for the direction.
type Memcpy = unsafe extern "C" fn(u64, u64, usize) -> u32;

/// A driver, its context for a device, and the call of it that the contract does not use.
pub(super) struct RawDriver {
    table: &'static Symbols,
    context: RawContext,
    memcpy: Memcpy,
}

fn failed(refusal: DriverError) -> Fault {
    format!("{} failed with {:?}", refusal.symbol.name, refusal.code).into()
}

impl RawDriver {
    /// The driver of a device; `None` if the device has none.
    pub(super) fn of(place: DeviceName) -> Result<Option<Self>, Fault> {
        if place.kind() != DeviceKind::Cuda {
            return Ok(None);
        }
        let device = CudaDevice::shared(place.ordinal())?;
        let driver = device.driver();
        // SAFETY: the driver's library, which is loaded already and stays.
        let library: &'static Library =
            Box::leak(Box::new(unsafe { Library::new(driver.library()) }?));
        // SAFETY: `cuMemcpy` has this signature since CUDA 4.0.
        let memcpy = unsafe { *library.get::<Memcpy>(b"cuMemcpy\0")? };
        let context = RawContext(device.raw_context());
        Ok(Some(Self { table: driver.table(), context, memcpy }))
    }

    /// Runs `work` in the device's context.
    fn inside(&self, work: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
        // SAFETY: the context of a device that is open, popped below.
        unsafe { self.table.context_push(self.context) }.map_err(failed)?;
        let outcome = work();
        let mut popped = RawContext::NULL;
        // SAFETY: a place of our own.
        unsafe { self.table.context_pop(&raw mut popped) }.map_err(failed)?;
        outcome
    }

    /// Copies, and waits: what `cudaMemcpy` does.
    ///
    /// # Safety
    ///
    /// * Both are memory of `size` bytes that nobody else uses meanwhile.
    pub(super) unsafe fn copy(&self, to: u64, from: u64, size: usize) -> Result<(), Fault> {
        self.inside(|| {
            // SAFETY: as the caller promised; a context is current.
            match unsafe { (self.memcpy)(to, from, size) } {
                0 => Ok(()),
                code => Err(format!("cuMemcpy failed with {code}").into()),
            }
        })
    }

    /// Enqueues copies one after the other, each with its stream, and waits for all: what a loop of `cudaMemcpyAsync`
    /// does. If they cannot be waited for, the program ends.
    ///
    /// # Safety
    ///
    /// * As for [`copy`](Self::copy), for each.
    pub(super) unsafe fn copy_on(
        &self,
        copies: &[(StreamHandle, (u64, u64, usize))],
    ) -> Result<(), Fault> {
        self.inside(|| {
            let enqueue = |&(stream, (to, from, size)): &(StreamHandle, (u64, u64, usize))| {
                // SAFETY: as the caller promised; a context is current.
                unsafe { self.table.memcpy(to, from, size as u64, RawStream(stream.0)) }
            };
            let enqueued = copies.iter().try_for_each(enqueue);
            let mut last = None;
            for &(stream, _) in copies {
                if last.replace(stream) == Some(stream) {
                    continue;
                }
                // SAFETY: a live stream.
                if let Err(refusal) = unsafe { self.table.stream_synchronize(RawStream(stream.0)) }
                {
                    complain(failed(refusal));
                    std::process::abort();
                }
            }
            enqueued.map_err(failed)
        })
    }

    /// Allocates, copies in, fills a word, copies out and frees: what a program without a pool does.
    ///
    /// # Safety
    ///
    /// * `memory` is `size` bytes that nobody else uses meanwhile.
    pub(super) unsafe fn round(&self, memory: u64, size: usize) -> Result<(), Fault> {
        self.inside(|| {
            let mut block = 0;
            // SAFETY: a place of our own.
            unsafe { self.table.mem_alloc(&raw mut block, size as u64) }.map_err(failed)?;
            // SAFETY: the block was allocated just now, and as the caller promised.
            let worked = unsafe {
                let up = (self.memcpy)(block, memory, size);
                let filled = self.table.memset_32(block, 1, 1, RawStream::NULL);
                let down = (self.memcpy)(memory, block, size);
                filled.map_err(failed).and(match up.max(down) {
                    0 => Ok(()),
                    code => Err(Fault::from(format!("cuMemcpy failed with {code}"))),
                })
            };
            // SAFETY: nothing uses the block: the last copy has waited.
            unsafe { self.table.mem_free(block) }.map_err(failed)?;
            worked
        })
    }
}
