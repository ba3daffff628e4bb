//! The pool's state, and what its calls do to it.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_core::line::Streams;
use forebay_core::{Address, Bytes, SizeClasses};
use forebay_hal::{Call, Device, Event, EventHandle, EventKind, Progress, StreamHandle};

use super::ground::{Alias, Ground};
use super::lanes::Lanes;
use super::{Block, DriverLog, PoolOptions, Statistics};
use crate::{Error, Result};

/// Blocks up to this size live on a line of their own, so that they do not keep large pages in use.
/// An eighth of the smallest page of a device: a page holds several, and wastes little at its end.
const SMALL: Bytes = Bytes::new(256 << 10);

/// Which line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Small,
    Large,
}

/// A live block.
#[derive(Clone, Copy, Debug)]
struct Record {
    side: Side,
    at: u64,
    size: Bytes,
    requested: Bytes,
}

/// When something put off can be done.
#[derive(Debug)]
enum When {
    /// Once this event is reached.
    Reached(Arc<Event>),
    /// Once the whole device was synchronised: there was no event to be had.
    Synchronised,
    /// Now: its event was reached, but it failed.
    Now,
}

/// What is to be done later.
#[derive(Clone, Copy, Debug)]
enum Errand {
    /// Take the old mapping of a moved page away.
    Clear(Side, Alias),
    /// Let a stream's number go: what was freed on it is everybody's.
    Forget(u32),
}

/// Everything a pool has.
#[derive(Debug)]
pub(super) struct State {
    // Grounds first: they go before the device does.
    small: Ground,
    large: Ground,
    lanes: Lanes,
    blocks: HashMap<Address, Record>,
    errands: Vec<(When, Errand)>,
    /// The event that streams wait for each other by: recorded and waited for at once.
    meeting: Event,
    options: PoolOptions,
    classes: SizeClasses,
    statistics: Statistics,
    device: Arc<dyn Device>,
}

impl State {
    pub(super) fn new(device: &Arc<dyn Device>, options: PoolOptions) -> Result<Self> {
        let mut log = DriverLog::default();
        let small = Ground::new(device, &mut log)?;
        let large = Ground::new(device, &mut log)?;
        let meeting = Event::new(device, EventKind::Order)?;
        let statistics = Statistics { driver: log, ..Statistics::default() };
        Ok(Self {
            small,
            large,
            lanes: Lanes::default(),
            blocks: HashMap::new(),
            errands: Vec::new(),
            meeting,
            options,
            classes: SizeClasses::exact(),
            statistics,
            device: Arc::clone(device),
        })
    }

    fn ground(&mut self, side: Side) -> &mut Ground {
        match side {
            Side::Small => &mut self.small,
            Side::Large => &mut self.large,
        }
    }

    pub(super) fn statistics(&self) -> Statistics {
        Statistics { held: self.held(), ..self.statistics.clone() }
    }

    pub(super) fn held(&self) -> Bytes {
        self.small.line.backed_bytes().saturating_add(self.large.line.backed_bytes())
    }

    pub(super) fn allocate(&mut self, requested: Bytes, stream: StreamHandle) -> Result<Block> {
        if requested.is_zero() {
            return Ok(Block { address: Address::NULL, size: Bytes::ZERO });
        }
        let lane = self.lanes.number(stream)?;
        let size = match self.classes.round(requested) {
            Ok(size) => size,
            Err(_) => return Err(self.out_of_memory(Side::Large, requested)),
        };
        let side = if size <= SMALL { Side::Small } else { Side::Large };
        let taker = Streams::only(lane);
        let at = match self.ground(side).line.take(size, taker) {
            Some(at) => at,
            None => {
                self.statistics.misses += 1;
                self.find(side, size, lane, stream)?
            }
        };
        let ground = self.ground(side);
        ground.live = ground.live.saturating_add(size);
        ground.peak = ground.peak.max(ground.live);
        let address = ground.address(at);
        self.blocks.insert(address, Record { side, at, size, requested });
        let held = self.held();
        let statistics = &mut self.statistics;
        statistics.allocations += 1;
        statistics.live = statistics.live.saturating_add(size);
        statistics.peak_live = statistics.peak_live.max(statistics.live);
        statistics.requested = statistics.requested.saturating_add(requested);
        statistics.peak_held = statistics.peak_held.max(held);
        Ok(Block { address, size })
    }

