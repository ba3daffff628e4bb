//! Identities: small numbers that must not be mistaken for each other.

use core::fmt;

/// The number of a device among those of its kind, counted from 0 as the driver counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceOrdinal(pub u32);

impl fmt::Display for DeviceOrdinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies a stream for the life of the process: unlike a handle, it is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.0)
    }
}

/// A counter that hands out each number once.
///
/// 64 bits suffice: at one number per nanosecond they last 584 years, so running out is not handled.
#[derive(Clone, Debug, Default)]
pub struct Serial {
    last: u64,
}

impl Serial {
    /// The next number, from 1: 0 is left for handles that mean "none" or "the default".
    pub fn take(&mut self) -> u64 {
        self.last = self.last.wrapping_add(1);
        self.last
    }
}
