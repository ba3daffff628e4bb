//! Compares host memory with device memory by copying the device's bytes back.

use std::hash::{BuildHasher, Hasher, RandomState};

use bytemuck::Pod;
use forebay_core::Random;
use forebay_core::transfer::{Item, Packing};
use forebay_hal::Copy;

use super::builder::{Endpoints, Transfer};
use super::engine::TransferEngine;
use super::host_end::{address_of, pointer};
use super::job::{Direction, HostEnd, Job, PartSource};
use super::options::TransferOptions;
use super::owned::copy_of;
use super::scope::{Scope, Scoped, ScopedTicket};
use super::worker::submit;
use crate::{Allocate, DeviceArray, Result};

/// Bytes compared at each sampled place.
const SAMPLE: u64 = 4 << 10;

/// A comparison of a borrowed array with borrowed memory.
#[derive(Debug)]
pub struct ScopedComparison<'scope, T: Pod, A: Allocate>(Scoped<'scope, T, A>);

impl<'scope> Scope<'scope, '_> {
    /// Compares elements of `array` with `host`, as many as `host` has, to check an earlier upload or download. The
    /// device's bytes come back through the engine and are compared on the host. Fails with
    /// [`Error::Differs`](crate::Error::Differs), which gives the position.
    ///
    /// ```
    /// # use forebay::transfer::TransferEngine;
    /// # use forebay::{Error, HostDevice, Pool};
    /// # let device = HostDevice::open()?;
    /// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
    /// let data = vec![7_u8; 100_000];
    /// let mut array = pool.default_stream().uninit::<u8>(data.len())?;
    /// engine.scope(|transfers| transfers.upload(&data, &mut array).submit().map(drop))??;
    /// engine.scope(|transfers| transfers.compare(&array, &data).submit()?.wait())??;
    ///
    /// engine.scope(|transfers| transfers.upload(&[8], &mut array).at(60_000).submit().map(drop))??;
    /// let compared = engine.scope(|transfers| transfers.compare(&array, &data).submit()?.wait())?;
    /// assert!(matches!(compared, Err(Error::Differs { offset, .. }) if offset.get() == 60_000));
    /// # Ok::<(), forebay::Error>(())
    /// ```
    ///
    /// [`sampled`](Transfer::sampled) compares only a part.
    pub fn compare<T: Pod + Sync, A: Allocate>(
        &'scope self,
        array: &'scope DeviceArray<T, A>,
        host: &'scope [T],
    ) -> Transfer<'scope, ScopedComparison<'scope, T, A>> {
        let host = (address_of(host.as_ptr()), host.len());
        let ends = Scoped { open: &self.open, direction: Direction::Down, array, host };
        Transfer::new(&self.open.engine, ScopedComparison(ends))
    }
}

impl<T: Pod + Sync, A: Allocate> Transfer<'_, ScopedComparison<'_, T, A>> {
    /// Compares only 4 KiB in every `every` times 4 KiB, at random places, of contiguous memory.
    pub fn sampled(mut self, every: u64) -> Self {
        self.job.sample = Some(every.max(1));
        self
    }
}

impl<'scope, T: Pod + Sync, A: Allocate> Endpoints for ScopedComparison<'scope, T, A> {
    type Submitted = Result<ScopedTicket<'scope>>;

    fn begin(self, TransferEngine { engine }: &TransferEngine, job: Job) -> Self::Submitted {
        let Self(Scoped { open, direction, array, host }) = self;
        let host = (pointer(host.0).cast_const().cast::<T>(), host.1);
        let stream = array.block().stream_in_order()?;
        let copy = copy_of(engine, direction, host, array, &job)?;
        let job = comparison(&engine.options, job, &copy);
        // SAFETY: both are borrowed until the end of the scope, which waits for the transfer; the host's side is only read.
        Ok(open.enter(unsafe { submit(engine, job, &[stream]) }?))
    }
}

fn comparison(options: &TransferOptions, job: Job, copy: &Copy) -> Job {
    let (first, device) = (copy.to().address().get(), copy.from().address().get());
    let (host, size) = (HostEnd::Compared(first), copy.extent().bytes().get());
    let Some(every) = job.sample.filter(|_| job.region.is_none()) else {
        return job.through_slots(options, Direction::Down, host, &copy.shape());
    };
    let mut random = Random::new(RandomState::new().build_hasher().finish());
    let stride = SAMPLE.saturating_mul(every);
    let mut items = Vec::new();
    let mut start = 0;
    while start < size {
        let room = stride.min(size - start);
        let length = SAMPLE.min(room);
        let at = start + random.below(room - length + 1);
        items.push(Item { host: first + at, device: device + at, size: length });
        start = start.saturating_add(stride);
    }
    let total = items.iter().map(|item| item.size).sum();
    let supply = PartSource::Items(items.into(), Packing::new(options.chunk.get()));
    Job { direction: Direction::Down, host, supply, total, ..job }
}
