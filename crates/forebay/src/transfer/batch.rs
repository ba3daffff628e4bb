//! Batches of transfers: small ones are staged together, and each has its own result.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytemuck::Pod;
use forebay_core::transfer::{Item, Packing};
use forebay_hal::{Copy, NamedStream, StreamHandle};

use super::engine::Engine;
use super::job::{Direction, Job, PartSource};
use super::owned::{copy_of, start_copy};
use super::scope::{OpenTransfers, Scope, ScopedTicket};
use super::worker::submit;
use crate::{Allocate, DeviceArray, Error, Result};

/// Largest item, in bytes, that is staged with others.
const SMALL: u64 = 64 << 10;

/// Small items per transfer. It starts while later items are still being examined.
const GROUP: usize = 2048;

/// An item that was accepted.
#[derive(Debug)]
struct Accepted {
    number: usize,
    copy: Copy,
    stream: NamedStream,
}

/// Many transfers, made by [`Scope::upload_all`] and [`Scope::download_all`].
#[derive(Debug)]
#[must_use = "the results of the transfers are those of `wait`"]
pub struct BatchTicket<'scope> {
    open: &'scope OpenTransfers,
    direction: Direction,
    /// One per item. Those in flight are in the lists below.
    results: Vec<Result<()>>,
    alone: Vec<(usize, ScopedTicket<'scope>)>,
    groups: Vec<(ScopedTicket<'scope>, Vec<Accepted>)>,
}

impl<'scope> Scope<'scope, '_> {
    /// Transfers all elements of each slice to the array beside it. Small transfers are combined: one device call
    /// serves all whose destinations are adjacent.
    ///
    /// An item that is refused or fails does not affect the others:
    ///
    /// ```
    /// # use forebay::transfer::TransferEngine;
    /// # use forebay::{HostDevice, Pool};
    /// # let device = HostDevice::open()?;
    /// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
    /// let data = [1_u8; 100];
    /// let mut arrays = Vec::new();
    /// for length in [100, 50, 100] {
    ///     arrays.push(pool.default_stream().uninit::<u8>(length)?);
    /// }
    /// let results = engine.scope(|transfers| {
    ///     let items = arrays.iter_mut().map(|array| (&data[..], array)).collect();
    ///     transfers.upload_all(items).wait()
    /// })?;
    /// assert!(results[0].is_ok() && results[2].is_ok());
    /// println!("{}", results[1].as_ref().unwrap_err()); // the array has 50 elements, not 100
    /// # Ok::<(), forebay::Error>(())
    /// ```
    pub fn upload_all<T: Pod + Sync, A: Allocate>(
        &'scope self,
        items: Vec<(&'scope [T], &'scope mut DeviceArray<T, A>)>,
    ) -> BatchTicket<'scope> {
        let job = Job::default();
        let copies = items.into_iter().map(|(from, to)| {
            let side = (from.as_ptr(), from.len());
            let copy = copy_of(&self.open.engine.engine, Direction::Up, side, to, &job)?;
            Ok((copy, to.block().stream_in_order()?))
        });
        BatchTicket::begin(self, Direction::Up, copies)
    }

    /// Transfers elements of each array to the slice beside it, as many as fit in the slice. See
    /// [`upload_all`](Self::upload_all).
    pub fn download_all<T: Pod + Send, A: Allocate>(
        &'scope self,
        items: Vec<(&'scope DeviceArray<T, A>, &'scope mut [T])>,
    ) -> BatchTicket<'scope> {
        let job = Job::default();
        let copies = items.into_iter().map(|(from, to)| {
            let side = (to.as_mut_ptr().cast_const(), to.len());
            let copy = copy_of(&self.open.engine.engine, Direction::Down, side, from, &job)?;
            Ok((copy, from.block().stream_in_order()?))
        });
        BatchTicket::begin(self, Direction::Down, copies)
    }
}

/// Whether a copy is small and contiguous.
fn is_small(copy: &Copy) -> bool {
    let extent = copy.extent();
    extent.bytes().get() <= SMALL && (extent.rows, extent.slices) == (1, 1)
}

