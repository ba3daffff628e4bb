//! How a command ended, as an exit status.

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Ending {
    /// Success: 0.
    Well,
    /// The command found or met a fault, and reported it: 1.
    Fault,
    /// The arguments are invalid on any machine: 2.
    BadUsage,
}

impl Ending {
    /// Its exit status.
    pub const fn status(self) -> u8 {
        match self {
            Self::Well => 0,
            Self::Fault => 1,
            Self::BadUsage => 2,
        }
    }
}
