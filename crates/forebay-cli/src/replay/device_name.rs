//! Where runs are played.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use forebay_core::{Bytes, TIB};
use forebay_cuda::{CudaDevice, CudaDriver, DRIVER_VARIABLE, DriverMissing};
use forebay_hal::Device;
use forebay_host::HostOptions;
use forebay_sim::{MemoryModel, SimMachine};

/// How large a simulated device is unless said: larger than any real one, so that only a run that
/// is told of a limit meets one.
const CAPACITY: Bytes = Bytes::new(TIB);

/// A device to play on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeviceName {
    /// A simulated accelerator, which takes no memory.
    Sim,
    /// This machine's own memory.
    Host,
    /// A GPU, by its number.
    Cuda(u32),
}

impl DeviceName {
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
                "--capacity cannot change how much memory {self} has; leave it out, and set \
                 FOREBAY_MAX_BYTES to limit the pool"
            )),
            Self::Cuda(ordinal) => {
                let driver = CudaDriver::load().map_err(|missing| self.without_driver(&missing))?;
                let count = driver.device_count().map_err(|error| format!("{self}: {error}"))?;
                if ordinal >= count {
                    return Err(self.beyond(count));
                }
                let device = CudaDevice::open_with(driver, ordinal);
                Ok(device.map_err(|error| format!("{self}: {error}"))?)
            }
        }
    }
}

impl DeviceName {
    /// What to say of a GPU whose number is too high where the driver shows `count` of them.
    fn beyond(self, count: u32) -> String {
        let shown = match count {
            0 => "none to this process; check CUDA_VISIBLE_DEVICES".to_owned(),
            1 => "only cuda:0".to_owned(),
            _ => format!("cuda:0 to cuda:{}", count - 1),
        };
        format!("there is no {self}: of GPUs, the CUDA driver shows {shown}")
    }

    /// What to say where there is no CUDA driver: what was looked for, and what works instead.
    fn without_driver(self, missing: &DriverMissing) -> String {
        let what = match missing {
            DriverMissing::Library { tried, .. } => format!(
                "no CUDA driver was found for {self}: {}; install NVIDIA's driver, or set \
                 {DRIVER_VARIABLE} to the path of its library",
                looked_for(tried)
            ),
            // These say what helps.
            other => format!("{self}: {other}"),
        };
        format!(
            "{what}; without a GPU, use --device host or --device sim; \"forebay doctor\" shows what \
             this machine has"
        )
    }
}

/// "looked for a (why not) and b (why not)"; a reason that all share is given once.
fn looked_for(tried: &[(String, String)]) -> String {
    // The loader begins its reasons with the name of the library.
    let bare = |(library, reason): &(String, String)| {
        let prefix = format!("{library}: ");
        reason.strip_prefix(&prefix).unwrap_or(reason).to_owned()
    };
    let names: Vec<&str> = tried.iter().map(|(library, _)| library.as_str()).collect();
    let reasons: Vec<String> = tried.iter().map(bare).collect();
    match reasons.as_slice() {
        [first, rest @ ..] if rest.iter().all(|reason| reason == first) => {
            format!("looked for {} ({first})", names.join(" and "))
        }
        _ => {
            let each =
                names.iter().zip(&reasons).map(|(name, reason)| format!("{name} ({reason})"));
            format!("looked for {}", each.collect::<Vec<_>>().join(" and "))
        }
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sim => f.pad("sim"),
            Self::Host => f.pad("host"),
            Self::Cuda(ordinal) => f.pad(&format!("cuda:{ordinal}")),
        }
    }
}

impl FromStr for DeviceName {
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
        .ok_or_else(|| "a device is sim, host, or cuda:N with the number of a GPU".to_owned())
    }
}

impl serde::Serialize for DeviceName {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use forebay_cuda::vendor::NVIDIA;

    use super::*;

    #[test]
    fn a_place_is_read_as_it_is_written() {
        for place in [DeviceName::Sim, DeviceName::Host, DeviceName::Cuda(0), DeviceName::Cuda(7)] {
            assert_eq!(place.to_string().parse(), Ok(place));
        }
        assert_eq!("cuda".parse(), Ok(DeviceName::Cuda(0)));
        for wrong in ["", "cuda:", "cuda:x", "cuda0", "CUDA:0", "hip:0", "sim:0"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_number_that_is_too_high_is_told_with_those_that_are_there() {
        let said = |count| DeviceName::Cuda(7).beyond(count);
        assert!(said(0).contains("CUDA_VISIBLE_DEVICES"), "{}", said(0));
        assert!(said(1).ends_with("the CUDA driver shows only cuda:0"), "{}", said(1));
        assert!(said(2).ends_with("the CUDA driver shows cuda:0 to cuda:1"), "{}", said(2));
    }

    #[test]
    fn a_missing_driver_is_named_with_what_was_looked_for_and_what_to_do() {
        let reason = "cannot open shared object file";
        let attempt = |name: &str| (name.to_owned(), format!("{name}: {reason}"));
        let tried = vec![attempt("libcuda.so.1"), attempt("libcuda.so")];
        assert_eq!(
            DeviceName::Cuda(0)
                .without_driver(&DriverMissing::Library { vendor: &NVIDIA, tried: tried.clone() }),
            "no CUDA driver was found for cuda:0: looked for libcuda.so.1 and libcuda.so (cannot open \
             shared object file); install NVIDIA's driver, or set FOREBAY_CUDA_DRIVER to the path of \
             its library; without a GPU, use --device host or --device sim; \"forebay doctor\" shows \
             what this machine has"
        );
        let mixed = [tried[0].clone(), ("libcuda.so".to_owned(), "no right to read it".to_owned())];
        assert_eq!(
            looked_for(&mixed),
            "looked for libcuda.so.1 (cannot open shared object file) and libcuda.so (no right to read \
             it)"
        );
    }
}
