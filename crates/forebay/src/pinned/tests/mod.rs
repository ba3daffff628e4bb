//! Pinned pools on the simulated device, with its checker looking on, and on the host.

mod faults;
mod hit;
mod order;
mod refusals;
mod workload;

use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use forebay_core::{Bytes, PageSize, Random};
use forebay_hal::{Capabilities, Priority, StreamHandle, Streams};
use forebay_sim::{CostModel, HandleReuse, SimDevice, SimMachine, SimOptions};

use super::*;
use crate::{DeviceArray, Error, Pool, PoolOptions};

const DEFAULT: StreamHandle = StreamHandle::DEFAULT;

/// A device without pages of pinned memory, as most are.
fn in_segments() -> SimOptions {
    SimMachine::builder().without(Capabilities::PINNED_PAGES)
}

/// Pinned memory as segments, and as pages that are small enough to be moved often.
fn both_kinds() -> [SimOptions; 2] {
    [in_segments(), SimMachine::builder().granularity(PageSize::HOST)]
}

/// A machine with a pool of device memory and one of pinned memory.
struct Bench {
    machine: SimMachine,
    device: Arc<SimDevice>,
    pool: Pool,
    pinned: PinnedPool,
}

impl Bench {
    fn new() -> Self {
        Self::with(SimMachine::builder(), PinnedOptions::new())
    }

    fn with(machine: SimOptions, pinned: PinnedOptions) -> Self {
        let machine = machine.build().unwrap();
        let device = machine.device(0).unwrap();
        let (pool, pinned) =
            (PoolOptions::new().build(&device).unwrap(), pinned.build(&device).unwrap());
        Self { machine, device, pool, pinned }
    }

    fn stream(&self) -> StreamHandle {
        self.device.create_stream(Priority::Normal).unwrap()
    }

    fn array(&self, length: usize, stream: StreamHandle) -> DeviceArray<u8> {
        self.pool.on(stream).uninit(length).unwrap()
    }

    /// A pinned array of one value.
    fn filled(&self, length: usize, value: u8) -> PinnedArray<u8> {
        let mut array = self.pinned.array(length).unwrap();
        array.host_mut().unwrap().fill(value);
        array
    }

    /// Keeps work that is enqueued on `stream` from running until the gate is opened.
    fn close(&self, stream: StreamHandle) -> Gate {
        let (open, opened) = mpsc::channel::<()>();
        let task = Box::new(move || {
            let _ = opened.recv();
        });
        self.device.enqueue_host(task, stream).unwrap();
        Gate(open)
    }

    fn assert_no_race(&self) {
        assert_eq!(self.machine.finding_count(), 0, "{:?}", self.machine.findings().first());
    }
}

/// Opens when it is dropped.
struct Gate(#[allow(dead_code, reason = "dropped to open")] mpsc::Sender<()>);

/// The elements of a device array.
fn contents(array: &DeviceArray<u8>) -> Vec<u8> {
    let mut back = vec![0; array.len()];
    array.copy_to_slice(&mut back).unwrap();
    back
}