impl<'scope> BatchTicket<'scope> {
    pub(super) fn begin(
        scope: &'scope Scope<'scope, '_>,
        direction: Direction,
        copies: impl Iterator<Item = Result<(Copy, NamedStream)>>,
    ) -> Self {
        let (results, alone, groups) = (Vec::new(), Vec::new(), Vec::new());
        let mut batch = Self { open: &scope.open, direction, results, alone, groups };
        let mut small = Vec::new();
        for (number, copy) in copies.enumerate() {
            batch.results.push(Ok(()));
            match copy {
                Ok((copy, stream)) if is_small(&copy) => {
                    small.push(Accepted { number, copy, stream });
                    if small.len() == GROUP {
                        batch.begin_group(core::mem::take(&mut small));
                    }
                }
                Ok((copy, stream)) => batch.begin_alone(number, &copy, stream),
                Err(error) => batch.fail(number, error),
            }
        }
        if !small.is_empty() {
            batch.begin_group(small);
        }
        batch
    }

    fn fail(&mut self, number: usize, error: Error) {
        if let Some(result) = self.results.get_mut(number) {
            *result = Err(error);
        }
    }

    /// Starts the transfer of an item, or records why it could not start.
    fn begin_alone(&mut self, number: usize, copy: &Copy, stream: NamedStream) {
        // SAFETY: both sides are borrowed until the end of the scope, which waits for the transfer.
        match unsafe { start_copy(self.engine(), Job::default(), self.direction, copy, stream) } {
            Ok(id) => self.alone.push((number, self.open.enter(id))),
            Err(error) => self.fail(number, error),
        }
    }

    /// Starts one transfer of many small items; if that is refused, one for each.
    fn begin_group(&mut self, items: Vec<Accepted>) {
        match self.begin_together(&items) {
            Ok(ticket) => self.groups.push((ticket, items)),
            Err(_) => {
                for Accepted { number, copy, stream } in items {
                    self.begin_alone(number, &copy, stream);
                }
            }
        }
    }

    fn begin_together(&self, accepted: &[Accepted]) -> Result<ScopedTicket<'scope>> {
        let direction = self.direction;
        let item = |one: &Accepted| {
            let (to, from) = (one.copy.to().address().get(), one.copy.from().address().get());
            let size = one.copy.extent().bytes().get();
            match direction {
                Direction::Up => Item { host: from, device: to, size },
                Direction::Down => Item { host: to, device: from, size },
            }
        };
        let items: Arc<[Item]> = accepted.iter().map(item).collect();
        let total = items.iter().map(|item| item.size).sum();
        // Of several streams with one handle, take the one named first: if it has not ended, none has.
        let mut streams = BTreeMap::<StreamHandle, NamedStream>::new();
        for one in accepted {
            let first = streams.entry(one.stream.handle()).or_insert(one.stream);
            if one.stream.named_at() < first.named_at() {
                *first = one.stream;
            }
        }
        let streams: Vec<NamedStream> = streams.into_values().collect();
        let packing = Packing::new(self.engine().options.load(total));
        let supply = PartSource::Items(items, packing);
        let job = Job { direction, supply, total, ..Job::default() };
        // SAFETY: as for one alone.
        Ok(self.open.enter(unsafe { submit(self.engine(), job, &streams) }?))
    }

    fn engine(&self) -> &'scope Arc<Engine> {
        &self.open.engine.engine
    }

    /// Waits until all are done, and returns their results in the order of the items.
    pub fn wait(mut self) -> Vec<Result<()>> {
        for (ticket, items) in core::mem::take(&mut self.groups) {
            if ticket.wait().is_err() {
                // One of them is at fault: retry each by itself to find out which.
                for Accepted { number, copy, stream } in items {
                    self.begin_alone(number, &copy, stream);
                }
            }
        }
        for (number, ticket) in core::mem::take(&mut self.alone) {
            if let Err(error) = ticket.wait() {
                self.fail(number, error);
            }
        }
        self.results
    }
}
