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
            .map_err(|error| Error::quantity(Call::MemoryInfo, "capacity", &error))
    }
}

fn device(machine: &SimMachine, ordinal: u32) -> Result<Arc<dyn Device>> {
    let missing = || Error::Lost {
        call: Call::MemoryInfo,
        reason: format!("the machine has no device {ordinal}").into(),
    };
    Ok(machine.device(ordinal).ok_or_else(missing)?)
}

impl Fixture for Sim {
    fn name(&self) -> &str {
        "sim"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        device(&self.machine(1)?, 0)
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
