//! Systems without sockets of this kind: no process can be read.

use core::time::Duration;

use super::{Endpoint, MonitorError};

/// None: only Linux has them.
pub fn endpoints() -> Vec<Endpoint> {
    Vec::new()
}

/// A connection to a process: there is none.
#[derive(Debug)]
pub enum Connection {}

impl Connection {
    /// Not called.
    pub fn read(self, _: Duration) -> Result<String, MonitorError> {
        match self {}
    }
}

impl Endpoint {
    /// Fails: only on Linux a process can be read.
    pub fn connect(self) -> Result<Connection, MonitorError> {
        Err(MonitorError::NotFound { pid: self.pid })
    }

    /// Fails: only on Linux a process can be read.
    pub fn read(self, _: Duration) -> Result<String, MonitorError> {
        Err(MonitorError::NotFound { pid: self.pid })
    }
}

pub(crate) fn start() {}
