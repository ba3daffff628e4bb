//! Where runs are played.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_core::{Bytes, TIB};
use forebay_cuda::CudaDevice;
use forebay_hal::Device;
use forebay_host::HostOptions;
use forebay_sim::{MemoryModel, SimMachine};

/// How large a simulated device is unless said: larger than any real one, so that only a run that
/// is told of a limit meets one.
const CAPACITY: Bytes = Bytes::new(TIB);

/// A device to play on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A simulated accelerator, which takes no memory.
    Sim,
    /// This machine's own memory.
    Host,
    /// A GPU, by its number.
    Cuda(u32),
}

impl Place {
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
            Self::Cuda(_) if capacity.is_some() => Err(format!(
                "{self} has the memory it has: leave --capacity out, and set FOREBAY_MAX_BYTES to \
                 have the pool take less"
            )),
            Self::Cuda(ordinal) => {
                let device = CudaDevice::open(ordinal).map_err(|error| error.to_string())?;
                Ok(device)
            }
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sim => f.pad("sim"),
            Self::Host => f.pad("host"),
            Self::Cuda(ordinal) => f.pad(&format!("cuda:{ordinal}")),
        }
    }
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbered = |rest: &str| match rest.strip_prefix(':') {
            Some(number) => number.parse().ok(),
            None => rest.is_empty().then_some(0),
        };
        match text {
            "sim" => Some(Self::Sim),
            "host" => Some(Self::Host),
            _ => text.strip_prefix("cuda").and_then(numbered).map(Self::Cuda),
        }
        .ok_or_else(|| "a device is sim, host, or cuda:0 and up".to_owned())
    }
}

impl serde::Serialize for Place {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for place in [Place::Sim, Place::Host, Place::Cuda(0), Place::Cuda(7)] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert_eq!("cuda".parse(), Ok(Place::Cuda(0)));
        for wrong in ["", "cuda:", "cuda:x", "cuda0", "CUDA:0", "hip:0", "sim:0"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
