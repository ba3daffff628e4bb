//! The test setup for allocators: a fresh device for each, and its clock.

use core::time::Duration;
use std::sync::Arc;
use std::time::Instant;

use forebay_core::{Bytes, GIB, MIB, TIB};
use forebay_hal::{Device, Priority, Stream};
use forebay_host::HostOptions;
use forebay_sim::{MemoryModel, SimMachine};

use crate::replay::{DeviceName, open_device};

/// How much a nearly full device has: as much as a usual card.
const FULL_DEVICE: Bytes = Bytes::new(16 * GIB);

const FULL_DEVICE_STEP: u64 = 256 * MIB;

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
