//! How a command ended, in the exit status.

use std::process::ExitCode;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Ending {
    /// All went well: 0.
    Well,
    /// The command found or met a fault, and said so: 1.
    Fault,
    /// What was typed cannot be done, whatever the machine: 2.
    BadUsage,
}

impl Ending {
    /// The exit status it is told by.
    pub const fn status(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Fault => 1,
            Self::BadUsage => 2,
        }
    }
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        Self::from(ending.status())
    }
}
