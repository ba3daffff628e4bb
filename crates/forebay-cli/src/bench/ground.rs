//! The setup of a benchmark: the effort, the settings, a fresh device for each allocator, and its clock.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay::{Pool, PoolOptions, Settings};
use forebay_core::{Bytes, GIB, MIB, TIB};
use forebay_hal::{Device, Priority, Stream};
use forebay_host::HostOptions;
use forebay_sim::{MemoryModel, SimMachine};

use super::foreign::Foreign;
use crate::replay::{DeviceName, open_device};

/// How much a nearly full device has: as much as a usual card.
const FULL_DEVICE: Bytes = Bytes::new(16 * GIB);

const FULL_DEVICE_STEP: u64 = 256 * MIB;

/// How long to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Long enough for figures that come again.
    Full,
    /// Long enough to see that everything works.
    Quick,
}

impl Effort {
    /// How often a sequence is played on each allocator.
    pub(crate) const fn rounds(self) -> u32 {
        match self {
            Self::Full => 5,
            Self::Quick => 1,
        }
    }

    /// Turns of each contestant, and pairs of a turn: short turns, so that some are undisturbed.
    pub(crate) const fn hot(self) -> (u32, u32) {
        match self {
            Self::Full => (200, 5_000),
            Self::Quick => (10, 1_000),
        }
    }

    /// The same with threads, which must run long enough to run at the same time.
    pub(crate) const fn threaded(self) -> (u32, u32) {
        match self {
            Self::Full => (20, 50_000),
            Self::Quick => (3, 5_000),
        }
    }
}

/// Where, how long, and with what to measure.
#[derive(Clone, Copy)]
pub(crate) struct BenchSetup<'a> {
    pub(crate) place: DeviceName,
    pub(crate) effort: Effort,
    /// What the pool goes by.
    pub(crate) settings: &'a Settings,
    /// Allocators of others.
    pub(crate) foreign: &'a [Foreign],
}

impl BenchSetup<'_> {
    /// A pool on `device`. One that was set no limit gets `limit`, where a workload has one.
    pub(crate) fn pool(
        &self,
        device: &Arc<dyn Device>,
        limit: Option<Bytes>,
    ) -> Result<Pool, String> {
        let options = PoolOptions::with(self.settings.clone());
        let options = match (limit, self.settings.max_bytes()) {
            (Some(limit), None) => options.max_bytes(limit),
            _ => options,
        };
        options.build(device).map_err(|error| error.to_string())
    }
}

/// A fresh device.
pub(crate) struct FreshDevice {
    pub(crate) device: Arc<dyn Device>,
    machine: Option<SimMachine>,
}

/// A clock to time by.
#[derive(Clone, Copy)]
pub(crate) enum Clock<'a> {
    /// The machine's own.
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

    /// The time since some moment in the past.
    #[inline]
    pub(crate) fn now(self) -> Duration {
        match self {
            Self::Host(origin) => origin.elapsed(),
            Self::Model(machine) => machine.driver_time(),
        }
    }
}

impl FreshDevice {
    /// A fresh device with `limit` of memory; without a limit, as much as it can have.
    pub(crate) fn open(place: DeviceName, limit: Option<Bytes>) -> Result<Self, String> {
        match place {
            DeviceName::SIM => {
                let machine = SimMachine::builder()
                    .memory(MemoryModel::Phantom)
                    .capacity(limit.unwrap_or(Bytes::new(TIB)))
                    .checked(false)
                    .build()
                    .map_err(|error| error.to_string())?;
                let device = machine.device(0).ok_or("the simulated machine has no device")?;
                Ok(Self { device, machine: Some(machine) })
            }
            DeviceName::HOST => {
                let options = HostOptions::new();
                let options = limit.map_or(options.clone(), |limit| options.memory_limit(limit));
                let device = options.open().map_err(|error| error.to_string())?;
                Ok(Self { device, machine: None })
            }
            // A workload's limit is the pool's; the driver itself has what the card has.
            _ => Ok(Self { device: open_device(place, None, true)?, machine: None }),
        }
    }

    /// How much a device that is to be nearly full has: half of what there is where that is less
    /// than usual.
    pub(crate) fn full_device(place: DeviceName) -> Result<Bytes, String> {
        let info = Self::open(place, None)?.device.memory_info();
        let free = info.map_err(|error| error.to_string())?.free;
        // In steps that leave its halves and fifths easy to read.
        let half = Bytes::new(free.get() / 2 / FULL_DEVICE_STEP * FULL_DEVICE_STEP);
        Ok(FULL_DEVICE.min(half))
    }

    /// Streams of the device, one a thread.
    pub(crate) fn streams(&self, count: usize) -> Result<Vec<Stream>, String> {
        let stream = |_| Stream::new(&self.device, Priority::Normal);
        (0..count).map(stream).collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    /// What our own code is timed by.
    pub(crate) fn host_clock(&self) -> Clock<'_> {
        Clock::Host(Instant::now())
    }

    /// What the driver itself is timed by: the clock would tell how fast it is simulated.
    pub(crate) fn driver_clock(&self) -> Clock<'_> {
        self.machine.as_ref().map_or_else(|| self.host_clock(), Clock::Model)
    }

    /// What calls of the driver have cost so far, by the cost table of the simulated device; `None`
    /// where the clock tells it with everything else.
    pub(crate) fn driver_price(&self) -> Option<Duration> {
        self.machine.as_ref().map(SimMachine::driver_time)
    }
}

/// The shortest time of two readings of the clock with nothing in between.
pub(crate) fn clock_overhead() -> u64 {
    let origin = Instant::now();
    let once = |_| {
        let began = origin.elapsed();
        origin.elapsed().saturating_sub(began)
    };
    let least = (0..1000).map(once).min().unwrap_or_default();
    u64::try_from(least.as_nanos()).unwrap_or(u64::MAX)
}
