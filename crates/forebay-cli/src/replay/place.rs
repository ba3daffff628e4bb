//! Where runs are played.

use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;
use forebay_core::{Bytes, TIB};
use forebay_hal::Device;
use forebay_host::HostOptions;
use forebay_sim::{MemoryModel, SimMachine};

/// How large a simulated device is unless said: larger than any real one, so that only a run that
/// is told of a limit meets one.
const CAPACITY: Bytes = Bytes::new(TIB);

/// A device to play on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[non_exhaustive]
pub enum Place {
    /// A simulated accelerator, which takes no memory.
    Sim,
    /// This machine's own memory.
    Host,
}

impl Place {
    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Host => "host",
        }
    }

    /// A fresh device, or why there is none. A simulated one keeps what is written to it where it
    /// is to be `backed`; the host always does.
    pub fn open(self, capacity: Option<Bytes>, backed: bool) -> Result<Arc<dyn Device>, String> {
        match self {
            Self::Sim => {
                let memory = if backed { MemoryModel::Backed } else { MemoryModel::Phantom };
                let machine = SimMachine::builder()
                    .memory(memory)
                    .capacity(capacity.unwrap_or(CAPACITY))
                    .checked(false)
                    .build()
                    .map_err(|error| error.to_string())?;
                let device = machine.device(0).ok_or("the simulated machine has no device")?;
                Ok(device)
            }
            Self::Host => {
                let options = HostOptions::new();
                let options = match capacity {
                    Some(capacity) => options.memory_limit(capacity),
                    None => options,
                };
                let device = options.open().map_err(|error| error.to_string())?;
                Ok(device)
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