    pub(super) fn free(&mut self, address: Address, stream: StreamHandle) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        let Some(&record) = self.blocks.get(&address) else {
            return Err(Error::NotABlock { address });
        };
        let lane = self.lanes.number(stream)?;
        let Record { side, at, size, requested } = record;
        let ground = self.ground(side);
        if ground.line.give(at, size, Streams::only(lane)).is_err() {
            return Err(Error::NotABlock { address });
        }
        ground.live = ground.live.saturating_sub(size);
        self.blocks.remove(&address);
        let statistics = &mut self.statistics;
        statistics.frees += 1;
        statistics.live = statistics.live.saturating_sub(size);
        statistics.requested = statistics.requested.saturating_sub(requested);
        Ok(())
    }

    /// Memory for a request that no hole of its stream holds.
    fn find(&mut self, side: Side, size: Bytes, lane: u32, stream: StreamHandle) -> Result<u64> {
        let taker = Streams::only(lane);
        self.run_errands(false)?;
        // One stream's best hole first; then, before anything is taken from the driver, all.
        if let Some(owner) = self.ground(side).line.nearest_owner(size) {
            if let Some(number) = owner.numbers().find(|&number| number != lane) {
                self.wait_for(number, lane, stream)?;
            }
            if let Some(at) = self.ground(side).line.take(size, taker) {
                return Ok(at);
            }
        }
        for number in 0..Streams::MOST {
            let others = self.ground(side).line.owners().contains(Streams::only(number));
            if number != lane && others {
                self.wait_for(number, lane, stream)?;
            }
        }
        if let Some(at) = self.ground(side).line.take(size, taker) {
            return Ok(at);
        }
        let mut trimmed = false;
        loop {
            match self.make_room(side, size, taker, stream) {
                Ok(_) => {
                    if let Some(at) = self.ground(side).line.take(size, taker) {
                        return Ok(at);
                    }
                }
                Err(Error::Device(forebay_hal::Error::OutOfMemory { .. })) => {}
                Err(error) => return Err(error),
            }
            if trimmed {
                return Err(self.out_of_memory(side, size));
            }
            // Nothing left but to wait: then every free page of either line can go.
            self.trim(Bytes::ZERO)?;
            trimmed = true;
        }
    }

    /// Makes `lane` wait for all that was enqueued on the stream with `number`, on the device.
    fn wait_for(&mut self, number: u32, lane: u32, stream: StreamHandle) -> Result<()> {
        let Some(owner) = self.lanes.handle(number) else { return Ok(()) };
        let event: EventHandle = self.meeting.handle();
        let (device, log) = (&self.device, &mut self.statistics.driver);
        log.make(Call::RecordEvent, Bytes::ZERO, || device.record_event(event, owner))?;
        log.make(Call::WaitEvent, Bytes::ZERO, || device.wait_event(stream, event))?;
        self.statistics.waits += 1;
        let (taker, owner) = (Streams::only(lane), Streams::only(number));
        // The event covers both lines.
        self.small.line.waited(taker, owner);
        self.large.line.waited(taker, owner);
        Ok(())
    }

    fn make_room(
        &mut self,
        side: Side,
        size: Bytes,
        taker: Streams,
        stream: StreamHandle,
    ) -> Result<bool> {
        let other = self.held().saturating_sub(self.ground(side).line.backed_bytes());
        let limit = self.options.max_bytes.saturating_sub(other);
        let options = self.options.clone();
        let mut log = core::mem::take(&mut self.statistics.driver);
        let (aliases, made) = self.ground(side).make_room(size, taker, &options, limit, &mut log);
        self.statistics.driver = log;
        if !aliases.is_empty() {
            // The taker has waited for everyone whose memory it took, so what it has enqueued so
            // far comes after every use through the old mappings. Where no event is to be had, the
            // next time the device is synchronised will do.
            let end = self.end_of(stream).map(Arc::new).ok();
            for alias in aliases {
                let when = end.clone().map_or(When::Synchronised, When::Reached);
                self.errands.push((when, Errand::Clear(side, alias)));
            }
        }
        made
    }

    /// An event after all work enqueued on `stream`.
    fn end_of(&mut self, stream: StreamHandle) -> Result<Event> {
        let event = Event::new(&self.device, EventKind::Order)?;
        let record = || self.device.record_event(event.handle(), stream);
        self.statistics.driver.make(Call::RecordEvent, Bytes::ZERO, record)?;
        Ok(event)
    }

    /// Does what was put off, as far as its time has come. Does not wait.
    fn run_errands(&mut self, synchronised: bool) -> Result<()> {
        let mut later = Vec::new();
        let mut outcome = Ok(());
        for (when, errand) in core::mem::take(&mut self.errands) {
            let due = match &when {
                When::Now => true,
                When::Synchronised => synchronised,
                When::Reached(_) if synchronised => true,
                When::Reached(event) => {
                    let log = &mut self.statistics.driver;
                    let asked = log.make(Call::QueryEvent, Bytes::ZERO, || event.query());
                    // Where asking fails, it is asked again the next time.
                    asked.is_ok_and(|progress| progress == Progress::Done)
                }
            };
            if !due {
                later.push((when, errand));
            } else if let Err(error) = self.run_errand(errand) {
                later.push((When::Now, errand));
                outcome = Err(error);
            }
        }
        self.errands = later;
        outcome
    }

    fn run_errand(&mut self, errand: Errand) -> Result<()> {
        match errand {
            Errand::Clear(side, alias) => {
                let mut log = core::mem::take(&mut self.statistics.driver);
                let cleared = self.ground(side).clear(alias, &mut log);
                self.statistics.driver = log;
                cleared
            }
            Errand::Forget(number) => {
                self.small.line.idle(Streams::only(number));
                self.large.line.idle(Streams::only(number));
                self.lanes.gone(number);
                Ok(())
            }
        }
    }

    pub(super) fn forget_stream(&mut self, stream: StreamHandle) -> Result<()> {
        let event = self.end_of(stream)?;
        if let Some(number) = self.lanes.leave(stream) {
            self.errands.push((When::Reached(Arc::new(event)), Errand::Forget(number)));
        }
        Ok(())
    }

    pub(super) fn trim(&mut self, keep: Bytes) -> Result<Bytes> {
        self.device.synchronize_device()?;
        self.run_errands(true)?;
        self.small.line.idle(Streams::ALL);
        self.large.line.idle(Streams::ALL);
        let mut log = core::mem::take(&mut self.statistics.driver);
        let large = self.large.trim(keep.saturating_sub(self.small.line.backed_bytes()), &mut log);
        let small = self.small.trim(keep.saturating_sub(self.large.line.backed_bytes()), &mut log);
        self.statistics.driver = log;
        Ok(large?.saturating_add(small?))
    }

    fn out_of_memory(&mut self, side: Side, requested: Bytes) -> Error {
        let device_free = self.device.memory_info().map_or(Bytes::ZERO, |info| info.free);
        Error::OutOfMemory {
            requested,
            limit: self.options.max_bytes,
            held: self.held(),
            live: self.statistics.live,
            largest_free: self.ground(side).line.largest_hole(),
            device_free,
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // Work may still use what the grounds are about to give back; where waiting fails the
        // device is lost, and its work with it.
        let _ = self.device.synchronize_device();
        let _ = self.run_errands(true);
    }
}
