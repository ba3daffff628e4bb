//! The setup of a benchmark: the effort, the settings, a fresh device for each allocator, and its clock.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay::{Pool, PoolOptions, Settings};
use forebay_core::{Bytes, GIB, MIB};
use forebay_hal::{Device, Priority, Stream};
use forebay_sim::{MemoryModel, SimMachine};

use super::foreign::Foreign;
use crate::output::{Fault, nanos};
use crate::replay::{DeviceName, open_device, simulated};

/// The capacity for workloads that nearly fill a device: that of a common card.
const FULL_DEVICE: Bytes = Bytes::new(16 * GIB);

const FULL_DEVICE_STEP: u64 = 256 * MIB;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Long enough for reproducible figures.
    Full,
    /// Long enough to see that everything works.
    Quick,
}

impl Effort {
    /// The one or the other.
    pub(crate) const fn pick<T: Copy>(self, full: T, quick: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
        }
    }

    /// How often each allocator plays a sequence.
    pub(crate) const fn rounds(self) -> u32 {
        self.pick(5, 1)
    }

    /// The turns of each contestant, and the pairs of a turn. Turns are short, so that some are undisturbed.
    pub(crate) const fn hot(self) -> (u32, u32) {
        self.pick((200, 5_000), (10, 1_000))
    }

    /// The same with threads, whose turns must be long enough to overlap.
    pub(crate) const fn threaded(self) -> (u32, u32) {
        self.pick((20, 50_000), (3, 5_000))
    }
}

/// What to measure on, how long, and with which settings.
#[derive(Clone, Copy)]
pub(crate) struct BenchSetup<'a> {
    pub(crate) place: DeviceName,
    pub(crate) effort: Effort,
    /// The pool's settings.
    pub(crate) settings: &'a Settings,
    /// Other vendors' allocators.
    pub(crate) foreign: &'a [Foreign],
}

impl BenchSetup<'_> {
    /// A pool on `device`, with the workload's `limit` unless the settings have one.
    pub(crate) fn pool(
        &self,
        device: &Arc<dyn Device>,
        limit: Option<Bytes>,
    ) -> Result<Pool, Fault> {
        let options = PoolOptions::with(self.settings.clone());
        let options = match (limit, self.settings.max_bytes()) {
            (Some(limit), None) => options.max_bytes(limit),
            _ => options,
        };
        Ok(options.build(device)?)
    }
}

/// A fresh device.
pub(crate) struct FreshDevice {
    pub(crate) device: Arc<dyn Device>,
    machine: Option<SimMachine>,
}

/// A clock.
#[derive(Clone, Copy)]
pub(crate) enum Clock<'a> {
    /// This machine's clock.
    Host(Instant),
    /// The price of the driver's calls, by the cost table of the simulated device.
    Model(&'a SimMachine),
}

impl Clock<'_> {
    /// The name in files.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Host(_) => "host",
            Self::Model(_) => "model",
        }
    }

    /// The time since a fixed moment.
    #[inline]
    pub(crate) fn now(self) -> Duration {
        match self {
            Self::Host(origin) => origin.elapsed(),
            Self::Model(machine) => machine.driver_time(),
        }
    }
}

impl FreshDevice {
    /// A fresh device with `limit` of memory, or with as much as it can have.
    pub(crate) fn open(place: DeviceName, limit: Option<Bytes>) -> Result<Self, Fault> {
        match place {
            DeviceName::SIM => {
                let (machine, device) = simulated(limit, MemoryModel::Phantom)?;
                Ok(Self { device, machine: Some(machine) })
            }
            // A GPU has the memory of the card; there the workload's limit applies to the pool alone.
            _ => {
                let limit = limit.filter(|_| place == DeviceName::HOST);
                Ok(Self { device: open_device(place, limit, true)?, machine: None })
            }
        }
    }

    /// The capacity for workloads that nearly fill a device: half of its free memory if that is less than usual.
    pub(crate) fn full_device(place: DeviceName) -> Result<Bytes, Fault> {
        let info = Self::open(place, None)?.device.memory_info();
        let free = info?.free;
        // In steps whose halves and fifths are easy to read.
        let half = Bytes::new(free.get() / 2 / FULL_DEVICE_STEP * FULL_DEVICE_STEP);
        Ok(FULL_DEVICE.min(half))
    }

    /// Streams of the device, one for each thread.
    pub(crate) fn streams(&self, count: usize) -> Result<Vec<Stream>, Fault> {
        streams(&self.device, count)
    }

    /// The clock for our own code.
    pub(crate) fn host_clock(&self) -> Clock<'_> {
        Clock::Host(Instant::now())
    }

    /// The clock for the driver itself: the cost table if the device is simulated, as this machine's clock would measure
    /// the simulation.
    pub(crate) fn driver_clock(&self) -> Clock<'_> {
        self.machine.as_ref().map_or_else(|| self.host_clock(), Clock::Model)
    }

    /// The cost of driver calls so far, by the cost table of the simulated device. `None` if the clock includes it.
    pub(crate) fn driver_price(&self) -> Option<Duration> {
        self.machine.as_ref().map(SimMachine::driver_time)
    }
}

/// Streams of `device`.
pub(crate) fn streams(device: &Arc<dyn Device>, count: usize) -> Result<Vec<Stream>, Fault> {
    let stream = |_| Stream::new(device, Priority::Normal);
    Ok((0..count).map(stream).collect::<Result<_, _>>()?)
}

/// The shortest time of two readings of the clock with nothing in between.
pub(crate) fn clock_overhead() -> u64 {
    let origin = Instant::now();
    let once = |_| {
        let began = origin.elapsed();
        origin.elapsed().saturating_sub(began)
    };
    let least = (0..1000).map(once).min().unwrap_or_default();
    nanos(least)
}
