//! The host device keeps the device contract.

use std::process::ExitCode;
use std::sync::Arc;

use forebay_hal::conformance::{self, Fixture};
use forebay_hal::{Device, Result};
use forebay_host::HostDevice;

struct Host;

impl Fixture for Host {
    fn name(&self) -> &str {
        "host"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(HostDevice::open()?)
    }
}

fn main() -> ExitCode {
    conformance::main(Host)
}
