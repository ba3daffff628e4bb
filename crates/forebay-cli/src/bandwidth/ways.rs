//! The paths that data can take, each as one round.

use std::sync::Arc;

use forebay::transfer::{Calibration, TransferEngine, TransferOptions};
use forebay::{DeviceArray, PinnedArray, PinnedPool, Pool, StreamHandle};
use forebay_core::{Address, Bytes};
use forebay_hal::{Copy, Device, Location, Priority};

use super::driver::RawDriver;
use crate::output::{Fault, complain};
use crate::replay::{DeviceName, open_device};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The device copies pinned memory itself: the limit of the wire.
    Pinned,
    /// As [`Pinned`](Self::Pinned), by the driver's own call.
    PinnedDriver,
    /// Pinned memory through the transfer engine, which leaves it to the device.
    PinnedEngine,
    /// Ordinary memory through the transfer engine.
    Engine,
    /// Ordinary memory by the device's own copy, in stream order.
    Contract,
    /// Ordinary memory by the driver's own call.
    Driver,
}

impl Way {
    /// The name in JSON, and the words in tables.
    pub(super) const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Pinned => ("pinned", "pinned"),
            Self::PinnedDriver => ("pinned_driver", "pinned, driver"),
            Self::PinnedEngine => ("pinned_engine", "pinned, engine"),
            Self::Engine => ("engine", "ordinary, engine"),
            Self::Contract => ("contract", "ordinary, device's copy"),
            Self::Driver => ("driver", "ordinary, driver"),
        }
    }
}

/// Which direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
    /// Both at once.
    Both,
}

impl Direction {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Both => "both",
        }
    }

    pub(super) fn goes_up(self) -> bool {
        self != Self::Down
    }

    pub(super) fn goes_down(self) -> bool {
        self != Self::Up
    }
}

/// Memory of both kinds and both directions, as large as the largest case.
pub(super) struct Bench {
    pub(super) place: DeviceName,
    pub(super) device: Arc<dyn Device>,
    pub(super) raw: Option<RawDriver>,
    pub(super) pool: Pool,
    pub(super) engine: TransferEngine,
    pub(super) arrays: [DeviceArray<u8>; 2],
    pinned: [PinnedArray<u8>; 2],
    pub(super) ordinary: [Vec<u8>; 2],
    pub(super) largest: usize,
}

pub(super) fn stream(array: &DeviceArray<u8>) -> StreamHandle {
    array.block().stream()
}

impl Bench {
    pub(super) fn open(
        place: DeviceName,
        largest: usize,
        threads: Option<usize>,
    ) -> Result<Self, Fault> {
        let device = open_device(place, None, true)?;
        let pool = Pool::new(&device)?;
        let streams = [(); 2].map(|()| device.create_stream(Priority::Normal));
        let [up, down] = streams;
        let mut arrays = [pool.on(up?).uninit(largest)?, pool.on(down?).uninit(largest)?];
        for array in &mut arrays {
            array.fill(0)?;
        }
        let memory = PinnedPool::new(&device)?;
        let mut pinned = [memory.array(largest)?, memory.array(largest)?];
        // Not zero, so that nothing is left out.
        for array in &mut pinned {
            array.host_mut()?.fill(7);
        }
        // Measured where there is a wire, and then as the settings say.
        if place.is_hardware() {
            Calibration::of(&device)?;
        }
        let options = TransferOptions::for_device(&device)?;
        let options = threads.map_or(options.clone(), |threads| options.threads(threads));
        let engine = options.build(&device)?;
        let ordinary = [vec![7; largest], vec![7; largest]];
        let raw = RawDriver::of(place)?;
        Ok(Self { place, device, raw, pool, engine, arrays, pinned, ordinary, largest })
    }

    /// The ways there are for a device.
    pub(super) fn ways(&self, ways: &[Way]) -> Vec<Way> {
        let needs_driver = |way: &Way| matches!(way, Way::Driver | Way::PinnedDriver);
        ways.iter().copied().filter(|way| self.raw.is_some() || !needs_driver(way)).collect()
    }

    /// One round.
    pub(super) fn go(&mut self, direction: Direction, way: Way, size: usize) -> Result<(), Fault> {
        match way {
            Way::Pinned => self.pinned(direction, size),
            Way::PinnedDriver => self.pinned_by_driver(direction, size),
            Way::PinnedEngine => self.pinned_by_engine(direction, size),
            Way::Engine => self.by_engine(direction, size),
            Way::Contract => self.contract(direction, size),
            Way::Driver => self.by_driver(direction, size),
        }
    }

