//! The simulated device keeps the device contract, whatever order its work runs in.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::Bytes;
use forebay_hal::conformance::{self, Fixture, Pair};
use forebay_hal::{Call, Device, Error, Result};
use forebay_sim::SimMachine;

/// Machines with a seed each: the n-th device opened always runs its work in the same order.
#[derive(Default)]
struct Sim {
    seed: AtomicU64,
}

impl Sim {
    fn machine(&self, devices: u32) -> Result<SimMachine> {
        SimMachine::builder()
            .seed(self.seed.fetch_add(1, Ordering::Relaxed))
            .devices(devices)
            .capacity(Bytes::gib(1))
            .build()
    }
}

fn missing(ordinal: u32) -> Error {
    let reason = format!("the machine has no device {ordinal}");
    Error::Lost { call: Call::Open, reason: reason.into() }
}

fn device(machine: &SimMachine, ordinal: u32) -> Result<Arc<dyn Device>> {
    Ok(machine.device(ordinal).ok_or_else(|| missing(ordinal))?)
}

impl Fixture for Sim {
    fn name(&self) -> &str {
        "sim"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        device(&self.machine(1)?, 0)
    }

    fn foreign_stream(&self) -> Option<Result<(Arc<dyn Device>, u64)>> {
        let given = || {
            let machine = self.machine(1)?;
            let device = machine.device(0).ok_or_else(|| missing(0))?;
            let raw = device.make_foreign_stream();
            Ok((device as Arc<dyn Device>, raw))
        };
        Some(given())
    }

    fn pair(&self) -> Option<Result<Pair>> {
        let pair = || {
            let machine = self.machine(2)?;
            Ok((device(&machine, 0)?, device(&machine, 1)?))
        };
        Some(pair())
    }
}

fn main() -> ExitCode {
    conformance::main(Sim::default())
}
