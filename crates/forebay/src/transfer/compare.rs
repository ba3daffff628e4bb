//! Compares host memory with device memory by copying the device's bytes back.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Mutex};

use bytemuck::Pod;
use forebay_core::Random;
use forebay_core::transfer::{Item, Packing};
use forebay_hal::Copy;

use super::builder::{Choices, Ends, Transfer};
use super::engine::{Engine, TransferEngine};
use super::job::{Direction, HostEnd, JobId, Order, Supply};
use super::owned::copy_of;
use super::scope::{Scope, ScopedTicket};
use super::worker::submit;
use crate::sync::lock;
use crate::{Allocate, DeviceArray, Result};

/// Bytes compared at each sampled place.
const SAMPLE: u64 = 4 << 10;

/// A borrowed array beside borrowed memory.
#[derive(Debug)]
pub struct ScopedComparison<'scope, T: Pod, A: Allocate> {
    array: &'scope DeviceArray<T, A>,
    host: &'scope [T],
    open: &'scope Mutex<BTreeSet<JobId>>,
    engine: &'scope Arc<Engine>,
}

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
        let (open, engine) = (self.open(), self.engine());
        Transfer::new(self.transfers(), ScopedComparison { array, host, open, engine })
    }
}

impl<T: Pod + Sync, A: Allocate> Transfer<'_, ScopedComparison<'_, T, A>> {
    /// Compares only 4 KiB in every `every` times 4 KiB, at random places, of contiguous memory.
    pub fn sampled(mut self, every: u64) -> Self {
        self.choices_mut().sample = Some(every.max(1));
        self
    }
}

impl<'scope, T: Pod + Sync, A: Allocate> Ends for ScopedComparison<'scope, T, A> {
    type Submitted = Result<ScopedTicket<'scope>>;

    fn begin(self, _: &TransferEngine, choices: Choices) -> Self::Submitted {
        let Self { array, host, open, engine } = self;
        let copy = copy_of(engine, Direction::Down, (host.as_ptr(), host.len()), array, &choices)?;
        let stream = array.block().stream_in_order()?;
        let order = order_of(engine, &copy, choices);
        // SAFETY: both are borrowed until the end of the scope, which waits for the transfer; the host's side is only read.
        let id = unsafe { submit(engine, order, &[stream]) }?;
        lock(open).insert(id);
        Ok(ScopedTicket::new(engine, open, id))
    }
}

fn order_of(engine: &Engine, copy: &Copy, choices: Choices) -> Order {
    let (host, device) = (copy.to().address().get(), copy.from().address().get());
    let (end, size) = (HostEnd::Compared(host), copy.extent().bytes().get());
    let Some(every) = choices.sample.filter(|_| choices.region.is_none()) else {
        return choices.order(engine, Direction::Down, end, &copy.shape());
    };
    let mut random = Random::new(RandomState::new().build_hasher().finish());
    let stride = SAMPLE.saturating_mul(every);
    let mut items = Vec::new();
    let mut start = 0;
    while start < size {
        let room = stride.min(size - start);
        let length = SAMPLE.min(room);
        let at = start + random.below(room - length + 1);
        items.push(Item { host: host + at, device: device + at, size: length });
        start = start.saturating_add(stride);
    }
    let total = items.iter().map(|item| item.size).sum();
    let supply = Supply::Items(items.into(), Packing::new(engine.options.chunk.get()));
    choices.order_of(Direction::Down, end, supply, total)
}
