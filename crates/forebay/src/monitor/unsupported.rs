//! Stub for platforms without abstract sockets: no process can be read.

use core::time::Duration;

use super::{Endpoint, MonitorError};

/// Always empty: only Linux has them.
pub fn endpoints() -> Vec<Endpoint> {
    Vec::new()
}

/// A connection to a process; cannot exist on this platform.
#[derive(Debug)]
pub enum Connection {}

impl Connection {
    /// Never called.
    pub fn read(self, _: Duration) -> Result<String, MonitorError> {
        match self {}
    }
}

impl Endpoint {
    /// Always fails: processes can be read on Linux only.
    pub fn connect(self) -> Result<Connection, MonitorError> {
        Err(MonitorError::NotFound { pid: self.pid })
    }

    /// Always fails: processes can be read on Linux only.
    pub fn read(self, _: Duration) -> Result<String, MonitorError> {
        Err(MonitorError::NotFound { pid: self.pid })
    }
}

pub(crate) fn start() {}
