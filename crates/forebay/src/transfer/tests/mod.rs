//! Transfers on the simulated device, whose streams are late and whose checker names what races, and on the host.

mod between;
mod calibration;
mod compressed;
mod ends;
mod faults;
mod order;
mod random;
mod raw;
mod slots;

use std::sync::Arc;

use forebay_core::Bytes;
use forebay_hal::{Capabilities, Priority, StreamHandle, Streams};
use forebay_sim::{SimDevice, SimMachine, SimOptions};

use super::*;
use crate::{DeviceArray, Error, PinnedPool, Pool};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A device with memory of its own, and an engine of small pieces.
struct Bench {
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
    engine: TransferEngine,
}

fn own_memory() -> SimOptions {
    SimMachine::builder().without(Capabilities::HOST_VISIBLE)
}

fn small() -> TransferOptions {
    TransferOptions::new().chunk(Bytes::kib(4)).slots(3).threads(3).at_once(2)
}

impl Bench {
    fn new() -> Self {
        Self::with(own_memory(), small())
    }

    fn with(machine: SimOptions, options: TransferOptions) -> Self {
        let machine = machine.build().unwrap();
        let device = machine.device(0).unwrap();
        let (pool, engine) = (Pool::new(&device).unwrap(), options.build(&device).unwrap());
        Self { machine, device, pool, engine }
    }

    fn array(&self, length: usize) -> DeviceArray<u8> {
        self.pool.on(self.device.create_stream(Priority::Normal).unwrap()).uninit(length).unwrap()
    }

    fn nothing_was_found(&self) {
        self.device.synchronize_device().unwrap();
        assert_eq!(self.machine.finding_count(), 0, "{}", self.machine.findings()[0]);
    }
}

/// Bytes that differ from place to place, and from seed to seed.
fn data(length: usize, seed: u64) -> Vec<u8> {
    let mut random = forebay_core::Random::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.next_u64().to_ne_bytes());
    }
    bytes.truncate(length);
    bytes
}