    /// Copies with the device's own call between ordinary memory and an array.
    fn contract(&mut self, direction: Direction, size: usize) -> Result<(), Fault> {
        let [array, _] = &self.arrays;
        let [memory, _] = &mut self.ordinary;
        let host = Location::Host(Address::of_pointer(memory.as_mut_ptr()));
        let device = Location::Device(array.address());
        let (to, from) = if direction.goes_up() { (device, host) } else { (host, device) };
        let copy = Copy::linear(to, from, Bytes::new(size as u64))?;
        // SAFETY: both are as large as the largest case, and are borrowed until the stream was waited for. If that fails
        // the memory may still be in use, and the program ends.
        unsafe { self.device.copy(&copy, stream(array)) }?;
        wait_or_abort(&*self.device, stream(array));
        Ok(())
    }

    fn by_driver(&mut self, direction: Direction, size: usize) -> Result<(), Fault> {
        let Some(raw) = &self.raw else { return Ok(()) };
        let [array, _] = &self.arrays;
        let [memory, _] = &mut self.ordinary;
        let host = Address::of_pointer(memory.as_mut_ptr()).get();
        let device = array.address().get();
        let (to, from) = if direction.goes_up() { (device, host) } else { (host, device) };
        // SAFETY: both are as large as the largest case, and the call waits.
        unsafe { raw.copy(to, from, size) }
    }

    fn pinned_by_driver(&mut self, direction: Direction, size: usize) -> Result<(), Fault> {
        let Some(raw) = &self.raw else { return Ok(()) };
        let [up, down] = &self.arrays;
        let [source, sink] = &mut self.pinned;
        let mut copies = Vec::new();
        if direction.goes_up() {
            copies.push((stream(up), (up.address().get(), source.address().get(), size)));
        }
        if direction.goes_down() {
            copies.push((stream(down), (sink.address().get(), down.address().get(), size)));
        }
        // SAFETY: all are as large as the largest case; both are waited for, and the program ends if that fails.
        unsafe { raw.copy_on(&copies) }
    }

    /// The copies of pinned memory of a round, and their streams.
    fn pinned_copies(
        &self,
        direction: Direction,
        size: usize,
    ) -> Result<Vec<(Copy, StreamHandle)>, Fault> {
        let ([up, down], [source, sink]) = (&self.arrays, &self.pinned);
        let size = Bytes::new(size as u64);
        let mut copies = Vec::new();
        if direction.goes_up() {
            let (to, from) = (Location::Device(up.address()), Location::Host(source.address()));
            copies.push((Copy::linear(to, from, size)?, stream(up)));
        }
        if direction.goes_down() {
            let (to, from) = (Location::Host(sink.address()), Location::Device(down.address()));
            copies.push((Copy::linear(to, from, size)?, stream(down)));
        }
        Ok(copies)
    }

    fn pinned(&mut self, direction: Direction, size: usize) -> Result<(), Fault> {
        let copies = self.pinned_copies(direction, size)?;
        // SAFETY: all are as large as the largest case; both are waited for, and the program ends if that fails.
        let enqueue = |(copy, on): &(Copy, StreamHandle)| unsafe { self.device.copy(copy, *on) };
        let enqueued = copies.iter().try_for_each(enqueue);
        copies.iter().for_each(|&(_, on)| wait_or_abort(&*self.device, on));
        Ok(enqueued?)
    }

    fn pinned_by_engine(&mut self, direction: Direction, size: usize) -> Result<(), Fault> {
        let copies = self.pinned_copies(direction, size)?;
        // SAFETY: as above; a ticket that is dropped waits.
        let submit = |(copy, on)| unsafe { self.engine.copy_raw(copy, on) }.submit();
        let tickets: Result<Vec<_>, _> = copies.into_iter().map(submit).collect();
        Ok(tickets?.iter().try_for_each(|ticket| ticket.wait())?)
    }

    fn by_engine(&mut self, direction: Direction, size: usize) -> Result<(), Fault> {
        let [up, down] = &mut self.arrays;
        let [source, sink] = &mut self.ordinary;
        let (source, sink) = (&source[..size], &mut sink[..size]);
        self.engine.scope(|transfers| {
            let up = direction.goes_up().then(|| transfers.upload(source, up).submit());
            let down = direction.goes_down().then(|| transfers.download(down, sink).submit());
            for ticket in [up, down].into_iter().flatten() {
                ticket?.wait()?;
            }
            Ok::<(), forebay::Error>(())
        })??;
        Ok(())
    }
}

/// Waits for a stream whose work uses memory that is borrowed: if that fails, the program ends.
pub(super) fn wait_or_abort(device: &dyn Device, stream: StreamHandle) {
    if let Err(error) = device.synchronize_stream(stream) {
        complain(format_args!("{error}"));
        std::process::abort();
    }
}
